//! A lane that is lost in the middle of a transfer: its slices move to another, every byte arrives,
//! and what the lost lane still carries does no harm.

use std::time::Duration;

use kvferry_tests::command::{End, Move, Setup, Way};
use kvferry_tests::process::{Cache, Process, blocks};
use kvferry_tests::proxy::Proxy;

const COUNT: u32 = 2048;

fn pair(proxy: &Proxy, bulk_lanes: usize) -> (Process, Process) {
    let cache = Cache { blocks: COUNT.into(), block_bytes: 16 << 10, share: true };
    let setup = Setup { bulk_lanes: Some(bulk_lanes), ..Setup::default() };
    let target = Process::start_behind(proxy, setup.clone(), cache);
    let mut initiator = Process::start_with(setup, cache);
    initiator.connect(&target);
    (target, initiator)
}

#[test]
fn a_push_survives_the_loss_of_all_its_lanes() {
    let proxy = Proxy::start();
    let (mut target, mut initiator) = pair(&proxy, 2);
    initiator.fill(0..COUNT, 1);
    for cut_after in [0, 100_000, 3_000_000, 12_000_000] {
        target.fill(0..COUNT, 9);
        let what = Move { notify: Some("there".into()), ..blocks(Way::Push, &target, 0..COUNT) };
        proxy.hold_after(cut_after);
        initiator.submit("t", what);
        proxy.await_held();
        let before = proxy.accepted();
        proxy.cut();
        proxy.release();
        let end = initiator.wait("t", Duration::from_secs(20));
        match end {
            End::Done { bytes, repeated, .. } => {
                assert_eq!(bytes, u64::from(COUNT) * (16 << 10));
                assert!(repeated > 0, "no slice was repeated after {cut_after} bytes");
            }
            other => panic!("cut after {cut_after} bytes: {other:?}"),
        }
        assert!(proxy.accepted() > before, "no lane was opened again");
        target.assert_holds(0..COUNT, 1);
    }
}

#[test]
fn a_pull_survives_the_loss_of_all_its_lanes() {
    let proxy = Proxy::start();
    let (mut source, mut initiator) = pair(&proxy, 2);
    source.fill(0..COUNT, 1);
    initiator.fill(0..COUNT, 9);
    let asked = proxy.forwarded();
    initiator.submit("t", blocks(Way::Pull, &source, 0..COUNT));
    proxy.await_forwarded(asked + 1);
    proxy.cut();
    let end = initiator.wait("t", Duration::from_secs(20));
    assert!(end.is_done(), "{end:?}");
    initiator.assert_holds(0..COUNT, 1);
}

#[test]
fn lanes_that_are_cut_again_and_again_lose_nothing() {
    let proxy = Proxy::start();
    let (mut target, mut initiator) = pair(&proxy, 2);
    for round in 0..8 {
        initiator.fill(0..COUNT, round);
        let way = if round % 2 == 0 { Way::Push } else { Way::Pull };
        if way == Way::Pull {
            target.fill(0..COUNT, round);
            initiator.fill(0..COUNT, 99);
        }
        initiator.submit("t", blocks(way, &target, 0..COUNT));
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(3));
            proxy.cut();
        }
        let end = initiator.wait("t", Duration::from_secs(20));
        assert!(end.is_done(), "round {round}: {end:?}");
        let receiver = if way == Way::Push { &mut target } else { &mut initiator };
        receiver.assert_holds(0..COUNT, round);
    }
}
