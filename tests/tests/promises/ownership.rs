//! Promise 4: memory outlives its use. Promise 5: a peer touches what it was granted.

use std::time::{Duration, Instant};

use kvferry_proto::frame::{Reply, Status};
use kvferry_proto::{GrantId, RegionId, TransferId};
use kvferry_tests::command::{Answer, Command, Move, Setup};
use kvferry_tests::process::{Cache, Process, push};
use kvferry_tests::proxy::Proxy;
use kvferry_tests::wire::{RawLane, grant, write_frame};

#[test]
fn unregistering_waits_for_its_users_then_cuts_and_names_them() {
    let proxy = Proxy::start();
    let cache = Cache { blocks: 1024, ..Cache::default() };
    let target = Process::start_behind(&proxy, Setup::default(), cache);
    let mut initiator = Process::start_with(Setup::default(), cache);
    initiator.connect(&target);
    proxy.hold_after(200_000);
    initiator.submit("t", push(&target, 1024));
    proxy.await_held();
    let began = Instant::now();
    let answer = initiator.tell(&Command::Unregister { patience_ms: 300 });
    assert!(matches!(answer, Answer::Cut { transfers: 1 }), "{answer:?}");
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let end = initiator.wait("t", Duration::ZERO);
    assert_eq!((end.cause(), end.remote()), ("RegionWithdrawn", "unknown"), "{end:?}");
    // The memory is unmapped: nothing holds it, and nothing crashes for want of it.
    initiator.await_held("unmapped", |held| held.memfds == 0);
    proxy.release();
    assert_eq!(initiator.await_held("quiet", |held| held.transfers == 0).regions, 0);
}

#[test]
fn an_owner_that_unregisters_in_the_middle_of_a_push_is_safe_from_the_rest() {
    let proxy = Proxy::start();
    let cache = Cache { blocks: 1024, ..Cache::default() };
    let mut target = Process::start_behind(&proxy, Setup::default(), cache);
    let mut initiator = Process::start_with(Setup::default(), cache);
    initiator.connect(&target);
    proxy.hold_after(200_000);
    initiator.submit("t", push(&target, 1024));
    proxy.await_held();
    let answer = target.tell(&Command::Unregister { patience_ms: 300 });
    assert!(matches!(answer, Answer::Cut { transfers: 0 }), "{answer:?}");
    proxy.release();
    let end = initiator.wait("t", Duration::from_secs(10));
    assert_eq!((end.cause(), end.remote()), ("Refused", "fenced"), "{end:?}");
    assert_eq!(target.held().grants, 0);
}

/// A peer of which one block is granted to a made-up initiator.
fn granted() -> (Process, RawLane, GrantId, RegionId) {
    let mut target =
        Process::start_with(Setup::default(), Cache { blocks: 8, block_bytes: 4096, share: false });
    target.fill(0..8, 1);
    let ticket = grant(&mut target, "g", 77, 2..3);
    let lane = RawLane::open(&target, 77, 1).unwrap();
    (target, lane, ticket.grant, ticket.spans[0].region)
}

fn ack(transfer: u64, status: Status) -> Reply {
    Reply::Ack { transfer: TransferId(transfer), slice: 0, status }
}

#[test]
fn the_owner_checks_every_slice_and_its_neighbours_are_unharmed() {
    let (mut target, mut lane, grant, region) = granted();
    let guess = GrantId::new(grant.slot(), 12_345);
    let stale = RegionId { generation: region.generation + 1, ..region };
    let other = RegionId { slot: region.slot + 1, ..region };
    let block = [0xee; 4096];
    for (what, grant, region, offset, status) in [
        ("the block before", grant, region, 4096, Status::OutOfBounds),
        ("one byte too early", grant, region, 8191, Status::OutOfBounds),
        ("one byte too far", grant, region, 8193, Status::OutOfBounds),
        ("the last byte and more", grant, region, 32_767, Status::OutOfBounds),
        ("an overflow", grant, region, u64::MAX - 10, Status::OutOfBounds),
        ("a guessed grant", guess, region, 8192, Status::GrantGone),
        ("a newer generation", grant, stale, 8192, Status::RegionGone),
        ("another region", grant, other, 8192, Status::OutOfBounds),
    ] {
        lane.send(&write_frame(1, grant, region, offset, &block));
        assert_eq!(lane.reply(), ack(1, status), "{what}");
        target.assert_holds(0..8, 1);
    }
    lane.send(&write_frame(2, grant, region, 8192, &block));
    assert_eq!(lane.reply(), ack(2, Status::Done));
    target.assert_holds(0..2, 1);
    target.assert_holds(3..8, 1);
    assert_eq!(target.wrong(&[(2, 2)], 1), [2]);
}

#[test]
fn a_grant_is_good_for_the_incarnation_that_it_names_and_no_other() {
    let (mut target, _lane, grant, region) = granted();
    let mut thief = RawLane::open(&target, 78, 1).unwrap();
    thief.send(&write_frame(1, grant, region, 8192, &[0xee; 4096]));
    assert_eq!(thief.reply(), ack(1, Status::GrantForeign));
    target.assert_holds(0..8, 1);
}

#[test]
fn an_initiator_checks_all_of_a_transfer_before_any_of_it_is_sent() {
    let cache = Cache { share: false, ..Cache::default() };
    let mut target = Process::start_with(Setup::default(), cache);
    let mut initiator = Process::start();
    target.fill(0..256, 1);
    initiator.connect(&target);
    let ticket = Some(target.grant("g", 0..200, &initiator, true));
    // All blocks but the last are granted.
    let end = initiator.transfer(Move { ticket, ..push(&target, 201) });
    assert_eq!((end.cause(), end.remote()), ("OutsideGrant", "untouched"), "{end:?}");
    let end = initiator.transfer(push(&target, 1));
    assert_eq!((end.cause(), end.remote()), ("NotGranted", "untouched"), "{end:?}");
    target.assert_holds(0..256, 1);
}
