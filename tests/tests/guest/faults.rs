//! What happens to links and peers while transfers are under way, over both rails.

use std::time::{Duration, Instant};

use kvferry_engine::Transport;
use kvferry_tests::command::{Answer, Command, End, Move, Setup, Way};
use kvferry_tests::process::{Process, blocks, over, pull, push};
use kvferry_tests::proxy::Proxy;

use super::rails::{
    COUNT, FAR, Fault, NEAR, PATIENCE, SHARED, address_removed, assert_done, await_first,
    blackhole, delay, link_down, patient, rails, second_delayed, side,
};

#[test]
fn transfers_go_on_by_the_other_rail_when_one_fails_or_loses_its_address_and_by_both_afterwards() {
    let (mut target, mut initiator) = rails();
    for (seed, begin) in [(1, link_down as fn() -> Fault), (3, blackhole), (5, address_removed)] {
        initiator.fill(0..COUNT, seed);
        target.fill(0..COUNT, seed + 1);
        initiator.submit("push", patient(push(&target, COUNT)));
        await_first(&mut target, seed);
        let fault = begin();
        let end = initiator.wait("push", PATIENCE);
        assert_done(&end);
        target.assert_holds(0..COUNT, seed);
        // And whatever begins meanwhile.
        target.fill(0..COUNT, seed + 1);
        assert_done(&initiator.transfer(patient(pull(&target, COUNT))));
        initiator.assert_holds(0..COUNT, seed + 1);
        drop(fault);
        initiator.fill(0..COUNT, seed);
        assert_done(&initiator.transfer(patient(push(&target, COUNT))));
        target.assert_holds(0..COUNT, seed);
    }
}

#[test]
fn a_write_that_is_delayed_and_cancelled_changes_nothing_of_what_its_blocks_hold_then() {
    let (mut target, mut initiator) = rails();
    initiator.fill(0..COUNT, 1);
    // Lanes are open, and work.
    assert_done(&initiator.transfer(patient(push(&target, 4))));
    target.fill(0..COUNT, 2);
    let fault = delay();
    initiator.submit("late", patient(push(&target, COUNT)));
    std::thread::sleep(Duration::from_millis(100));
    initiator.ok(&Command::Cancel { name: "late".into() });
    let end = initiator.wait("late", PATIENCE);
    assert_eq!((end.cause(), end.remote()), ("Cancelled", "fenced"), "{end:?}");
    // From here on the blocks are the target's alone.
    target.fill(0..COUNT, 3);
    std::thread::sleep(Duration::from_secs(3));
    target.assert_holds(0..COUNT, 3);
    drop(fault);
    assert_done(&initiator.transfer(patient(push(&target, COUNT))));
    target.assert_holds(0..COUNT, 1);
}

#[test]
fn packets_that_are_lost_are_sent_again_by_the_adapters() {
    let (mut target, mut initiator) = rails();
    initiator.fill(0..COUNT, 1);
    let _fault = Fault::new(
        "for end in a0 b0; do tc qdisc add dev $end clsact && tc filter add dev $end ingress \
         matchall action pass random netrand drop 200; done",
        "for end in a0 b0; do tc qdisc del dev $end clsact; done",
    );
    assert_done(&initiator.transfer(patient(push(&target, COUNT))));
    target.assert_holds(0..COUNT, 1);
}

#[test]
fn who_is_killed_in_the_middle_leaves_a_peer_that_serves_the_next() {
    let (mut target, mut initiator) = rails();
    initiator.fill(0..COUNT, 1);
    target.fill(0..COUNT, 2);
    initiator.submit("push", patient(push(&target, COUNT)));
    await_first(&mut target, 1);
    drop(initiator);
    target.await_held("rid of its lanes", |held| held.lanes_accepted == 0);
    let mut next = side(NEAR, SHARED);
    next.connect(&target);
    next.fill(0..COUNT, 3);
    assert_done(&next.transfer(patient(push(&target, COUNT))));
    target.assert_holds(0..COUNT, 3);

    // The owner of the source is killed under the reader.
    target.fill(0..COUNT, 4);
    next.submit("pull", patient(pull(&target, COUNT)));
    await_first(&mut next, 4);
    drop(target);
    let began = Instant::now();
    let end = next.wait("pull", PATIENCE);
    assert!(!end.is_done() && began.elapsed() < PATIENCE / 2, "{end:?}");
    assert!(matches!(next.tell(&Command::Shutdown { patience_ms: 500 }), Answer::Ok));
}

#[test]
fn a_notification_waits_for_what_a_slower_rail_carries() {
    let (mut target, mut initiator) = rails();
    initiator.fill(0..COUNT, 1);
    assert_done(&initiator.transfer(patient(push(&target, COUNT))));
    let _fault = second_delayed();
    for round in 2..5 {
        initiator.fill(0..COUNT, round);
        let every: String = (0..COUNT).map(|block| format!("{block}:{block} ")).collect();
        let what = Move { notify: Some(every), ..patient(push(&target, COUNT)) };
        initiator.submit("push", what);
        // The target looks when it is told, and only then.
        match target.tell(&Command::NextNotification { patience_ms: 50_000, seed: Some(round) }) {
            Answer::Notification { wrong, .. } => assert_eq!(wrong, [0_u32; 0], "round {round}"),
            other => panic!("round {round}: {other:?}"),
        }
        assert_done(&initiator.wait("push", PATIENCE));
    }
}

#[test]
fn lanes_that_are_cut_again_and_again_lose_nothing() {
    let proxy = Proxy::start();
    let setup = |devices: &str| {
        let rdma_devices = Some(devices.to_owned());
        over(Transport::Rdma, Setup { rdma_devices, ..Setup::default() })
    };
    let mut target = Process::start_behind(&proxy, setup(FAR), SHARED);
    let mut initiator = Process::start_with(setup(NEAR), SHARED);
    initiator.connect(&target);
    let (mut repeated, mut seed) = (0, 0);
    for way in [Way::Push, Way::Pull] {
        for _ in 0..3 {
            seed += 2;
            initiator.fill(0..COUNT, seed);
            target.fill(0..COUNT, seed + 1);
            let sent = if way == Way::Push { seed } else { seed + 1 };
            initiator.submit("t", patient(blocks(way, &target, 0..COUNT)));
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(40));
                proxy.cut();
            }
            let end = initiator.wait("t", PATIENCE);
            assert_done(&end);
            if let End::Done { repeated: more, .. } = end {
                repeated += more;
            }
            let receiver = if way == Way::Push { &mut target } else { &mut initiator };
            receiver.assert_holds(0..COUNT, sent);
        }
    }
    assert!(repeated > 0, "no slice was ever repeated");
}
