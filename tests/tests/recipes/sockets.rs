//! Sockets pile up, or one that is dead is used again: many small transfers from many threads, a
//! peer that restarts, connections that were cut or forgotten on the way while nobody looked
//! (Mooncake#997, Mooncake#4209).
//!
//! That idle lanes close by themselves, and the first transfer after that works, stands in
//! `promises/nothing_held`; lanes that are cut in mid-transfer in `promises/failover`.

use std::time::{Duration, Instant};

use kvferry_tests::command::{Command, Setup};
use kvferry_tests::process::{Cache, Process, pull, push};
use kvferry_tests::proxy::Proxy;

#[test]
fn ten_thousand_small_transfers_from_64_threads_need_no_more_sockets_than_one() {
    const THREADS: u32 = 64;
    let mut target = Process::start();
    let mut initiator = Process::start();
    initiator.connect(&target);
    initiator.fill(0..256, 1);
    assert!(initiator.transfer(push(&target, 1)).is_done());
    let before = initiator.await_held("connected", |held| held.lanes_opened == 2);
    let target_before = target.held();
    for _ in 0..4 {
        let with = target.address.clone();
        initiator.ok(&Command::Storm { with, threads: THREADS, transfers: 2560 });
        initiator.await_held("given back", |held| {
            (held.lanes_opened, held.transfers, held.descriptors, held.threads)
                == (2, 0, before.descriptors, before.threads)
        });
        let there = target.held();
        assert_eq!((there.lanes_accepted, there.descriptors), (2, target_before.descriptors));
    }
    target.assert_holds(0..THREADS, 1);
}

#[test]
fn a_peer_that_restarts_leaves_no_sockets_behind_and_none_of_them_is_used_again() {
    let mut target = Process::start();
    let mut initiator = Process::start();
    initiator.connect(&target);
    assert!(initiator.transfer(push(&target, 256)).is_done());
    let before = initiator.await_held("connected", |held| held.lanes_opened == 2);
    for seed in 1..=5 {
        target.kill();
        let listen = Some(target.address.clone());
        target = Process::start_with(Setup { listen, ..Setup::default() }, Cache::default());
        initiator.fill(0..256, seed);
        initiator.connect(&target);
        assert!(initiator.transfer(push(&target, 256)).is_done());
        target.assert_holds(0..256, seed);
        initiator.await_held("as before", |held| {
            (held.lanes_opened, held.descriptors) == (2, before.descriptors)
        });
    }
}

#[test]
fn connections_that_were_cut_while_nobody_looked_do_not_cost_the_next_transfer() {
    let proxy = Proxy::start();
    let mut target = Process::start_behind(&proxy, Setup::default(), Cache::default());
    let mut initiator = Process::start();
    initiator.connect(&target);
    for seed in 1..=5 {
        initiator.fill(0..256, seed);
        initiator.await_held("connected", |held| held.lanes_opened == 2);
        proxy.cut();
        // At once: before anybody can have noticed, or just then.
        assert!(initiator.transfer(push(&target, 256)).is_done());
        target.assert_holds(0..256, seed);
        assert!(initiator.transfer(pull(&target, 256)).is_done());
    }
}

#[test]
fn connections_that_were_forgotten_on_the_way_are_replaced_within_the_deadline() {
    let proxy = Proxy::start();
    let setup = || Setup { liveness_ms: Some((150, 600)), ..Setup::default() };
    let mut target = Process::start_behind(&proxy, setup(), Cache::default());
    let mut initiator = Process::start_with(setup(), Cache::default());
    initiator.connect(&target);
    initiator.await_held("connected", |held| held.lanes_opened == 2);
    for (seed, build) in [(1, push as fn(&Process, u32) -> _), (2, pull)] {
        target.fill(0..256, seed);
        initiator.fill(0..256, seed);
        // Nothing goes through any more, either way, and nobody is told: packets are dropped.
        proxy.hold_after(0);
        proxy.hold_replies_after(0);
        let began = Instant::now();
        let end = initiator.transfer(build(&target, 256));
        assert!(end.is_done(), "{end:?}");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        target.assert_holds(0..256, seed);
        initiator.assert_holds(0..256, seed);
    }
    assert!(proxy.accepted() > 2, "new ones were made");
}
