//! What is particular to memory that is lent: who copies it, who may take it back and when, and that
//! nobody is believed.

use std::os::fd::AsFd;
use std::process::Command as Program;
use std::time::Duration;

use kvferry_proto::frame::{
    Control, Descriptor, Kind, Loan, Prefix, Reply, Request, SliceHead, Status,
};
use kvferry_proto::message::Ticket;
use kvferry_proto::{GrantId, RegionId, TransferId};
use kvferry_tests::command::{Answer, Command, End, Move, Setup, Way};
use kvferry_tests::process::{Cache, Process, blocks, over, pull, push};
use kvferry_tests::skip;
use kvferry_tests::wire::RawLane;
use kvferry_transport::memory::Memory;

use super::{OVER, start, start_with};

/// A revocation waits for one piece of a copy at most. The rest is for the way to the process.
const AT_ONCE: Duration = Duration::from_millis(500);

/// Blocks of a cache that takes a while to copy: 32 MiB.
const COUNT: u32 = 512;

fn large(share: bool) -> Cache {
    Cache { blocks: COUNT.into(), block_bytes: 64 << 10, share }
}

fn pairs(blocks: std::ops::Range<u32>) -> Vec<(u32, u32)> {
    blocks.map(|block| (block, block)).collect()
}

/// As much as a slice takes: a copy that is stopped is stopped in the middle of one.
fn large_slices() -> Setup {
    Setup { slice_bytes: Some(16 << 20), ..Setup::default() }
}

/// The first and the last block of each such slice.
const EDGES: [u32; 4] = [0, 255, 256, 511];

/// Which of the edges do not hold `seed` yet. Asked so, because to look at all blocks takes longer
/// than to copy them.
fn missing(process: &mut Process, seed: u64) -> Vec<u32> {
    process.wrong(&EDGES.map(|block| (block, block)), seed)
}

/// Whether a slice has begun to land and its end has not.
fn is_in_the_middle(missing: &[u32]) -> bool {
    [(0, 255), (256, 511)]
        .iter()
        .any(|(first, last)| !missing.contains(first) && missing.contains(last))
}

/// Rounds until what is to be met in the middle was; far more than are needed.
const ROUNDS: u32 = 300;

#[test]
fn a_target_that_revokes_while_it_copies_keeps_its_blocks() {
    let mut target = start_with(Setup::default(), large(false));
    let mut initiator = start_with(large_slices(), large(false));
    initiator.connect(&target);
    initiator.fill(0..COUNT, 1);
    let mut met = false;
    for round in 0..ROUNDS {
        let ticket = Some(target.grant("g", 0..COUNT, &initiator, true));
        target.fill(0..COUNT, 2);
        initiator.submit("t", Move { ticket, ..push(&target, COUNT) });
        std::thread::sleep(Duration::from_micros(u64::from(round % 20) * 200));
        let took = target.revoke("g");
        assert!(took < AT_ONCE, "{took:?}");
        let missed = missing(&mut target, 1);
        let end = initiator.wait("t", Duration::from_secs(20));
        assert_eq!(missing(&mut target, 1), missed, "more has landed since");
        match end {
            End::Done { .. } => assert_eq!(missed, [0_u32; 0], "done means there"),
            _ => assert_eq!((end.cause(), end.remote()), ("Refused", "fenced"), "{end:?}"),
        }
        met = is_in_the_middle(&missed);
        if met {
            break;
        }
    }
    assert!(met, "never in the middle of a copy");
    // The lane is none the worse.
    let again = Some(target.grant("again", 0..COUNT, &initiator, true));
    assert!(initiator.transfer(Move { ticket: again, ..push(&target, COUNT) }).is_done());
    target.assert_holds(0..COUNT, 1);
}

#[test]
fn a_source_that_is_taken_back_while_it_is_copied_is_never_reported_done() {
    let mut source = start_with(Setup::default(), large(false));
    let mut reader = start_with(Setup::default(), large(false));
    reader.connect(&source);
    let mut met = false;
    for round in 0..ROUNDS {
        source.fill(0..COUNT, 1);
        let ticket = Some(source.grant("g", 0..COUNT, &reader, false));
        reader.submit("t", Move { ticket, ..pull(&source, COUNT) });
        std::thread::sleep(Duration::from_micros(u64::from(round % 20) * 500));
        assert!(source.revoke("g") < AT_ONCE);
        source.fill(0..COUNT, 2);
        let end = reader.wait("t", Duration::from_secs(20));
        match end.cause() {
            "SourceReleased" => met = true,
            "Refused" => {}
            _ => {
                assert!(end.is_done(), "{end:?}");
                reader.assert_holds(0..COUNT, 1);
            }
        }
        if met {
            break;
        }
    }
    assert!(met, "never in the middle of a copy");
}

#[test]
fn a_reader_whose_transfer_has_ended_copies_no_more_of_it() {
    let mut source = start_with(Setup::default(), large(true));
    let mut reader = start_with(large_slices(), large(true));
    reader.connect(&source);
    source.fill(0..COUNT, 1);
    let mut met = false;
    for round in 0..ROUNDS {
        reader.fill(0..COUNT, 2);
        reader.submit("t", pull(&source, COUNT));
        std::thread::sleep(Duration::from_micros(u64::from(round % 20) * 200));
        assert!(matches!(reader.tell(&Command::Cancel { name: "t".into() }), Answer::Ok));
        let end = reader.wait("t", Duration::from_secs(20));
        // From its end on the blocks are the reader's alone.
        let missed = missing(&mut reader, 1);
        assert!(end.is_done() || end.cause() == "Cancelled", "{end:?}");
        met = is_in_the_middle(&missed);
        if met {
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(missing(&mut reader, 1), missed, "more has landed since");
            break;
        }
    }
    assert!(met, "never in the middle of a copy");
    assert!(reader.transfer(pull(&source, COUNT)).is_done());
    reader.assert_holds(0..COUNT, 1);
}

#[test]
fn a_target_that_wakes_after_the_deadline_copies_nothing_of_what_has_changed_since() {
    let mut target = start_with(Setup::default(), large(true));
    let mut initiator = start_with(Setup::default(), large(true));
    initiator.connect(&target);
    target.fill(0..COUNT, 9);
    initiator.fill(0..COUNT, 1);
    target.stop();
    let what = Move { deadline_ms: Some(400), ..push(&target, COUNT) };
    let end = initiator.transfer(Move { notify: Some("there".into()), ..what });
    assert_eq!((end.cause(), end.remote()), ("Deadline", "unknown"), "{end:?}");
    // The source is free to change, and what the target would copy now is not what was asked for.
    initiator.fill(0..COUNT, 2);
    target.wake();
    initiator.connect(&target);
    assert!(initiator.transfer(Move { notify: Some("next".into()), ..push(&target, 0) }).is_done());
    let next = target.tell(&Command::NextNotification { patience_ms: 10_000, seed: None });
    assert!(matches!(next, Answer::Notification { text, .. } if text == "next"));
    assert_eq!(target.wrong(&pairs(0..COUNT), 2).len(), COUNT as usize);
}

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
fn a_region_that_is_unregistered_while_it_is_copied_ends_its_transfers_and_harms_nobody() {
    for round in 0..8_u32 {
        let mut target = start_with(Setup::default(), large(true));
        let mut initiator = start_with(Setup::default(), large(true));
        initiator.connect(&target);
        initiator.fill(0..COUNT, 1);
        let way = if round % 2 == 0 { Way::Push } else { Way::Pull };
        initiator.submit("t", blocks(way, &target, 0..COUNT));
        std::thread::sleep(Duration::from_micros(u64::from(round) * 400));
        // At the initiator, whose transfer it is; or at the target, which serves it.
        let owner = if round % 4 < 2 { &mut initiator } else { &mut target };
        assert!(matches!(owner.tell(&Command::Unregister { patience_ms: 0 }), Answer::Cut { .. }));
        let end = initiator.wait("t", Duration::from_secs(20));
        let expected = ["RegionWithdrawn", "Refused", "SourceReleased"].contains(&end.cause());
        assert!(expected || end.is_done(), "{end:?}");
        assert!(initiator.held().memfds <= 2 && target.held().memfds <= 2);
    }
}

#[test]
fn a_process_that_is_killed_in_the_middle_of_a_copy_takes_nobody_with_it() {
    for round in 0..8_u32 {
        let mut target = start_with(Setup::default(), large(true));
        let mut initiator = start_with(Setup::default(), large(true));
        initiator.connect(&target);
        let way = if round % 2 == 0 { Way::Push } else { Way::Pull };
        initiator.submit("t", blocks(way, &target, 0..COUNT));
        std::thread::sleep(Duration::from_micros(u64::from(round) * 500));
        if round % 4 < 2 {
            // Whose memory is copied from, or to: it lives on in the other's mapping until that
            // finds the lane closed.
            initiator.kill();
            target.await_held("given back", |held| held.lanes_accepted == 0 && held.memfds == 1);
        } else {
            target.kill();
            let end = initiator.wait("t", Duration::from_secs(20));
            assert!(end.is_done() || end.cause() == "Unreachable", "{end:?}");
            initiator.await_held("given back", |held| held.lanes_opened == 0 && held.memfds == 1);
        }
    }
}

#[test]
fn notifications_never_overtake_what_is_copied() {
    let mut target = start_with(Setup::default(), large(true));
    let mut initiator = start_with(Setup::default(), large(true));
    initiator.connect(&target);
    for round in 0..5 {
        target.fill(0..COUNT, 99);
        initiator.fill(0..COUNT, round);
        let text: String = (0..COUNT).map(|block| format!("{block}:{block} ")).collect();
        // As soon as the push is done its source is changed.
        assert!(initiator.transfer(Move { notify: Some(text), ..push(&target, COUNT) }).is_done());
        initiator.fill(0..COUNT, 1000 + round);
        match target.tell(&Command::NextNotification { patience_ms: 10_000, seed: Some(round) }) {
            Answer::Notification { wrong, .. } => assert_eq!(wrong, [0_u32; 0], "round {round}"),
            other => panic!("{other:?}"),
        }
    }
}

/// Runs what follows it in namespaces of its own, as a container runtime does.
fn contained(arguments: &[&str]) -> Result<(), String> {
    let able = Program::new("unshare").args(arguments).arg("true").output();
    match able {
        Ok(output) if output.status.success() => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

#[test]
fn processes_in_different_pid_namespaces_meet_where_they_share_the_run_directory() {
    const OWN_PIDS: [&str; 6] =
        ["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"];
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

/// A process of which everything is granted to a made-up initiator, and what that needs to write.
fn granted_to(initiator: u64) -> (Process, GrantId, RegionId) {
    let cache = Cache { blocks: 8, block_bytes: 4096, share: false };
    let mut target = start_with(Setup::default(), cache);
    target.fill(0..8, 5);
    let grant = Command::Grant {
        name: "g".into(),
        blocks: 0..8,
        peer: initiator,
        write: true,
        ttl_ms: 60_000,
    };
    let Answer::Ticket(ticket) = target.tell(&grant) else { panic!("no ticket") };
    let ticket = Ticket::decode(&ticket).unwrap();
    (target, ticket.grant, ticket.spans[0].region)
}

/// A write of a block from a region of the initiator's, at an offset there.
fn write_lent(
    transfer: u64,
    (grant, region): (GrantId, RegionId),
    (source, offset): (RegionId, u64),
) -> Vec<u8> {
    let head = SliceHead {
        transfer: TransferId(transfer),
        floor: TransferId(1),
        slice: 0,
        remaining_us: 10_000_000,
        crc32c: 0,
    };
    let span = |offset| Descriptor { offset, bytes: 4096, count: 1, stride: 0 };
    let mut frame = Vec::new();
    head.encode_by_reference(
        &mut frame,
        true,
        |writer| writer.push(grant, region, span(0)),
        |writer| writer.push(GrantId(0), source, span(offset)),
    );
    frame
}

const LENT: RegionId = RegionId { slot: 4, generation: 2 };

fn lend(length: u64) -> Vec<u8> {
    let mut frame = Vec::new();
    Request::encode_lend(&mut frame, Loan { region: LENT, length });
    frame
}

fn ack(transfer: u64, status: Status) -> Reply {
    Reply::Ack { transfer: TransferId(transfer), slice: 0, status }
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
