//! Everything is full: transfers to a peer, notifications that nobody takes, windows and sockets both
//! ways, those who follow a table; and what is asked for is more than was granted (LMCache#1215,
//! Mooncake#915). Whoever finds no room waits for a bounded time or is told so at once, by an error
//! that says that it may try again; nobody waits for somebody who waits for him.
//!
//! The bound on open transfers stands in `promises/ending`, notifications that find no room and are
//! sent again in `promises/order`, one who asks and does not listen in `promises/hostile`.

use std::time::{Duration, Instant};

use kvferry_proto::rpc::peer_client::PeerClient;
use kvferry_proto::rpc::{TableUpdate, WatchRequest};
use kvferry_tests::command::{Answer, Command, Move, Setup, Way};
use kvferry_tests::process::{Cache, Process, blocks, pull, push};
use kvferry_tests::proxy::Proxy;
use tonic::{Code, Streaming};

use super::hostile::control;

/// How much later than its deadline something may be seen to end: these machines are busy.
const SLACK: Duration = Duration::from_millis(800);

fn next(process: &mut Process, patience_ms: u64) -> Option<String> {
    match process.tell(&Command::NextNotification { patience_ms, seed: None }) {
        Answer::Notification { text, .. } => Some(text),
        _ => None,
    }
}

fn notifying(with: &Process, count: u32, text: &str) -> Move {
    Move { notify: Some(text.into()), ..push(with, count) }
}

#[test]
fn one_peer_that_fills_the_inbox_leaves_room_for_the_others() {
    let setup = Setup { notifications: Some(64), ..Setup::default() };
    let mut target = Process::start_with(setup, Cache::default());
    let mut greedy = Process::start();
    greedy.connect(&target);
    for index in 0..200 {
        let what = notifying(&target, index % 32, "greedy");
        greedy.submit(&index.to_string(), Move { deadline_ms: Some(60_000), ..what });
    }
    // The room that it can have is full, and it goes on asking.
    greedy.await_held("full", |held| held.transfers <= 200 - 32);
    for _ in 0..5 {
        let mut modest = Process::start();
        modest.connect(&target);
        let what = Move { deadline_ms: Some(3000), ..notifying(&target, 16, "modest") };
        assert!(modest.transfer(what).is_done());
    }
    let pending = greedy.held().transfers;
    assert!(pending > 100, "{pending} were to find no room");
    // All of it arrives, once there is somebody who takes it.
    let (mut greedy_count, mut modest_count) = (0, 0);
    while greedy_count + modest_count < 205 {
        match next(&mut target, 10_000).as_deref() {
            Some("greedy") => greedy_count += 1,
            Some("modest") => modest_count += 1,
            other => panic!("{other:?} after {greedy_count} and {modest_count}"),
        }
    }
    assert_eq!((greedy_count, modest_count), (200, 5));
    greedy.await_held("through", |held| held.transfers == 0);
}

#[test]
fn where_nobody_takes_notifications_who_sends_them_is_told_at_its_deadline() {
    let setup = Setup { notifications: Some(1), ..Setup::default() };
    let mut target = Process::start_with(setup, Cache::default());
    let mut initiator = Process::start();
    initiator.connect(&target);
    assert!(initiator.transfer(notifying(&target, 1, "first")).is_done());
    for count in [0, 1, 100] {
        let began = Instant::now();
        let what = Move { deadline_ms: Some(400), ..notifying(&target, count, "no room") };
        let end = initiator.transfer(what);
        assert_eq!(end.cause(), "Deadline", "{end:?}");
        assert!(end.is_retryable());
        assert!(began.elapsed() < Duration::from_millis(400) + SLACK, "{:?}", began.elapsed());
        // What carries none is not held up.
        assert!(initiator.transfer(push(&target, 200)).is_done());
    }
    assert_eq!(next(&mut target, 0).as_deref(), Some("first"));
    assert_eq!(next(&mut target, 100), None, "what was told to have failed does not come");
    assert!(initiator.transfer(notifying(&target, 100, "again")).is_done());
    assert_eq!(next(&mut target, 0).as_deref(), Some("again"));
}

#[test]
fn two_that_fill_each_other_and_take_nothing_meanwhile_do_not_wait_for_each_other_for_ever() {
    const OPEN: u64 = 8;
    let setup = || Setup { notifications: Some(1), open_transfers: Some(OPEN), ..Setup::default() };
    let mut left = Process::start_with(setup(), Cache::default());
    let mut right = Process::start_with(setup(), Cache::default());
    left.connect(&right);
    right.connect(&left);
    for index in 0..OPEN {
        let (name, count) = (index.to_string(), 8 + u32::try_from(index).unwrap() * 20);
        left.submit(&name, notifying(&right, count, &name));
        right.submit(&name, notifying(&left, count, &name));
    }
    // Both inboxes are full and one of each queue is through: neither program takes anything.
    for process in [&mut left, &mut right] {
        process.await_held("full", |held| held.transfers == 7);
    }
    left.submit("more", notifying(&right, 1, "more"));
    right.submit("more", notifying(&left, 1, "more"));
    for end in [left.transfer(push(&right, 1)), right.transfer(push(&left, 1))] {
        assert_eq!((end.cause(), end.remote()), ("Backpressure", "untouched"), "{end:?}");
        assert!(end.is_retryable());
    }
    for _ in 0..=OPEN {
        for process in [&mut left, &mut right] {
            assert!(next(process, 10_000).is_some());
        }
    }
    for process in [&mut left, &mut right] {
        for index in 0..OPEN {
            assert!(process.wait(&index.to_string(), Duration::from_secs(10)).is_done());
        }
        assert!(process.wait("more", Duration::from_secs(10)).is_done());
        assert_eq!(process.held().transfers, 0);
    }
}

#[test]
fn windows_and_sockets_that_are_full_both_ways_empty_again() {
    const COUNT: u32 = 8192;
    let cache = Cache { blocks: 2 * u64::from(COUNT), block_bytes: 4096, share: true };
    // More frames of answers than may wait on a lane before it is not read any more.
    let slice_bytes = Some(64 << 10);
    let setup = || Setup { bulk_lanes: Some(1), slice_bytes, ..Setup::default() };
    let proxies = [Proxy::start(), Proxy::start()];
    let mut left = Process::start_behind(&proxies[0], setup(), cache);
    let mut right = Process::start_behind(&proxies[1], setup(), cache);
    left.connect(&right);
    right.connect(&left);
    for process in [&mut left, &mut right] {
        process.await_held("connected", |held| (held.lanes_opened, held.lanes_accepted) == (2, 2));
    }
    left.fill(0..COUNT, 1);
    right.fill(COUNT..2 * COUNT, 2);
    for proxy in &proxies {
        proxy.hold_after(2_000_000);
        proxy.hold_replies_after(2_000_000);
    }
    // Each pushes its half to the other and pulls the other's: twice what a window takes, all at
    // once, and nothing moves.
    let upper = |with: &Process, way| blocks(way, with, COUNT..2 * COUNT);
    left.submit("push", push(&right, COUNT));
    left.submit("pull", upper(&right, Way::Pull));
    right.submit("push", upper(&left, Way::Push));
    right.submit("pull", pull(&left, COUNT));
    for proxy in &proxies {
        proxy.await_held();
    }
    for proxy in &proxies {
        proxy.release();
    }
    for process in [&mut left, &mut right] {
        for name in ["push", "pull"] {
            let end = process.wait(name, Duration::from_secs(20));
            assert!(end.is_done(), "{name}: {end:?}");
        }
        process.assert_holds(0..COUNT, 1);
        process.assert_holds(COUNT..2 * COUNT, 2);
    }
}

#[test]
fn more_than_was_granted_is_refused_at_once_and_less_goes_through() {
    let cache = Cache { share: false, ..Cache::default() };
    let mut d = Process::start_with(Setup::default(), cache);
    let mut p = Process::start();
    p.fill(0..256, 1);
    p.connect(&d);
    let ticket = Some(d.grant("g", 0..100, &p, true));
    let began = Instant::now();
    let end = p.transfer(Move { ticket: ticket.clone(), ..push(&d, 256) });
    assert_eq!((end.cause(), end.remote()), ("OutsideGrant", "untouched"), "{end:?}");
    assert!(began.elapsed() < SLACK, "{:?}", began.elapsed());
    assert!(p.transfer(Move { ticket, ..push(&d, 100) }).is_done());
    d.assert_holds(0..100, 1);
}

/// Follows a target's table as often as it lets one connection.
async fn watch(target: &Process, follow: usize) -> (usize, Vec<Streaming<TableUpdate>>) {
    let client = PeerClient::new(control(target).await);
    let (mut refused, mut watching) = (0, Vec::new());
    for _ in 0..follow {
        let request = WatchRequest { incarnation: target.incarnation, watcher: 7 };
        match client.clone().watch(request).await {
            Ok(stream) => watching.push(stream.into_inner()),
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                refused += 1;
            }
        }
    }
    (refused, watching)
}

#[test]
fn who_finds_too_many_following_a_table_is_told_so_and_gets_in_when_they_have_gone() {
    let mut target = Process::start();
    let mut initiator = Process::start();
    let before = target.held();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (refused, watching) = runtime.block_on(async {
        let (mut refused, mut watching) = (0, Vec::new());
        for _ in 0..22 {
            let (more_refused, more) = watch(&target, 190).await;
            refused += more_refused;
            watching.extend(more);
        }
        (refused, watching)
    });
    assert_eq!((refused, watching.len()), (22 * 190 - 4096, 4096));
    match initiator.tell(&Command::Connect { address: target.address.clone() }) {
        Answer::Error { cause, message, retryable } => {
            assert_eq!((cause.as_str(), retryable), ("Unreachable", true));
            assert!(message.contains("too many engines follow"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    let grown = target.held().resident_bytes.saturating_sub(before.resident_bytes);
    assert!(grown < 128 << 20, "{grown}");
    drop(watching);
    runtime.shutdown_background();
    target.await_held("left", |held| held.descriptors == before.descriptors);
    initiator.connect(&target);
    assert!(initiator.transfer(push(&target, 256)).is_done());
}
