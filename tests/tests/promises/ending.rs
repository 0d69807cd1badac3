//! Promise 2: every transfer ends once, and by its deadline, whatever its peer does.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use kvferry_tests::command::{Answer, Command, Move, Setup};
use kvferry_tests::process::{Cache, pull, push};

/// How much later than its deadline a transfer may be seen to have ended: these machines are busy.
const SLACK: Duration = Duration::from_millis(700);

#[test]
fn a_transfer_ends_by_its_deadline_when_the_peer_is_stopped() {
    for build in [push, pull] {
        let target = super::start();
        let mut initiator = super::start();
        initiator.connect(&target);
        target.stop();
        let began = Instant::now();
        let end = initiator.transfer(Move { deadline_ms: Some(500), ..build(&target, 256) });
        let took = began.elapsed();
        assert_eq!(end.cause(), "Deadline", "{end:?}");
        assert!(took >= Duration::from_millis(500) && took < Duration::from_millis(500) + SLACK);
        target.wake();
    }
}

#[test]
fn connecting_to_somebody_who_never_was_ends_with_the_reason() {
    let mut initiator =
        super::start_with(Setup { connect_ms: Some(500), ..Setup::default() }, Cache::default());
    // A listener that nobody accepts from: the handshake hangs.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_address = silent.local_addr().unwrap().to_string();
    // A port that nobody listens on.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (address, why) in [(silent_address, "no answer within"), (closed, "refused")] {
        let began = Instant::now();
        match initiator.tell(&Command::Connect { address }) {
            Answer::Error { cause, message, .. } => {
                assert_eq!(cause, "Unreachable");
                assert!(message.contains(why), "{message}");
            }
            other => panic!("{other:?}"),
        }
        assert!(began.elapsed() < Duration::from_millis(500) + SLACK);
    }
}

#[test]
fn a_silent_peer_is_noticed_without_traffic_and_its_lanes_are_reaped() {
    let fast = || Setup { liveness_ms: Some((100, 300)), ..Setup::default() };
    let mut target = super::start_with(fast(), Cache::default());
    let mut initiator = super::start_with(fast(), Cache::default());
    initiator.connect(&target);
    initiator.await_held("connected", |held| held.lanes_opened == 2);
    target.await_held("connected", |held| held.lanes_accepted == 2);
    target.stop();
    initiator.await_held("reaped", |held| held.lanes_opened == 0);
    target.wake();
    initiator.connect(&target);
    initiator.stop();
    target.await_held("reaped", |held| held.lanes_accepted == 0);
    initiator.wake();
    initiator.connect(&target);
    assert!(initiator.transfer(push(&target, 16)).is_done());
}

#[test]
fn one_dead_peer_delays_nobody_else() {
    let dead = super::start();
    let mut others: Vec<_> = (0..5).map(|_| super::start()).collect();
    let mut initiator = super::start();
    initiator.connect(&dead);
    for other in &others {
        initiator.connect(other);
    }
    dead.stop();
    initiator.fill(0..64, 6);
    initiator.submit("dead", Move { deadline_ms: Some(3000), ..push(&dead, 64) });
    let began = Instant::now();
    for other in &mut others {
        assert!(initiator.transfer(push(other, 64)).is_done());
        other.assert_holds(0..64, 6);
    }
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(initiator.wait("dead", Duration::from_secs(10)).cause(), "Deadline");
    dead.wake();
}

#[test]
fn a_cancelled_transfer_ends_once_its_target_has_confirmed_it() {
    let target = super::start();
    let mut initiator = super::start();
    initiator.connect(&target);
    initiator.await_held("connected", |held| held.lanes_opened == 2);
    target.stop();
    initiator.submit("t", Move { deadline_ms: Some(20_000), ..push(&target, 256) });
    assert!(matches!(initiator.tell(&Command::Cancel { name: "t".into() }), Answer::Ok));
    let pending = initiator.wait("t", Duration::from_millis(200));
    assert_eq!(pending, kvferry_tests::command::End::Pending, "nobody has confirmed anything");
    target.wake();
    let end = initiator.wait("t", Duration::from_secs(10));
    assert_eq!((end.cause(), end.remote()), ("Cancelled", "fenced"), "{end:?}");
    assert!(initiator.transfer(push(&target, 256)).is_done());
}

#[test]
fn more_transfers_than_may_be_open_are_refused_and_the_others_unharmed() {
    let mut target = super::start();
    let setup = Setup { open_transfers: Some(8), ..Setup::default() };
    let mut initiator = super::start_with(setup, Cache::default());
    initiator.connect(&target);
    initiator.fill(0..256, 3);
    target.stop();
    for index in 0..8 {
        initiator.submit(&index.to_string(), push(&target, 8));
    }
    assert_eq!(initiator.transfer(push(&target, 8)).cause(), "Backpressure");
    target.wake();
    for index in 0..8 {
        assert!(initiator.wait(&index.to_string(), Duration::from_secs(10)).is_done());
    }
    assert!(initiator.transfer(push(&target, 256)).is_done());
    target.assert_holds(0..256, 3);
}
