//! What is particular to memory that is lent by a descriptor: when it is mapped and given back, and that
//! nobody is believed.

use std::os::fd::AsFd;

use kvferry_proto::frame::{Control, Kind, Loan, Prefix, Reply, Request, Status};
use kvferry_proto::{GrantId, RegionId, TransferId};
use kvferry_tests::command::{Answer, Command, Setup};
use kvferry_tests::process::{Process, over, pull, push};
use kvferry_tests::skip;
use kvferry_tests::wire::RawLane;
use kvferry_transport::memory::Memory;

use super::by_hand::{LENT, OWN_PIDS, ack, contained, granted_to, write_lent};
use super::copied::{COUNT, large, pairs};
use super::{OVER, start, start_with};

#[test]
fn what_is_lent_is_mapped_once_for_a_lane_and_given_back_with_the_region() {
    let mut target = start_with(Setup::default(), large(true));
    let mut initiator = start_with(Setup::default(), large(true));
    initiator.connect(&target);
    for _ in 0..3 {
        assert!(initiator.transfer(push(&target, COUNT)).is_done());
    }
    // Its own cache, and the initiator's.
    assert_eq!(target.held().memfds, 2);
    assert!(matches!(
        initiator.tell(&Command::Unregister { patience_ms: 1000 }),
        Answer::Cut { transfers: 0 }
    ));
    target.await_held("given back", |held| held.memfds == 1);
    assert_eq!(initiator.held().memfds, 0);

    let mut reader = start_with(Setup::default(), large(true));
    reader.connect(&target);
    assert!(reader.transfer(pull(&target, COUNT)).is_done());
    assert_eq!(reader.held().memfds, 2);
    assert!(matches!(
        target.tell(&Command::Unregister { patience_ms: 1000 }),
        Answer::Cut { transfers: 0 }
    ));
    reader.await_held("given back", |held| held.memfds == 1);
}

#[test]
fn processes_in_different_pid_namespaces_meet_where_they_share_the_run_directory() {
    if let Err(why) = contained(&OWN_PIDS) {
        return skip(&format!("this system gives no pid namespace to a user ({why})"));
    }
    let setup = || over(OVER, Setup::default());
    let mut inside = Process::start_wrapped("unshare", &OWN_PIDS, setup(), large(true));
    let mut also = Process::start_wrapped("unshare", &OWN_PIDS, setup(), large(true));
    let mut outside = start_with(Setup::default(), large(true));
    outside.connect(&inside);
    also.connect(&inside);
    outside.fill(0..COUNT, 1);
    let end = outside.transfer(push(&inside, COUNT));
    assert_eq!(end.transport(), "local", "{end:?}");
    inside.assert_holds(0..COUNT, 1);
    // Both have the same number in their namespaces.
    let end = also.transfer(pull(&inside, COUNT));
    assert_eq!(end.transport(), "local", "{end:?}");
    also.assert_holds(0..COUNT, 1);
}

fn lend(length: u64) -> Vec<u8> {
    let mut frame = Vec::new();
    Request::encode_lend(&mut frame, Loan { region: LENT, length, base: None });
    frame
}

#[test]
fn the_owner_checks_every_slice_by_reference_on_both_sides() {
    let (mut target, grant, region) = granted_to(77);
    let memory = Memory::allocate(2 << 20).unwrap();
    let descriptor = memory.lend().unwrap().unwrap();
    let mut lane = RawLane::open_locally(&target, 77, 1).unwrap();
    // Nothing was lent yet.
    lane.send(&write_lent(1, (grant, region), (LENT, 0)));
    assert_eq!(lane.reply(), ack(1, Status::RegionGone));
    lane.send_with(&lend(1 << 20), descriptor.as_fd());
    let stale = RegionId { generation: 3, ..LENT };
    let guess = GrantId::new(grant.slot(), 12_345);
    for (what, to, from, status) in [
        ("behind what was lent", (grant, region), (LENT, 1 << 20), Status::OutOfBounds),
        ("a byte too far", (grant, region), (LENT, (1 << 20) - 4095), Status::OutOfBounds),
        ("an overflow", (grant, region), (LENT, u64::MAX), Status::OutOfBounds),
        ("another generation", (grant, region), (stale, 0), Status::RegionGone),
        ("a guessed grant", (guess, region), (LENT, 0), Status::GrantGone),
    ] {
        lane.send(&write_lent(1, to, from));
        assert_eq!(lane.reply(), ack(1, status), "{what}");
        target.assert_holds(0..8, 5);
    }
    lane.send(&write_lent(2, (grant, region), (LENT, 4096)));
    assert_eq!(lane.reply(), ack(2, Status::Done));
    assert_eq!(target.wrong(&pairs(0..8), 5), [0]);
    // Once it is recalled it is gone.
    let mut recall = Vec::new();
    Request::encode_recall(&mut recall, LENT);
    lane.send(&recall);
    lane.send(&write_lent(3, (grant, region), (LENT, 0)));
    assert_eq!(lane.reply(), ack(3, Status::RegionGone));
    target.await_held("given back", |held| held.memfds == 1);
    // What was never held was not held until it landed.
    let mut landed = Vec::new();
    let transfer = TransferId(9);
    Control::Landed { transfer, slice: 0 }.encode(&mut landed);
    lane.send(&landed);
    assert_eq!(lane.reply(), Reply::Held { transfer, slice: 0, status: Status::GrantGone });
}

#[test]
fn whoever_lends_what_could_hurt_loses_the_lane_and_no_more() {
    let (mut target, grant, region) = granted_to(77);
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    let (pipe, _writer) = std::io::pipe().unwrap();
    let short = Memory::allocate(4096).unwrap().lend().unwrap().unwrap();
    for (number, descriptor) in (0..).zip([file.as_fd(), pipe.as_fd(), short.as_fd()]) {
        let mut lane = RawLane::open_locally(&target, 77, number).unwrap();
        lane.send_with(&lend(8 << 20), descriptor);
        assert!(lane.is_closed(), "{descriptor:?}");
    }
    let mut lane = RawLane::open_locally(&target, 77, 10).unwrap();
    lane.send(&lend(4096));
    assert!(lane.is_closed(), "no descriptor came with it");
    // A reply, which initiators do not send.
    let mut lane = RawLane::open_locally(&target, 77, 11).unwrap();
    lane.send(&Prefix::new(Kind::Lent).encode());
    assert!(lane.is_closed());
    let mut lane = RawLane::open_locally(&target, 77, 12).unwrap();
    lane.send(&write_lent(1, (grant, region), (LENT, 0)));
    assert_eq!(lane.reply(), ack(1, Status::RegionGone));
    target.assert_holds(0..8, 5);
}

#[test]
fn a_ring_goes_with_its_lane_whatever_becomes_of_the_other_end() {
    let mut target = start_with(Setup::default(), large(true));
    let mut initiator = start_with(Setup::default(), large(true));
    initiator.connect(&target);
    assert!(initiator.transfer(push(&target, COUNT)).is_done());
    let (here, there) = (initiator.held(), target.held());
    assert_eq!(here.rings, 2 * here.lanes_opened);
    assert_eq!(there.rings, 2 * there.lanes_accepted);
    assert!(here.lanes_opened > 0);
    initiator.kill();
    target.await_held("its lanes and rings are gone", |held| held.rings == 0);
}

#[test]
fn garbage_on_the_socket_harms_nobody() {
    let mut target = start();
    let before = target.held();
    for seed in 0..50_u8 {
        let mut lane = RawLane::connect_locally(&target);
        lane.send_to_whom_it_may_concern(&vec![seed; 1 + usize::from(seed) * 100]);
        let mut lane = RawLane::connect_locally(&target);
        lane.prove();
        lane.send_to_whom_it_may_concern(&vec![seed; 1 + usize::from(seed) * 100]);
        let lane = RawLane::open_locally(&target, 5000 + u64::from(seed), 1);
        lane.unwrap().send_to_whom_it_may_concern(&vec![seed; 1 + usize::from(seed) * 100]);
    }
    let mut honest = start();
    honest.connect(&target);
    honest.fill(0..256, 1);
    assert!(honest.transfer(push(&target, 256)).is_done());
    target.assert_holds(0..256, 1);
    drop(honest);
    target.await_held("free", |held| {
        held.descriptors <= before.descriptors + 2 && held.lanes_accepted == 0
    });
}
