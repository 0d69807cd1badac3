//! Promises 3, 4 and 5 where bytes are under way between adapters: what is revoked, cancelled, out of
//! time or given back is touched no more, whatever comes late (sglang#35049, nixl#2067), and who reads
//! memory that was given away is never told that it is done.

use std::time::{Duration, Instant};

use kvferry_tests::command::{Answer, Command, Move};
use kvferry_tests::process::{Process, pull, push};

use super::rails::{
    COUNT, FAR, NEAR, OWN, PATIENCE, SHARED, assert_done, await_first, delay, patient, rails, side,
};

/// A revocation waits for a queue pair to be torn down at most. The rest is the way to the process and
/// back, on an emulated machine.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Longer than anything is delayed here.
const LATER: Duration = Duration::from_secs(3);

/// An owner at the far ends, and at the near ones a peer with lanes that have carried something.
fn owner_and_peer() -> (Process, Process) {
    let mut owner = side(FAR, OWN);
    let mut peer = side(NEAR, SHARED);
    peer.connect(&owner);
    let ticket = Some(owner.grant("first", 0..COUNT, &peer, true));
    assert_done(&peer.transfer(patient(Move { ticket, ..push(&owner, 64) })));
    assert!(owner.revoke("first") < AT_ONCE);
    (owner, peer)
}

#[test]
fn a_delayed_write_does_not_land_in_the_blocks_of_the_next_request() {
    let (mut owner, mut late) = owner_and_peer();
    late.fill(0..COUNT, 1);
    let mut next = side(FAR, SHARED);
    next.fill(0..COUNT, 2);
    let fault = delay();
    let ticket = Some(owner.grant("late", 0..COUNT, &late, true));
    let notify = Some("late".to_owned());
    late.submit("late", patient(Move { ticket, notify, ..push(&owner, COUNT) }));
    std::thread::sleep(Duration::from_millis(100));
    let took = owner.revoke("late");
    assert!(took < AT_ONCE, "{took:?}");

    // The same blocks, at once: nothing of this passes by what is delayed.
    next.connect(&owner);
    let ticket = Some(owner.grant("next", 0..COUNT, &next, true));
    assert_done(&next.transfer(patient(Move { ticket, ..push(&owner, COUNT) })));
    owner.assert_holds(0..COUNT, 2);
    std::thread::sleep(LATER);
    owner.assert_holds(0..COUNT, 2);
    drop(fault);
    let end = late.wait("late", PATIENCE);
    assert_eq!((end.cause(), end.remote()), ("Refused", "fenced"), "{end:?}");
    owner.assert_holds(0..COUNT, 2);
    let told = owner.tell(&Command::NextNotification { patience_ms: 0, seed: None });
    assert!(matches!(told, Answer::Nothing), "{told:?}");
}

#[test]
fn an_owner_that_revokes_keeps_its_blocks_though_a_stopped_writer_wakes_later() {
    let (mut owner, mut writer) = owner_and_peer();
    writer.fill(0..COUNT, 1);
    let ticket = Some(owner.grant("g", 0..COUNT, &writer, true));
    writer.submit("t", patient(Move { ticket, ..push(&owner, COUNT) }));
    await_first(&mut owner, 1);
    writer.stop();
    let took = owner.revoke("g");
    assert!(took < AT_ONCE, "{took:?}");
    owner.fill(0..COUNT, 2);
    writer.wake();
    let end = writer.wait("t", PATIENCE);
    // Its adapter serves reads while it is stopped, so all of it may have landed before.
    assert!(end.is_done() || (end.cause(), end.remote()) == ("Refused", "fenced"), "{end:?}");
    owner.assert_holds(0..COUNT, 2);
}

#[test]
fn a_grant_that_ends_by_the_clock_stops_a_write_in_its_middle() {
    let (mut owner, mut writer) = owner_and_peer();
    writer.fill(0..COUNT, 1);
    let ticket =
        owner.grant_to("g", 0..COUNT, writer.incarnation, true, Duration::from_millis(1000));
    let fault = delay();
    writer.submit("t", patient(Move { ticket: Some(ticket), ..push(&owner, COUNT) }));
    let end = writer.wait("t", PATIENCE);
    assert_eq!((end.cause(), end.remote()), ("Refused", "fenced"), "{end:?}");
    owner.fill(0..COUNT, 2);
    std::thread::sleep(LATER);
    owner.assert_holds(0..COUNT, 2);
    drop(fault);
}

#[test]
fn a_reader_that_times_out_gets_nothing_into_its_memory_any_more() {
    let mut source = side(NEAR, SHARED);
    let mut reader = side(FAR, SHARED);
    reader.connect(&source);
    assert_done(&reader.transfer(patient(pull(&source, COUNT))));
    source.fill(0..COUNT, 1);
    let fault = delay();
    let end = reader.transfer(Move { deadline_ms: Some(300), ..pull(&source, COUNT) });
    assert_eq!(end.cause(), "Deadline", "{end:?}");
    reader.fill(0..COUNT, 2);
    std::thread::sleep(LATER);
    reader.assert_holds(0..COUNT, 2);
    drop(fault);
    assert_done(&reader.transfer(patient(pull(&source, COUNT))));
    reader.assert_holds(0..COUNT, 1);
}

#[test]
fn a_source_that_is_taken_back_in_the_middle_of_a_read_is_never_reported_done() {
    let mut source = side(FAR, OWN);
    let mut reader = side(NEAR, SHARED);
    reader.connect(&source);
    for round in 0..3 {
        source.fill(0..COUNT, 1);
        let ticket = Some(source.grant("g", 0..COUNT, &reader, false));
        reader.submit("t", patient(Move { ticket, ..pull(&source, COUNT) }));
        await_first(&mut reader, 1);
        assert!(source.revoke("g") < AT_ONCE);
        source.fill(0..COUNT, 2);
        let end = reader.wait("t", PATIENCE);
        // It is done only where it was done before.
        let causes = ["SourceReleased", "Refused"];
        if end.is_done() {
            reader.assert_holds(0..COUNT, 1);
        } else {
            assert!(causes.contains(&end.cause()), "round {round}: {end:?}");
        }
        reader.fill(0..COUNT, 9);
        let again = Some(source.grant("again", 0..COUNT, &reader, false));
        assert_done(&reader.transfer(patient(Move { ticket: again, ..pull(&source, COUNT) })));
        reader.assert_holds(0..COUNT, 2);
        assert!(source.revoke("again") < AT_ONCE);
    }
}

#[test]
fn an_initiator_that_unregisters_waits_for_its_transfer_then_cuts_and_names_it() {
    let (target, mut initiator) = rails();
    assert_done(&initiator.transfer(patient(push(&target, COUNT))));
    let fault = delay();
    initiator.submit("t", patient(push(&target, COUNT)));
    let began = Instant::now();
    let answer = initiator.tell(&Command::Unregister { patience_ms: 300 });
    assert!(matches!(answer, Answer::Cut { transfers: 1 }), "{answer:?}");
    assert!((Duration::from_millis(300)..LATER).contains(&began.elapsed()), "{began:?}");
    let end = initiator.wait("t", Duration::ZERO);
    assert_eq!(end.cause(), "RegionWithdrawn", "{end:?}");
    // The memory is unmapped: nothing holds it, and nothing crashes for want of it.
    initiator.await_held("unmapped", |held| held.memfds == 0);
    drop(fault);
    std::thread::sleep(LATER);
    assert_eq!(initiator.await_held("quiet", |held| held.transfers == 0).regions, 0);
}

#[test]
fn an_owner_that_unregisters_in_the_middle_of_a_push_is_safe_from_the_rest() {
    let (mut target, mut initiator) = rails();
    assert_done(&initiator.transfer(patient(push(&target, COUNT))));
    let fault = delay();
    initiator.submit("t", patient(push(&target, COUNT)));
    std::thread::sleep(Duration::from_millis(100));
    let answer = target.tell(&Command::Unregister { patience_ms: 300 });
    assert!(matches!(answer, Answer::Cut { transfers: 0 }), "{answer:?}");
    let end = initiator.wait("t", PATIENCE);
    assert_eq!((end.cause(), end.remote()), ("Refused", "fenced"), "{end:?}");
    assert_eq!(target.held().grants, 0);
    // Nothing holds the memory, and nothing crashes for want of it.
    target.await_held("unmapped", |held| held.memfds == 0);
    drop(fault);
    std::thread::sleep(LATER);
    assert_eq!(target.held().transfers, 0);
}
