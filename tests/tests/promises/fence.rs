//! Promise 3: each end fences its own memory.

use std::time::{Duration, Instant};

use kvferry_proto::frame::{Control, Reply, Status};
use kvferry_proto::{LaneId, TransferId};
use kvferry_tests::command::{Answer, Command, Move, Setup, Way};
use kvferry_tests::process::{Cache, Process, blocks, pull, push};
use kvferry_tests::proxy::Proxy;
use kvferry_tests::wire::{RawLane, granted_to, write_frame, write_frame_with};

/// Nothing that a peer does holds up a revocation: it takes a system call's time. The rest is for
/// the way to the process and back.
const AT_ONCE: Duration = Duration::from_millis(500);

const COUNT: u32 = 1024;

/// A process behind a proxy that can hold back what goes to it.
fn behind(proxy: &Proxy, share: bool) -> Process {
    let cache = Cache { blocks: COUNT.into(), block_bytes: 4096, share };
    Process::start_behind(proxy, Setup::default(), cache)
}

fn beside() -> Process {
    let cache = Cache { blocks: COUNT.into(), ..Cache::default() };
    Process::start_with(Setup::default(), cache)
}

#[test]
fn a_target_that_revokes_keeps_its_blocks_though_the_writer_wakes_later() {
    let proxy = Proxy::start();
    let mut target = behind(&proxy, false);
    let mut initiator = beside();
    initiator.connect(&target);
    initiator.await_held("connected", |held| held.lanes_opened == 2);
    initiator.fill(0..COUNT, 1);
    let ticket = Some(target.grant("g", 0..COUNT, &initiator, true));

    // Half a slice arrives, then nothing: the writer is stopped in the middle of it.
    proxy.hold_after(600_000);
    initiator.submit("t", Move { ticket, ..push(&target, COUNT) });
    proxy.await_held();
    initiator.stop();
    // The writer was stopped in mid-write once some blocks are there.
    let began = Instant::now();
    while target.wrong(&pairs(0..COUNT), 1).len() > COUNT as usize - 10 {
        assert!(began.elapsed() < Duration::from_secs(10), "nothing arrives of what was sent");
    }

    let took = target.revoke("g");
    assert!(took < AT_ONCE, "{took:?}");
    target.fill(0..COUNT, 2);

    // The blocks are somebody else's now. The writer wakes and goes on.
    proxy.release();
    initiator.wake();
    let end = initiator.wait("t", Duration::from_secs(20));
    assert_eq!((end.cause(), end.remote()), ("Refused", "fenced"), "{end:?}");
    target.assert_holds(0..COUNT, 2);
    // The lane is none the worse.
    let again = Some(target.grant("again", 0..COUNT, &initiator, true));
    assert!(initiator.transfer(Move { ticket: again, ..push(&target, COUNT) }).is_done());
    target.assert_holds(0..COUNT, 1);
}

fn pairs(blocks: std::ops::Range<u32>) -> Vec<(u32, u32)> {
    blocks.map(|block| (block, block)).collect()
}

#[test]
fn an_expired_grant_stops_a_write_in_its_middle() {
    let proxy = Proxy::start();
    let mut target = behind(&proxy, false);
    let mut initiator = beside();
    initiator.connect(&target);
    initiator.await_held("connected", |held| held.lanes_opened == 2);
    initiator.fill(0..COUNT, 1);
    let ticket =
        target.grant_to("g", 0..COUNT, initiator.incarnation, true, Duration::from_millis(1500));
    proxy.hold_after(600_000);
    initiator.submit("t", Move { ticket: Some(ticket), ..push(&target, COUNT) });
    proxy.await_held();
    std::thread::sleep(Duration::from_millis(1600));
    target.fill(0..COUNT, 2);
    proxy.release();
    let end = initiator.wait("t", Duration::from_secs(20));
    assert_eq!((end.cause(), end.remote()), ("Refused", "fenced"), "{end:?}");
    target.assert_holds(0..COUNT, 2);
}

#[test]
fn a_writer_that_times_out_and_reuses_its_memory_sends_none_of_the_new_bytes() {
    reuse_after_the_deadline(Cache { blocks: COUNT.into(), ..Cache::default() });
}

#[test]
fn a_writer_that_times_out_and_reuses_pages_that_it_has_sent_sends_none_of_the_new_bytes() {
    reuse_after_the_deadline(Cache { blocks: 128, block_bytes: 64 << 10, share: true });
}

fn reuse_after_the_deadline(cache: Cache) {
    let mut target = Process::start_with(Setup::default(), cache);
    let mut initiator = Process::start_with(Setup::default(), cache);
    let count = u32::try_from(cache.blocks).unwrap();
    initiator.connect(&target);
    initiator.fill(0..count, 1);
    target.fill(0..count, 9);
    target.stop();
    let end = initiator.transfer(Move { deadline_ms: Some(400), ..push(&target, count) });
    assert_eq!((end.cause(), end.remote()), ("Deadline", "unknown"), "{end:?}");
    // The caller was told the end: the memory is its own again.
    initiator.fill(0..count, 2);
    // Its lane is reset on another thread, a moment later.
    target.await_unread(4096);
    target.wake();
    // Whatever is still in the target's sockets is taken out of them before this is through.
    assert!(initiator.transfer(Move { notify: Some("x".into()), ..push(&target, 0) }).is_done());
    let old = target.wrong(&pairs(0..count), 9).len();
    let new = usize::try_from(cache.blocks).expect("a count of blocks")
        - target.wrong(&pairs(0..count), 2).len();
    assert_eq!(new, 0, "blocks with bytes from after the end");
    // The lanes were reset, so what was queued for the stopped target was dropped, too.
    assert_eq!(old, 0, "blocks that were written after the end");
}

#[test]
fn a_reader_that_times_out_gets_nothing_into_its_memory_any_more() {
    let proxy = Proxy::start();
    let mut source = behind(&proxy, true);
    let mut initiator = beside();
    initiator.connect(&source);
    source.fill(0..COUNT, 1);
    source.stop();
    let end = initiator.transfer(Move { deadline_ms: Some(400), ..pull(&source, COUNT) });
    assert_eq!(end.cause(), "Deadline", "{end:?}");
    initiator.fill(0..COUNT, 2);
    source.wake();
    // Everything that was asked for is answered before this is.
    assert!(initiator.transfer(Move { notify: Some("x".into()), ..push(&source, 0) }).is_done());
    initiator.assert_holds(0..COUNT, 2);
    assert!(initiator.transfer(pull(&source, COUNT)).is_done());
    initiator.assert_holds(0..COUNT, 1);
}

#[test]
fn a_reader_whose_time_is_up_in_the_middle_of_a_slice_gets_nothing_more_either() {
    let proxy = Proxy::start();
    let mut source = behind(&proxy, true);
    let mut initiator = beside();
    initiator.connect(&source);
    initiator.await_held("connected", |held| held.lanes_opened == 2);
    source.fill(0..COUNT, 1);
    proxy.hold_replies_after(600_000);
    initiator.submit("t", Move { deadline_ms: Some(700), ..pull(&source, COUNT) });
    proxy.await_held();
    let end = initiator.wait("t", Duration::from_secs(5));
    assert_eq!(end.cause(), "Deadline", "{end:?}");
    assert!(initiator.wrong(&pairs(0..COUNT), 1).len() < COUNT as usize, "some had landed");
    initiator.fill(0..COUNT, 2);
    proxy.release();
    assert!(initiator.transfer(blocks(Way::Pull, &source, 0..1)).is_done());
    std::thread::sleep(Duration::from_millis(200));
    initiator.assert_holds(1..COUNT, 2);
    initiator.assert_holds(0..1, 1);
}

#[test]
fn a_source_that_is_released_in_the_middle_of_a_read_is_never_reported_done() {
    // One slice, and more than the sockets take, so that the source is in the middle of it.
    const LARGE: u32 = 256;
    let cache = Cache { blocks: LARGE.into(), block_bytes: 64 << 10, share: false };
    let proxy = Proxy::start();
    let mut source = Process::start_behind(&proxy, Setup::default(), cache);
    let setup = Setup { slice_bytes: Some(16 << 20), ..Setup::default() };
    let mut reader = Process::start_with(setup, cache);
    reader.connect(&source);
    reader.await_held("connected", |held| held.lanes_opened == 2);
    source.fill(0..LARGE, 1);
    let ticket = source.grant("g", 0..LARGE, &reader, false);
    proxy.hold_replies_after(600_000);
    reader.submit("t", Move { ticket: Some(ticket), ..pull(&source, LARGE) });
    proxy.await_held();
    reader.stop();
    // The source gives up on the reader and takes its memory back.
    assert!(source.revoke("g") < AT_ONCE);
    source.fill(0..LARGE, 2);
    reader.wake();
    proxy.release();
    let end = reader.wait("t", Duration::from_secs(20));
    assert_eq!(end.cause(), "SourceReleased", "{end:?}");
}

#[test]
fn a_source_that_is_released_while_its_pages_wait_for_the_reader_is_never_reported_done() {
    // One slice, all of which the sockets take: its pages, and not a copy of them.
    const LARGE: u32 = 16;
    let cache = Cache { blocks: LARGE.into(), block_bytes: 64 << 10, share: false };
    let proxy = Proxy::start();
    let mut source = Process::start_behind(&proxy, Setup::default(), cache);
    let mut reader = Process::start_with(Setup::default(), cache);
    reader.connect(&source);
    reader.await_held("connected", |held| held.lanes_opened == 2);
    source.fill(0..LARGE, 1);
    let ticket = source.grant("g", 0..LARGE, &reader, false);
    proxy.hold_replies_after(300_000);
    reader.submit("t", Move { ticket: Some(ticket), ..pull(&source, LARGE) });
    proxy.await_held();
    assert!(source.revoke("g") < AT_ONCE);
    source.fill(0..LARGE, 2);
    proxy.release();
    let end = reader.wait("t", Duration::from_secs(20));
    assert_eq!(end.cause(), "SourceReleased", "{end:?}");
    // The lane is none the worse.
    let again = source.grant("again", 0..LARGE, &reader, false);
    assert!(reader.transfer(Move { ticket: Some(again), ..pull(&source, LARGE) }).is_done());
    reader.assert_holds(0..LARGE, 2);
}

#[test]
fn what_is_cancelled_is_fenced_at_the_target() {
    let proxy = Proxy::start();
    let mut target = behind(&proxy, true);
    let mut initiator = beside();
    initiator.connect(&target);
    initiator.await_held("connected", |held| held.lanes_opened == 2);
    initiator.fill(0..COUNT, 1);
    proxy.hold_after(600_000);
    initiator.submit("t", push(&target, COUNT));
    proxy.await_held();
    // The bulk lane is held in the middle of a slice; the cancel goes by the other.
    assert!(matches!(initiator.tell(&Command::Cancel { name: "t".into() }), Answer::Ok));
    let end = initiator.wait("t", Duration::from_secs(5));
    assert_eq!((end.cause(), end.remote()), ("Cancelled", "fenced"), "{end:?}");
    // Confirmed: from now on the blocks are the target's alone, also when the rest arrives.
    target.fill(0..COUNT, 2);
    proxy.release();
    assert!(initiator.transfer(Move { notify: Some("x".into()), ..push(&target, 0) }).is_done());
    std::thread::sleep(Duration::from_millis(100));
    target.assert_holds(0..COUNT, 2);
    assert!(initiator.transfer(blocks(Way::Push, &target, 0..10)).is_done());
    target.assert_holds(0..10, 1);
}

#[test]
fn a_slice_that_is_repeated_after_its_notification_is_not_stored_again() {
    let (mut target, ticket) = granted_to(77);
    let region = ticket.spans[0].region;
    let frame = write_frame_with(1, 1, ticket.grant, region, 0, &[1; 4096], Some(b"there"));
    let done = Reply::Ack { transfer: TransferId(1), slice: 0, status: Status::Done };
    let mut lane = RawLane::open(&target, 77, 1).unwrap();
    lane.send(&frame);
    assert_eq!(lane.reply(), done);
    // The acknowledgement is lost with its lane. The program was told, and goes on.
    target.fill(0..8, 5);
    let mut other = RawLane::open(&target, 77, 2).unwrap();
    let mut fence = Vec::new();
    Control::FenceLane { lane: LaneId(1) }.encode(&mut fence);
    other.send(&fence);
    assert_eq!(other.reply(), Reply::LaneFenced { lane: LaneId(1) });
    other.send(&frame);
    assert_eq!(other.reply(), done);
    target.assert_holds(0..8, 5);
    let next = |target: &mut Process| {
        target.tell(&Command::NextNotification { patience_ms: 100, seed: None })
    };
    assert!(matches!(next(&mut target), Answer::Notification { .. }));
    assert!(matches!(next(&mut target), Answer::Nothing));
}

#[test]
fn what_is_cancelled_before_its_first_slice_arrives_is_fenced_whatever_its_number() {
    let (mut target, ticket) = granted_to(78);
    target.fill(0..8, 5);
    let (mut express, mut bulk) =
        (RawLane::open(&target, 78, 1).unwrap(), RawLane::open(&target, 78, 2).unwrap());
    let (number, transfer) = (10_000_000, TransferId(10_000_000));
    let mut cancel = Vec::new();
    Control::Cancel { transfer, floor: transfer }.encode(&mut cancel);
    express.send(&cancel);
    assert_eq!(express.reply(), Reply::Cancelled { transfer });
    bulk.send(&write_frame(number, ticket.grant, ticket.spans[0].region, 0, &[1; 4096]));
    assert_eq!(bulk.reply(), Reply::Ack { transfer, slice: 0, status: Status::Cancelled });
    target.assert_holds(0..8, 5);
}
