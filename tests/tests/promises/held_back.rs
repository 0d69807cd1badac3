//! Promises 2 and 10 where bytes are held on their way: transfers end, and nothing is kept of them.

use std::time::{Duration, Instant};

use kvferry_tests::command::Setup;
use kvferry_tests::process::{Cache, Process, bare, pull, push};
use kvferry_tests::proxy::Proxy;

use super::nothing_held::{assert_as_before, shut_down};

/// A target and an initiator, and between them a proxy that lets little through.
fn held_back() -> (Proxy, Process, Process) {
    let proxy = Proxy::start();
    let cache = Cache { blocks: 4096, ..Cache::default() };
    let target = Process::start_behind(&proxy, Setup::default(), cache);
    let mut initiator = Process::start_with(Setup::default(), cache);
    initiator.connect(&target);
    proxy.hold_after(300);
    (proxy, target, initiator)
}

#[test]
fn a_transfer_ends_within_seconds_when_the_peer_is_killed() {
    for build in [push, pull] {
        let (proxy, mut target, mut initiator) = held_back();
        initiator.submit("t", build(&target, 4096));
        proxy.await_held();
        target.kill();
        let began = Instant::now();
        let end = initiator.wait("t", Duration::from_secs(20));
        assert_eq!(end.cause(), "Unreachable", "{end:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        proxy.release();
        initiator.await_held("given back", |held| held.transfers == 0 && held.lanes_opened == 0);
    }
}

#[test]
fn a_process_holds_nothing_after_shutdown_with_work_in_flight_and_in_bounded_time() {
    let before = bare();
    for build in [push, pull] {
        let (proxy, mut target, mut initiator) = held_back();
        for index in 0..20 {
            initiator.submit(&index.to_string(), build(&target, 4096));
        }
        proxy.await_held();
        let held = shut_down(&mut initiator);
        assert_as_before(&held, &before);
        proxy.release();
        assert_as_before(&shut_down(&mut target), &before);
    }
}
