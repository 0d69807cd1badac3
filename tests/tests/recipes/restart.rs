//! A peer comes back under its name: killed and started again at the same address, or behind an
//! address that stays while processes change (smg#2491, vllm#49238). The next request works, and the
//! other side is not restarted.
//!
//! One restart at the same address, what was looked up of the former incarnation, and an initiator
//! that restarts stand in `promises/restart`.

use std::time::{Duration, Instant};

use kvferry_tests::command::{Answer, Command, Move, Setup};
use kvferry_tests::process::{Cache, Process, pull, push};
use kvferry_tests::proxy::Proxy;

const COUNT: u32 = 1024;

const CACHE: Cache = Cache { blocks: COUNT as u64, block_bytes: 4096, share: true };

fn port(address: &str) -> u16 {
    address.rsplit_once(':').unwrap().1.parse().unwrap()
}

/// A process behind two addresses that stay: one for its control port, one for its lanes.
fn start_behind(control: &Proxy, lanes: &Proxy) -> Process {
    let process = Process::start_behind(lanes, Setup::default(), CACHE);
    control.lead_to(port(&process.address));
    process
}

#[test]
fn a_peer_behind_a_stable_address_is_replaced_again_and_again_in_mid_transfer() {
    let (control, lanes) = (Proxy::start(), Proxy::start());
    let mut peer = start_behind(&control, &lanes);
    let mut other = Process::start_with(Setup::default(), CACHE);
    let mut initiator = Process::start_with(Setup::default(), CACHE);
    initiator.connect(&other);
    let stable = |what: Move| Move { with: control.address(), ..what };
    let connect = Command::Connect { address: control.address() };
    initiator.ok(&connect);
    // Once before, since a lane that has carried something holds what it needs for that.
    assert!(initiator.transfer(stable(push(&peer, COUNT))).is_done());
    assert!(initiator.transfer(stable(pull(&peer, COUNT))).is_done());
    assert!(initiator.transfer(push(&other, COUNT)).is_done());
    let settled = initiator.await_held("connected", |held| held.lanes_opened == 4);
    for round in 1..=4 {
        initiator.fill(0..COUNT, round);
        lanes.hold_after(600_000);
        let deadline_ms = Some(5000);
        initiator.submit("t", stable(Move { deadline_ms, ..push(&peer, COUNT) }));
        lanes.await_held();
        peer.kill();
        peer = start_behind(&control, &lanes);
        peer.fill(0..COUNT, 9);
        control.cut();
        lanes.cut();
        let end = initiator.wait("t", Duration::from_secs(6));
        let causes = ["PeerRestarted", "Unreachable", "StaleHandle", "LaneRefused"];
        assert!(causes.contains(&end.cause()) && end.is_retryable(), "round {round}: {end:?}");
        // What was meant for the former one has not touched this one.
        peer.assert_holds(0..COUNT, 9);

        initiator.ok(&connect);
        assert!(initiator.transfer(stable(push(&peer, COUNT))).is_done());
        peer.assert_holds(0..COUNT, round);
        assert!(initiator.transfer(stable(pull(&peer, COUNT))).is_done());
        assert!(initiator.transfer(push(&other, COUNT)).is_done());
    }
    other.assert_holds(0..COUNT, 4);
    let after = initiator.await_held("settled", |held| held.descriptors <= settled.descriptors);
    assert_eq!((after.lanes_opened, after.transfers), (4, 0));
}

#[test]
fn while_nobody_is_behind_a_stable_address_who_asks_is_told_and_nobody_waits() {
    let (control, lanes) = (Proxy::start(), Proxy::start());
    let mut peer = start_behind(&control, &lanes);
    let mut initiator = Process::start_with(Setup::default(), CACHE);
    let connect = Command::Connect { address: control.address() };
    initiator.ok(&connect);
    let what = Move { with: control.address(), ..push(&peer, COUNT) };
    assert!(initiator.transfer(what.clone()).is_done());
    peer.kill();
    initiator.await_held("lost", |held| held.lanes_opened == 0);
    // The address takes connections, and hangs up.
    let began = Instant::now();
    let end = initiator.transfer(what.clone());
    assert_eq!((end.cause(), end.remote()), ("Unreachable", "untouched"), "{end:?}");
    match initiator.tell(&connect) {
        Answer::Error { cause, retryable, .. } => {
            assert_eq!((cause.as_str(), retryable), ("Unreachable", true));
        }
        other => panic!("{other:?}"),
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let mut peer = start_behind(&control, &lanes);
    initiator.fill(0..COUNT, 7);
    initiator.ok(&connect);
    assert!(initiator.transfer(what).is_done());
    peer.assert_holds(0..COUNT, 7);
}

#[test]
fn lanes_that_lead_to_somebody_else_meanwhile_touch_nothing_there() {
    let (control, lanes) = (Proxy::start(), Proxy::start());
    let mut peer = start_behind(&control, &lanes);
    let mut other = Process::start_with(Setup::default(), CACHE);
    let mut initiator = Process::start_with(Setup::default(), CACHE);
    let connect = Command::Connect { address: control.address() };
    initiator.ok(&connect);
    initiator.await_held("connected", |held| held.lanes_opened == 2);
    initiator.fill(0..COUNT, 1);
    other.fill(0..COUNT, 9);
    lanes.hold_after(600_000);
    let what = Move { with: control.address(), deadline_ms: Some(3000), ..push(&peer, COUNT) };
    initiator.submit("t", what.clone());
    lanes.await_held();
    // The peer lives, and so does the connection to it; the address of its lanes is another's.
    lanes.lead_to(other.lane_port);
    lanes.cut();
    let end = initiator.wait("t", Duration::from_secs(5));
    assert!(["Unreachable", "LaneRefused", "Deadline"].contains(&end.cause()), "{end:?}");
    assert!(end.is_retryable());
    other.assert_holds(0..COUNT, 9);
    assert_eq!((other.held().lanes_accepted, other.held().refused), (0, 0));

    lanes.lead_to(peer.lane_port);
    initiator.ok(&connect);
    assert!(initiator.transfer(what).is_done());
    peer.assert_holds(0..COUNT, 1);
}
