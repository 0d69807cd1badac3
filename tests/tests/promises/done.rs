//! Promise 1: done means there.

use kvferry_engine::Transport;
use kvferry_tests::command::{Move, Way};
use kvferry_tests::process::{Cache, blocks};
use kvferry_tests::skip;

/// A permutation of 0..count, from a step that shares no factor with it.
fn shuffled(count: u32, step: u32) -> Vec<u32> {
    (0..count).map(|index| (index * step + 11) % count).collect()
}

/// What carries it: what is checked on its way goes by the stream, where adapters read the rest.
fn carrier(checksum: bool) -> Transport {
    if super::OVER == Transport::Rdma && checksum { Transport::Tcp } else { super::OVER }
}

#[test]
fn what_a_push_reports_done_the_target_reads_at_once() {
    for (block_bytes, count) in [(512, 1000), (4096, 997), (65_536, 300), (3 << 20, 20)] {
        let cache = Cache { blocks: u64::from(count), block_bytes, share: true };
        let mut target = super::start_with(Default::default(), cache);
        let mut initiator = super::start_with(Default::default(), cache);
        initiator.connect(&target);
        for (seed, checksum) in [(1, false), (2, true)] {
            initiator.fill(0..count, seed);
            let (local, remote) = (shuffled(count, 7), shuffled(count, 13));
            let what = Move {
                local: local.clone(),
                remote: remote.clone(),
                checksum,
                // Where adapters are emulated it takes its time.
                deadline_ms: Some(60_000),
                ..blocks(Way::Push, &target, 0..0)
            };
            let end = initiator.transfer(what);
            assert_eq!(end.transport(), carrier(checksum).name(), "{end:?}");
            let pairs: Vec<_> = remote.into_iter().zip(local).collect();
            target.assert_holds_pairs(&pairs, seed);
        }
    }
}

#[test]
fn what_a_pull_reports_done_is_here_at_once() {
    for (block_bytes, count) in [(512, 1000), (4096, 997), (65_536, 300), (3 << 20, 20)] {
        let cache = Cache { blocks: u64::from(count), block_bytes, share: true };
        let mut source = super::start_with(Default::default(), cache);
        let mut initiator = super::start_with(Default::default(), cache);
        initiator.connect(&source);
        for (seed, checksum) in [(1, false), (2, true)] {
            source.fill(0..count, seed);
            let (local, remote) = (shuffled(count, 7), shuffled(count, 13));
            let what = Move {
                local: local.clone(),
                remote: remote.clone(),
                checksum,
                // Where adapters are emulated it takes its time.
                deadline_ms: Some(60_000),
                ..blocks(Way::Pull, &source, 0..0)
            };
            let end = initiator.transfer(what);
            assert_eq!(end.transport(), carrier(checksum).name(), "{end:?}");
            let pairs: Vec<_> = local.into_iter().zip(remote).collect();
            initiator.assert_holds_pairs(&pairs, seed);
        }
    }
}

#[test]
fn engines_listen_and_connect_over_ipv6_and_by_name() {
    if let Err(error) = std::net::TcpListener::bind("[::1]:0") {
        return skip(&format!("this system has no IPv6 loopback address ({error})"));
    }
    for listen in ["[::1]:0", "localhost:0"] {
        let setup =
            kvferry_tests::command::Setup { listen: Some(listen.into()), ..Default::default() };
        let mut target = super::start_with(setup, Cache::default());
        let mut initiator = super::start();
        let host = listen.trim_end_matches(":0");
        assert!(target.address.starts_with(host), "{} for {listen}", target.address);
        initiator.connect(&target);
        initiator.fill(0..256, 4);
        assert!(initiator.transfer(blocks(Way::Push, &target, 0..256)).is_done());
        target.assert_holds(0..256, 4);
    }
}
