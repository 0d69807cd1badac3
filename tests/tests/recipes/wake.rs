//! Memory goes and comes back, as when an engine sleeps and wakes: unregistered with work in flight,
//! registered again at the same address with another size, while others hold keys of what was
//! there before. An old key is refused, and touches nothing of the new.
//!
//! How unregistering waits for its users and cuts them stands in `promises/ownership`; that the same
//! range is another generation in `engine/tests/registry`.

use std::time::{Duration, Instant};

use kvferry_engine::{Error, Region};
use kvferry_tests::command::{Command, Move, Setup, Way};
use kvferry_tests::own::{Own, await_lanes};
use kvferry_tests::pattern;
use kvferry_tests::process::{Cache, Process, blocks};
use kvferry_tests::proxy::Proxy;

use crate::arena::{Arena, BLOCK};

/// Blocks before the sleep: more bytes than sockets take, so that a source is in the middle of them.
const BLOCKS: u32 = 512;

const PATIENCE: Duration = Duration::from_millis(300);

fn assert_holds(region: &Region, count: u32, seed: u64) {
    let wrong = pattern::first_wrong(region, 0, u64::from(count) * BLOCK, seed, 0).unwrap();
    assert_eq!(wrong, None);
}

#[test]
fn keys_of_what_was_there_before_touch_nothing_of_what_is_there_now() {
    for (way, after) in [(Way::Push, 256), (Way::Push, 1024), (Way::Pull, 256), (Way::Pull, 1024)] {
        let arena = Arena::new();
        let proxy = Proxy::start();
        let owner = Own::start_with(|builder| builder.lane_advertise(proxy.address()));
        proxy.lead_to(owner.engine.lane_port());
        let region = arena.share(&owner.registry, BLOCKS);
        pattern::fill(&region, 0, region.length(), 1, 0).unwrap();
        let cache = Cache { blocks: 1024, block_bytes: BLOCK, share: false };
        let mut peer = Process::start_with(Setup::default(), cache);
        let address = owner.engine.address().to_string();
        let connect = Command::Connect { address: address.clone() };
        peer.ok(&connect);
        peer.await_held("connected", |held| held.lanes_opened == 2);
        peer.fill(0..1024, 2);
        let what = |range| {
            let peer = &peer;
            Move { with: address.clone(), ..blocks(way, peer, range) }
        };
        let (all, half, beyond) = (what(0..BLOCKS), what(0..after), what(after..after + 1));

        // Work is in flight, in the middle of a slice.
        match way {
            Way::Push => proxy.hold_after(600_000),
            Way::Pull => proxy.hold_replies_after(600_000),
        }
        peer.submit("in flight", all.clone());
        proxy.await_held();
        let old = region.id();
        let began = Instant::now();
        let released = region.unregister(PATIENCE);
        assert!(!released.still_referenced);
        assert!(began.elapsed() < PATIENCE * 3, "{:?}", began.elapsed());

        // The same address, another size, other contents.
        let region = arena.share(&owner.registry, after);
        assert_ne!(region.id(), old);
        pattern::fill(&region, 0, region.length(), 3, 0).unwrap();
        proxy.release();
        let end = peer.wait("in flight", Duration::from_secs(10));
        assert!(["Refused", "SourceReleased"].contains(&end.cause()), "{way:?}: {end:?}");
        // What was looked up before.
        let end = peer.transfer(all);
        assert!(["Refused", "NotGranted"].contains(&end.cause()), "{way:?}: {end:?}");
        assert_holds(&region, after, 3);

        // What is looked up now.
        peer.ok(&connect);
        let end = peer.transfer(beyond);
        assert_eq!((end.cause(), end.remote()), ("NoSuchBlock", "untouched"), "{end:?}");
        peer.fill(0..1024, 4);
        assert!(peer.transfer(half).is_done());
        match way {
            Way::Push => assert_holds(&region, after, 4),
            Way::Pull => peer.assert_holds(0..after, 3),
        }
        assert_eq!(owner.registry.grant_count(), 1);
    }
}

#[test]
fn an_initiator_whose_memory_goes_in_mid_transfer_uses_the_same_address_again() {
    for way in [Way::Push, Way::Pull] {
        let arena = Arena::new();
        let proxy = Proxy::start();
        let cache = Cache { blocks: 1024, block_bytes: BLOCK, share: true };
        let mut target = Process::start_behind(&proxy, Setup::default(), cache);
        target.fill(0..1024, 1);
        let own = Own::start();
        let peer = own.connect(&target);
        await_lanes(&peer, 2);
        let region = arena.register(&own.registry, BLOCKS);
        pattern::fill(&region, 0, region.length(), 2, 0).unwrap();
        let remote = peer.regions().remove(0);
        let span = region.whole();
        let far = remote.span(0, span.length()).unwrap();
        match way {
            Way::Push => proxy.hold_after(600_000),
            Way::Pull => proxy.hold_replies_after(600_000),
        }
        let transfer = match way {
            Way::Push => peer.write(span.clone(), far),
            Way::Pull => peer.read(far, span.clone()),
        };
        let transfer = transfer.submit().unwrap();
        proxy.await_held();
        let released = region.unregister(PATIENCE);
        assert_eq!(released.cut, [transfer.id()]);
        let cause = transfer.wait().unwrap_err().cause;
        assert!(matches!(cause, Error::RegionWithdrawn), "{way:?}: {cause}");

        let region = arena.register(&own.registry, 1024);
        pattern::fill(&region, 0, region.length(), 3, 0).unwrap();
        proxy.release();
        let stale = peer.write(span, far).submit().unwrap_err();
        assert!(matches!(stale.cause, Error::Unregistered { .. }), "{stale}");
        // Whatever was on its way has come before this is through.
        peer.notify(b"x").submit().unwrap().wait().unwrap();
        assert_holds(&region, 1024, 3);
        peer.write(region.whole(), remote.span(0, region.length()).unwrap())
            .submit()
            .unwrap()
            .wait()
            .unwrap();
        target.assert_holds(0..1024, 3);
    }
}

#[test]
fn sleeping_and_waking_again_and_again_leaves_nothing_behind() {
    let mut owner = Process::start();
    let before = owner.held();
    let own = Own::start();
    let arena = Arena::new();
    let peer = own.connect(&owner);
    let remote = peer.regions().remove(0);
    for round in 0..200_u32 {
        let region = arena.register(&own.registry, 1 + round % 32);
        let far = remote.span(0, region.length()).unwrap();
        let transfer = peer.read(far, region.whole()).submit().unwrap();
        // Dropped at once: it is cut, or was through already.
        drop(region);
        match transfer.wait() {
            Ok(_) => {}
            Err(error) => assert!(matches!(error.cause, Error::RegionWithdrawn), "{error}"),
        }
    }
    assert_eq!((own.registry.region_count(), own.registry.grant_count()), (0, 0));
    assert_eq!(own.engine.status().open_transfers, 0);
    let mut next = Process::start();
    next.connect(&owner);
    assert!(next.transfer(blocks(Way::Pull, &owner, 0..256)).is_done());
    assert_eq!(owner.held().grants, before.grants);
}
