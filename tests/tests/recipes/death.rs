//! A peer dies in the middle of a request: P while it writes, D while it reads, killed or stopped so
//! that its sockets live on (vllm#35943, TensorRT-LLM#12313). The survivor ends everything in time
//! without being reminded by traffic, leaks nothing, and serves the next.
//!
//! Deadlines with a stopped peer and the reaping of silent lanes stand in `promises/ending`.

use std::time::{Duration, Instant};

use kvferry_tests::command::{Held, Move, Setup, Way};
use kvferry_tests::death::{CASES, Death};
use kvferry_tests::process::{Cache, Process, blocks, pull, push};
use kvferry_tests::proxy::Proxy;

const COUNT: u32 = 2048;

const CACHE: Cache = Cache { blocks: COUNT as u64, block_bytes: 4096, share: false };

/// What a request may take when its peer is dead.
const DEADLINE: Duration = Duration::from_secs(2);

/// How much later that may be seen: these machines are busy.
const SLACK: Duration = Duration::from_millis(800);

fn watchful() -> Setup {
    Setup { liveness_ms: Some((150, 600)), ..Setup::default() }
}

/// A request that is in the middle of a slice and goes no further.
fn begin(proxy: &Proxy, way: Way, owner: &mut Process, initiator: &mut Process) {
    initiator.connect(owner);
    initiator.await_held("connected", |held| held.lanes_opened == 2);
    let ticket = Some(owner.grant("g", 0..COUNT, initiator, way == Way::Push));
    match way {
        Way::Push => proxy.hold_after(600_000),
        Way::Pull => proxy.hold_replies_after(600_000),
    }
    let deadline_ms = u64::try_from(DEADLINE.as_millis()).ok();
    let what = Move { ticket, deadline_ms, ..blocks(way, owner, 0..COUNT) };
    initiator.submit("t", what);
    proxy.await_held();
}

fn die(death: Death, process: &mut Process, proxy: &Proxy) {
    death.befall(process);
    if death == Death::Killed {
        // What it had sent arrives, and then the end of its connections.
        proxy.release();
    }
}

/// That the survivor holds what it held before, and as many connections more as are given.
fn assert_nothing_is_left(survivor: &mut Process, before: &Held, connections: usize) {
    let is_as_before = |held: &Held| {
        (held.transfers, held.lanes_opened, held.lanes_accepted) == (0, 0, 0)
            && held.descriptors <= before.descriptors + connections
            && (held.threads, held.memfds) == (before.threads, before.memfds)
    };
    survivor.await_held("as before", is_as_before);
}

#[test]
fn an_owner_whose_initiator_dies_takes_its_memory_back_and_serves_the_next() {
    for (way, death) in CASES {
        let proxy = Proxy::start();
        let mut owner = Process::start_behind(&proxy, watchful(), CACHE);
        let mut initiator = Process::start_with(watchful(), CACHE);
        owner.fill(0..COUNT, 1);
        let before = owner.held();
        begin(&proxy, way, &mut owner, &mut initiator);
        die(death, &mut initiator, &proxy);
        // The control connection of one that is stopped is given back after two keep-alives, 40 s.
        assert_nothing_is_left(&mut owner, &before, usize::from(death == Death::Stopped));
        assert!(owner.revoke("g") < SLACK, "{way:?} {death:?}");
        assert_eq!(owner.held().grants, 0);
        owner.fill(0..COUNT, 2);

        // The next peer, while the dead one is still held, and after it has woken.
        let mut next = Process::start_with(watchful(), CACHE);
        for (round, seed) in [(0, 3), (1, 4)] {
            next.fill(0..COUNT, seed);
            next.connect(&owner);
            let write = Some(owner.grant("w", 0..COUNT, &next, true));
            assert!(next.transfer(Move { ticket: write, ..push(&owner, COUNT) }).is_done());
            owner.assert_holds(0..COUNT, seed);
            let read = Some(owner.grant("r", 0..COUNT, &next, false));
            assert!(next.transfer(Move { ticket: read, ..pull(&owner, COUNT) }).is_done());
            if round == 0 && death == Death::Stopped {
                initiator.wake();
                proxy.release();
                let end = initiator.wait("t", Duration::from_secs(10));
                assert!(!end.is_done(), "{way:?}: {end:?}");
            }
            owner.assert_holds(0..COUNT, seed);
        }
    }
}

#[test]
fn an_initiator_whose_owner_dies_ends_in_time_and_goes_on_with_the_next() {
    for (way, death) in CASES {
        let proxy = Proxy::start();
        let mut owner = Process::start_behind(&proxy, watchful(), CACHE);
        let mut initiator = Process::start_with(watchful(), CACHE);
        let before = initiator.held();
        begin(&proxy, way, &mut owner, &mut initiator);
        let began = Instant::now();
        die(death, &mut owner, &proxy);
        let end = initiator.wait("t", DEADLINE + SLACK);
        assert!(["Unreachable", "Deadline"].contains(&end.cause()), "{way:?} {death:?}: {end:?}");
        assert!(end.is_retryable());
        assert!(began.elapsed() < DEADLINE + SLACK, "{:?}", began.elapsed());
        assert_nothing_is_left(&mut initiator, &before, 0);
        initiator.fill(0..COUNT, 5);

        let mut next = Process::start_with(watchful(), CACHE);
        next.fill(0..COUNT, 6);
        initiator.connect(&next);
        let read = Some(next.grant("r", 0..COUNT, &initiator, false));
        assert!(initiator.transfer(Move { ticket: read, ..pull(&next, COUNT) }).is_done());
        if death == Death::Stopped {
            owner.wake();
            proxy.release();
        }
        initiator.assert_holds(0..COUNT, 6);
    }
}
