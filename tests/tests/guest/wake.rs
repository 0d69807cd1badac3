//! Memory goes and comes back at its address while adapters read it: what was lent before it went is
//! refused, by its owner and by the adapter, and nothing that was on its way lands in what is there now
//! (over TCP: `recipes/wake`).

use std::time::{Duration, Instant};

use kvferry_engine::{Region, Transport, Transports};
use kvferry_tests::command::{Command, Move, Way};
use kvferry_tests::own::{Own, adapters};
use kvferry_tests::pattern;
use kvferry_tests::process::{Cache, Process, blocks};

use crate::arena::{Arena, BLOCK};

use super::rails::{FAR, NEAR, PATIENCE, assert_done, patient, side, slow};

/// Blocks before the sleep, and most that there are after it.
const BLOCKS: u32 = 512;
const MOST: u32 = 768;

/// Longer than anything is delayed here.
const LATER: Duration = Duration::from_secs(1);

fn wrong(region: &Region, count: u32, seed: u64) -> Option<u64> {
    pattern::first_wrong(region, 0, u64::from(count) * BLOCK, seed, 0).unwrap()
}

/// Waits until the first bytes of a push have landed, or those of a pull have been asked for: they are read
/// when that has arrived, a quarter of a second later.
fn await_begun(way: Way, region: &Region, seed: u64) {
    if way == Way::Pull {
        return std::thread::sleep(Duration::from_millis(20));
    }
    let began = Instant::now();
    while wrong(region, 1, seed).is_some() {
        assert!(began.elapsed() < PATIENCE, "nothing lands");
    }
}

fn peer_of(owner: &Own) -> (Process, String) {
    let cache = Cache { blocks: MOST.into(), block_bytes: BLOCK, share: false };
    let mut peer = side(NEAR, cache);
    let address = owner.engine.address().to_string();
    peer.ok(&Command::Connect { address: address.clone() });
    (peer, address)
}

#[test]
fn keys_of_what_was_there_before_reach_nothing_of_what_is_there_now() {
    for (way, after) in [(Way::Push, 256), (Way::Push, MOST), (Way::Pull, 256), (Way::Pull, MOST)] {
        let arena = Arena::new();
        let owner = Own::start_with(|builder| {
            builder.transports(Transports::Only(Transport::Rdma)).rdma(adapters(FAR))
        });
        let region = arena.share(&owner.registry, BLOCKS);
        pattern::fill(&region, 0, region.length(), 1, 0).unwrap();
        let (mut peer, address) = peer_of(&owner);
        peer.fill(0..MOST, 2);
        let what = |range| {
            let peer = &peer;
            patient(Move { with: address.clone(), ..blocks(way, peer, range) })
        };
        let (few, all, beyond) = (what(0..8), what(0..BLOCKS), what(after..after + 1));
        let now = what(0..after);
        // Lanes are up, and the memory is lent on them.
        assert_done(&peer.transfer(few));
        pattern::fill(&region, 0, region.length(), 1, 0).unwrap();
        let new = pattern::bytes_at(3, 0, u64::from(after) * BLOCK);

        let fault = slow();
        peer.submit("in flight", all.clone());
        await_begun(way, &region, 2);
        let old = region.id();
        let released = region.unregister(Duration::from_millis(100));
        assert!(!released.still_referenced);
        // The same address, another size, other contents, while packets of before are on their way.
        let region = arena.share(&owner.registry, after);
        assert_ne!(region.id(), old);
        region.write_at(0, &new).unwrap();
        let end = peer.wait("in flight", PATIENCE);
        assert!(["Refused", "SourceReleased"].contains(&end.cause()), "{way:?} {after}: {end:?}");
        // What was looked up before.
        let end = peer.transfer(all);
        assert!(["Refused", "NotGranted"].contains(&end.cause()), "{way:?} {after}: {end:?}");
        std::thread::sleep(LATER);
        assert_eq!(wrong(&region, after, 3), None, "{way:?} {after}");
        if way == Way::Pull {
            // None of what is there now was read by what was asked for before.
            let all: Vec<_> = (0..BLOCKS).map(|block| (block, block)).collect();
            assert_eq!(peer.wrong(&all, 3).len(), all.len(), "{after}");
        }
        drop(fault);

        // What is looked up now.
        peer.ok(&Command::Connect { address: address.clone() });
        let end = peer.transfer(beyond);
        assert_eq!((end.cause(), end.remote()), ("NoSuchBlock", "untouched"), "{end:?}");
        peer.fill(0..MOST, 4);
        assert_done(&peer.transfer(now));
        match way {
            Way::Push => assert_eq!(wrong(&region, after, 4), None),
            Way::Pull => peer.assert_holds(0..after, 3),
        }
        assert_eq!(owner.registry.grant_count(), 1);
    }
}
