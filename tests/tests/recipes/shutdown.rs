//! The engine's own process lets go of it or ends: with nothing, one or many requests under way,
//! whatever is dropped first, while a panic unwinds, and without being told (dynamo#9343,
//! LMCache#1195). It takes two seconds at most, and everything is given back.
//!
//! A shutdown that is asked for stands in `promises/nothing_held`, a forked child in
//! `engine/tests/fork`.

use std::time::{Duration, Instant};

use kvferry_tests::command::{Command, Farewell, Setup};
use kvferry_tests::process::{Cache, Process, bare, pull, push};
use kvferry_tests::proxy::Proxy;

const IN_TIME: Duration = Duration::from_secs(2);

const COUNT: u32 = 1024;

const CACHE: Cache = Cache { blocks: COUNT as u64, block_bytes: 4096, share: true };

/// An initiator with requests under way that nobody answers, some to it and some from it, and a
/// grant of its own.
fn busy(proxy: &Proxy, requests: usize) -> (Process, Process) {
    let target = Process::start_behind(proxy, Setup::default(), CACHE);
    let mut initiator = Process::start_with(Setup::default(), CACHE);
    initiator.connect(&target);
    initiator.await_held("connected", |held| held.lanes_opened == 2);
    assert!(initiator.transfer(push(&target, 16)).is_done());
    let _ticket = initiator.grant("g", 0..COUNT, &target, true);
    proxy.hold_after(100);
    for index in 0..requests {
        let build = if index % 2 == 0 { push } else { pull };
        initiator.submit(&index.to_string(), build(&target, COUNT));
    }
    if requests > 0 {
        proxy.await_held();
    }
    (target, initiator)
}

#[test]
fn an_engine_that_is_dropped_gives_everything_back_whatever_is_under_way() {
    let before = bare();
    for how in [Farewell::EngineFirst, Farewell::EngineLast, Farewell::Panic] {
        for requests in [0, 1, 20] {
            let proxy = Proxy::start();
            let (mut target, mut initiator) = busy(&proxy, requests);
            let began = Instant::now();
            initiator.ok(&Command::Drop { how });
            let took = began.elapsed();
            assert!(took < IN_TIME, "{how:?} with {requests} under way: {took:?}");
            // A thread that has been joined is counted for a moment longer.
            initiator.await_held(&format!("{how:?} with {requests} under way"), |held| {
                (held.descriptors, held.threads, held.memfds)
                    == (before.descriptors, before.threads, before.memfds)
            });
            // The other end is free of it too.
            proxy.release();
            target.await_held("left", |held| held.lanes_accepted == 0);
        }
    }
}

#[test]
fn a_process_ends_in_time_without_being_told_whatever_is_under_way() {
    for requests in [0, 1, 20] {
        for stopped in [false, true] {
            let proxy = Proxy::start();
            let (target, initiator) = busy(&proxy, requests);
            if stopped {
                target.stop();
            }
            let took = initiator.leave();
            assert!(took < IN_TIME, "{requests} under way, stopped {stopped}: {took:?}");
        }
    }
}

#[test]
fn an_owner_that_is_dropped_while_others_use_it_gives_everything_back_and_they_are_told() {
    let before = bare();
    for how in [Farewell::EngineFirst, Farewell::EngineLast, Farewell::Panic] {
        let proxy = Proxy::start();
        let (mut target, mut initiator) = busy(&proxy, 2);
        let began = Instant::now();
        target.ok(&Command::Drop { how });
        assert!(began.elapsed() < IN_TIME, "{how:?}: {:?}", began.elapsed());
        target.await_held(&format!("{how:?}"), |held| {
            (held.descriptors, held.threads, held.memfds)
                == (before.descriptors, before.threads, before.memfds)
        });
        proxy.release();
        for name in ["0", "1"] {
            let end = initiator.wait(name, Duration::from_secs(10));
            assert!(["Unreachable", "Refused"].contains(&end.cause()), "{how:?}: {end:?}");
        }
        initiator.await_held("given back", |held| (held.transfers, held.lanes_opened) == (0, 0));
    }
}
