//! One id for two things: used twice at once, again after its end, or never known to the other side
//! (vllm#34278, sglang#40125).
//!
//! That a slice which is repeated after its notification is not stored again, and that a cancelled
//! number is fenced before its first slice arrives, stands in `promises/fence`; guessed grants and
//! older generations stand in `promises/ownership`.

use std::time::{Duration, Instant};

use kvferry_proto::frame::{Control, Reply, Request, Status};
use kvferry_proto::{GrantId, LaneId, RegionId, TransferId};
use kvferry_tests::command::{Answer, Command, Setup, Way};
use kvferry_tests::process::{Cache, Process, blocks, push};
use kvferry_tests::proxy::Proxy;
use kvferry_tests::wire::{RawLane, grant, granted_to, write_frame, write_frame_with};

/// Memory that ids without a meaning may cost, over what was held before.
const GROWTH_BYTES: u64 = 32 << 20;

const BLOCK: usize = 4096;

fn ack(transfer: u64, status: Status) -> Reply {
    Reply::Ack { transfer: TransferId(transfer), slice: 0, status }
}

fn notification(target: &mut Process) -> Option<String> {
    match target.tell(&Command::NextNotification { patience_ms: 100, seed: None }) {
        Answer::Notification { text, .. } => Some(text),
        _ => None,
    }
}

/// What a target says to a notification of its own frame.
fn notify(lane: &mut RawLane, transfer: u64, floor: u64) -> Status {
    let mut frame = Vec::new();
    Request::encode_notify(&mut frame, TransferId(transfer), TransferId(floor), b"ready");
    lane.send(&frame);
    match lane.reply() {
        Reply::Notified { status, .. } => status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_id_that_is_used_twice_at_once_is_refused_and_its_first_use_arrives() {
    let (mut target, ticket) = granted_to(77);
    let region = ticket.spans[0].region;
    target.fill(0..8, 5);
    let mut first = RawLane::open(&target, 77, 1).unwrap();
    let mut second = RawLane::open(&target, 77, 2).unwrap();
    let frame = write_frame(1, ticket.grant, region, 0, &[1; BLOCK]);
    let (now, later) = frame.split_at(frame.len() - 100);
    first.send(now);
    // Most of it has landed: the target is in the middle of the first use.
    let began = Instant::now();
    while target.wrong(&[(0, 0)], 5).is_empty() {
        assert!(began.elapsed() < Duration::from_secs(10), "nothing lands");
    }

    let again = write_frame_with(1, 1, ticket.grant, region, 4096, &[2; BLOCK], Some(b"ready"));
    second.send(&again);
    assert_eq!(second.reply(), ack(1, Status::InUse));
    assert_eq!(notify(&mut second, 1, 1), Status::InUse, "its data is not there yet");
    target.assert_holds(1..8, 5);
    assert_eq!(notification(&mut target), None);
    assert_eq!(target.held().refused, 2);

    first.send(later);
    assert_eq!(first.reply(), ack(1, Status::Done));
    assert_eq!(notify(&mut second, 1, 1), Status::Done);
    assert_eq!(notification(&mut target).as_deref(), Some("ready"));
    // The lane of the second use is none the worse.
    second.send(&write_frame(2, ticket.grant, region, 4096, &[2; BLOCK]));
    assert_eq!(second.reply(), ack(2, Status::Done));
}

#[test]
fn an_id_that_is_used_again_after_its_end_stores_and_announces_nothing() {
    let (mut target, ticket) = granted_to(77);
    let region = ticket.spans[0].region;
    let mut lane = RawLane::open(&target, 77, 1).unwrap();
    let slice = |id, floor| {
        write_frame_with(id, floor, ticket.grant, region, 0, &[1; BLOCK], Some(b"ready"))
    };
    lane.send(&slice(1, 1));
    assert_eq!(lane.reply(), ack(1, Status::Done));
    assert_eq!(notification(&mut target).as_deref(), Some("ready"));
    // The next one says that everything before it has ended.
    lane.send(&slice(2, 2));
    assert_eq!(lane.reply(), ack(2, Status::Done));
    assert_eq!(notification(&mut target).as_deref(), Some("ready"));
    target.fill(0..8, 5);

    for id in [0, 1] {
        lane.send(&slice(id, id));
        assert_eq!(lane.reply(), ack(id, Status::Cancelled));
        assert_eq!(notify(&mut lane, id, id), Status::Cancelled);
    }
    assert_eq!(notification(&mut target), None);
    assert_eq!(target.held().refused, 4);
    target.assert_holds(0..8, 5);
}

#[test]
fn equal_ids_of_two_initiators_or_of_both_directions_have_nothing_to_do_with_each_other() {
    let (mut target, ticket) = granted_to(77);
    let theirs = grant(&mut target, "theirs", 78, 4..8);
    let region = ticket.spans[0].region;
    let mut one = RawLane::open(&target, 77, 1).unwrap();
    let mut other = RawLane::open(&target, 78, 1).unwrap();
    let frame = write_frame(1, ticket.grant, region, 0, &[1; BLOCK]);
    let (now, later) = frame.split_at(frame.len() - 100);
    one.send(now);
    // The other ends, cancels and fences what has the same numbers.
    other.send(&write_frame(1, theirs.grant, region, 16_384, &[2; BLOCK]));
    assert_eq!(other.reply(), ack(1, Status::Done));
    let transfer = TransferId(1);
    let mut controls = Vec::new();
    Control::Cancel { transfer, floor: TransferId(5) }.encode(&mut controls);
    Control::FenceLane { lane: LaneId(1) }.encode(&mut controls);
    other.send(&controls);
    assert_eq!(other.reply(), Reply::Cancelled { transfer });
    one.send(later);
    assert_eq!(one.reply(), ack(1, Status::Done));

    // And two engines that transfer to each other both begin with number 1.
    let (mut p, mut d) = (Process::start(), Process::start());
    p.connect(&d);
    d.connect(&p);
    p.fill(0..128, 1);
    d.fill(128..256, 2);
    let upper = |with: &Process| blocks(Way::Push, with, 128..256);
    for _ in 0..20 {
        p.submit("t", push(&d, 128));
        d.submit("t", upper(&p));
        for process in [&mut p, &mut d] {
            assert!(process.wait("t", Duration::from_secs(10)).is_done());
        }
    }
    d.assert_holds(0..128, 1);
    p.assert_holds(128..256, 2);
}

#[test]
fn a_hundred_thousand_ids_that_never_match_are_counted_and_cost_nothing() {
    const EACH: u64 = 20_000;
    let mut target = Process::start();
    let mut honest = Process::start();
    honest.connect(&target);
    honest.fill(0..256, 1);
    let before = target.held();
    let mut lane = RawLane::open(&target, 77, 1).unwrap();
    let region = RegionId { slot: 0, generation: 1 };
    let nobody = |id: u64| GrantId::new(u32::try_from(id).unwrap(), 12_345);
    let floor = TransferId(1);
    for id in 1..=EACH {
        let (transfer, cancelled) = (TransferId(2 * id + 1), TransferId(2 * id));
        let grant = nobody(id);
        let mut frames =
            write_frame_with(transfer.0, 1, grant, region, 0, &[1; 64], Some(b"no grant"));
        Control::Cancel { transfer: cancelled, floor }.encode(&mut frames);
        Control::FenceLane { lane: LaneId(u32::try_from(id).unwrap() + 9) }.encode(&mut frames);
        Control::Ping { nonce: id, floor }.encode(&mut frames);
        Request::encode_notify(&mut frames, cancelled, floor, b"cancelled before");
        lane.send(&frames);
        let refused = Reply::Ack { transfer, slice: 0, status: Status::GrantGone };
        assert_eq!(lane.reply(), refused);
        for _ in 0..4 {
            lane.reply();
        }
        if id % (EACH / 10) == 0 {
            assert!(honest.transfer(push(&target, 256)).is_done());
        }
    }
    target.assert_holds(0..256, 1);
    assert_eq!(notification(&mut target), None);
    let after = target.held();
    assert_eq!(after.refused - before.refused, 2 * EACH);
    let grown = after.resident_bytes.saturating_sub(before.resident_bytes);
    assert!(grown < GROWTH_BYTES, "{grown}");
}

#[test]
fn answers_that_match_nothing_are_counted_and_the_transfers_under_way_unharmed() {
    const EACH: u64 = 20_000;
    let proxy = Proxy::start();
    let cache = Cache { blocks: 1024, ..Cache::default() };
    let mut target = Process::start_behind(&proxy, Setup::default(), cache);
    let mut initiator = Process::start_with(Setup::default(), cache);
    initiator.connect(&target);
    initiator.await_held("connected", |held| held.lanes_opened == 2);
    initiator.fill(0..1024, 1);
    let before = initiator.held();
    // Under way, and not answered meanwhile.
    proxy.hold_after(600_000);
    initiator.submit("t", push(&target, 1024));
    proxy.await_held();
    for id in 0..EACH {
        let mut frames = Vec::new();
        // Of transfers that are over, that never were, and of slices that the one under way lacks.
        let (transfer, slice, status) = (TransferId(2 + id), 0, Status::Done);
        Reply::Ack { transfer, slice, status }.encode_plain(&mut frames);
        Reply::Ack { transfer: TransferId(1), slice: 4 + slice, status }.encode_plain(&mut frames);
        Reply::Held { transfer, slice, status }.encode_plain(&mut frames);
        Reply::Notified { transfer, status }.encode_plain(&mut frames);
        Reply::Cancelled { transfer: TransferId(1) }.encode_plain(&mut frames);
        Reply::LaneFenced { lane: LaneId(1) }.encode_plain(&mut frames);
        proxy.say_back(&frames);
    }
    // The data of a read that nobody asked for.
    let mut data = Vec::new();
    Reply::Data { transfer: TransferId(9), slice: 0, crc32c: 0 }.encode(&mut data, 1000, false);
    data.extend_from_slice(&[7; 1000]);
    proxy.say_back(&data);
    initiator.await_held("counted", |held| held.stale >= before.stale + 2 * 6 * EACH);
    proxy.release();
    assert!(initiator.wait("t", Duration::from_secs(20)).is_done());
    target.assert_holds(0..1024, 1);
    let grown = initiator.held().resident_bytes.saturating_sub(before.resident_bytes);
    assert!(grown < GROWTH_BYTES, "{grown}");
    assert_eq!(proxy.accepted(), 2, "no lane was given up");
}
