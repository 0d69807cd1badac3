//! Promise 7: a restarted peer is somebody else.

use kvferry_tests::command::{Answer, Command, Setup};
use kvferry_tests::process::{Cache, push};

fn at(address: &str) -> Setup {
    Setup { listen: Some(address.into()), ..Setup::default() }
}

#[test]
fn a_peer_that_restarts_at_the_same_address_is_found_by_the_next_use() {
    let mut target = super::start();
    let mut bystander = super::start();
    let mut initiator = super::start();
    initiator.connect(&target);
    initiator.connect(&bystander);
    initiator.fill(0..256, 1);
    assert!(initiator.transfer(push(&target, 256)).is_done());
    let address = target.address.clone();
    let was = target.incarnation;
    target.kill();
    let mut target = super::start_with(at(&address), Cache::default());
    assert_eq!(target.address, address);
    assert_ne!(target.incarnation, was);

    // What was looked up before names memory of a process that is gone.
    let end = initiator.transfer(push(&target, 256));
    let stale = ["StaleHandle", "PeerRestarted", "Unreachable"].contains(&end.cause());
    assert!(stale, "{end:?}");
    // The next use finds the new one by itself, without a restart here.
    initiator.connect(&target);
    assert!(initiator.transfer(push(&target, 256)).is_done());
    target.assert_holds(0..256, 1);
    assert!(initiator.transfer(push(&bystander, 256)).is_done());
    bystander.assert_holds(0..256, 1);
}

#[test]
fn nothing_that_was_looked_up_of_one_incarnation_touches_the_next() {
    let mut target = super::start();
    let mut initiator = super::start();
    initiator.connect(&target);
    let address = target.address.clone();
    target.kill();
    let mut target = super::start_with(at(&address), Cache::default());
    target.fill(0..256, 5);
    // Reconnects, and keeps what was looked up of the old one.
    let reconnected = loop {
        match initiator.tell(&Command::Connect { address: address.clone() }) {
            Answer::Ok => break initiator.transfer(push(&target, 256)),
            Answer::Error { cause, .. } => assert_eq!(cause, "Unreachable"),
            other => panic!("{other:?}"),
        }
    };
    assert!(reconnected.is_done(), "a fresh look-up works: {reconnected:?}");
    let ticket = target.grant("g", 0..4, &initiator, true);
    target.kill();
    let mut target = super::start_with(at(&address), Cache::default());
    target.fill(0..256, 5);
    initiator.connect(&target);
    let mut what = push(&target, 4);
    what.ticket = Some(ticket);
    let end = initiator.transfer(what);
    assert_eq!((end.cause(), end.remote()), ("StaleHandle", "untouched"), "{end:?}");
    target.assert_holds(0..256, 5);
}

#[test]
fn an_initiator_that_restarts_is_served_and_its_former_lanes_are_given_back() {
    let mut target = super::start();
    let mut initiator = super::start();
    initiator.connect(&target);
    target.await_held("connected", |held| held.lanes_accepted == 2);
    initiator.kill();
    target.await_held("free", |held| held.lanes_accepted == 0);
    let mut initiator = super::start();
    initiator.connect(&target);
    initiator.fill(0..256, 3);
    assert!(initiator.transfer(push(&target, 256)).is_done());
    target.assert_holds(0..256, 3);
}
