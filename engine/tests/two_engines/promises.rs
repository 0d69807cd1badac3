//! What the public API promises in the good case.

use std::sync::Arc;
use std::time::Duration;

use kvferry_engine::{
    Access, Engine, Error, Layout, LayoutView, LocalSpans, Peer, Region, Registry, Remote,
    RemoteGrant, RemoteSpans, Transports,
};
use tempfile::TempDir;

use super::OVER;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 600;

/// An engine with a registry of its own and a cache of blocks.
struct Host {
    engine: Engine,
    cache: Region,
    layer: LayoutView,
    _run_directory: Arc<TempDir>,
}

/// A host that meets others in this directory.
async fn host(run_directory: &Arc<TempDir>) -> Host {
    let registry = Registry::new();
    let builder = Engine::builder(registry.clone())
        .listen("127.0.0.1:0")
        .transports(Transports::Only(OVER))
        .run_directory(run_directory.path());
    let engine = super::set_up(builder).start().await.unwrap();
    let cache = registry.allocate(BLOCK * BLOCKS).unwrap();
    let layer = cache
        .layout(Layout { offset: 0, block_bytes: BLOCK, stride: BLOCK, count: BLOCKS })
        .unwrap();
    Host { engine, cache, layer, _run_directory: run_directory.clone() }
}

async fn hosts() -> (Host, Host) {
    let run_directory = Arc::new(crate::private_directory());
    (host(&run_directory).await, host(&run_directory).await)
}

/// A host that shares its cache, another, and the first as the other's peer.
async fn pair() -> (Host, Host, Peer) {
    let (owner, initiator) = hosts().await;
    owner.cache.share(Access::ReadWrite).unwrap();
    owner.layer.publish("layer.0").unwrap();
    let peer = initiator.engine.connect(owner.engine.address()).await.unwrap();
    (owner, initiator, peer)
}

fn fill(region: &Region, seed: u64) {
    let bytes: Vec<u8> = (0..region.length()).map(|at| byte_at(seed, at)).collect();
    region.write_at(0, &bytes).unwrap();
}

fn byte_at(seed: u64, at: u64) -> u8 {
    u8::try_from((at / 7 + at * 31 + seed * 97) % 251).unwrap()
}

fn read_block(region: &Region, block: u32) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    region.read_at(u64::from(block) * BLOCK, &mut bytes).unwrap();
    bytes
}

#[tokio::test]
async fn blocks_are_pushed_and_pulled_to_where_they_were_asked_for() {
    let (owner, initiator, peer) = pair().await;
    let remote = peer.layout("layer.0").unwrap();
    fill(&initiator.cache, 1);
    fill(&owner.cache, 2);
    let from: Vec<u32> = (0..500).map(|index| (index * 37) % 600).collect();
    let to: Vec<u32> = (0..500).map(|index| (index * 41 + 5) % 600).collect();
    let report = peer
        .write(initiator.layer.blocks(from.clone()), remote.blocks(to.clone()))
        .notify(b"pushed")
        .await
        .unwrap();
    assert_eq!((report.bytes, report.pairs, report.transport), (500 * BLOCK, 500, OVER.name()));
    for (from, to) in from.iter().zip(&to) {
        assert_eq!(read_block(&owner.cache, *to), read_block(&initiator.cache, *from));
    }
    let notification = owner.engine.next_notification().await;
    assert_eq!(&*notification.bytes, b"pushed");
    assert_eq!(notification.from, initiator.engine.incarnation());

    fill(&owner.cache, 3);
    peer.read(remote.blocks([9, 1, 2]), initiator.layer.blocks([3, 17, 4]))
        .notify(b"pulled")
        .checksum(true)
        .await
        .unwrap();
    for (from, to) in [(9, 3), (1, 17), (2, 4)] {
        assert_eq!(read_block(&initiator.cache, to), read_block(&owner.cache, from));
    }
    assert_eq!(&*owner.engine.next_notification().await.bytes, b"pulled");
}

#[tokio::test]
async fn lengths_of_every_kind_arrive_unharmed_with_and_without_checksum() {
    let (owner, initiator, peer) = pair().await;
    let remote = peer.regions().remove(0);
    for checksum in [false, true] {
        for length in [1, 511, 512, 513, 4095, 65_536, 65_537, 1 << 20, BLOCK * BLOCKS - 3] {
            for offset in [0, 3] {
                fill(&initiator.cache, length);
                fill(&owner.cache, length + 1);
                let there = remote.span(3 - offset, length).unwrap();
                let here = initiator.cache.span(offset, length).unwrap();
                peer.write(here, there).checksum(checksum).await.unwrap();
                let mut bytes = vec![0; length as usize];
                owner.cache.read_at(3 - offset, &mut bytes).unwrap();
                let wrong =
                    bytes.iter().zip(offset..).position(|(b, at)| *b != byte_at(length, at));
                assert_eq!(wrong, None, "written, length {length}");

                let here = initiator.cache.span(offset, length).unwrap();
                fill(&owner.cache, length + 2);
                peer.read(there, here).checksum(checksum).await.unwrap();
                initiator.cache.read_at(offset, &mut bytes).unwrap();
                let start = 3 - offset;
                let wrong =
                    bytes.iter().zip(start..).position(|(b, at)| *b != byte_at(length + 2, at));
                assert_eq!(wrong, None, "read, length {length}");
            }
        }
    }
}

#[tokio::test]
async fn absolute_addresses_name_memory_on_both_sides() {
    let (owner, initiator, peer) = pair().await;
    fill(&initiator.cache, 8);
    let (here, there) = (initiator.cache.base(), owner.cache.base());
    let local = LocalSpans::addresses([(here + 10, 100), (here + 5000, 7)]);
    let remote = RemoteSpans::addresses([(there + 77, 100), (there + 1, 7)]);
    peer.write(local, remote).await.unwrap();
    let mut bytes = [0; 107];
    owner.cache.read_at(77, &mut bytes[..100]).unwrap();
    owner.cache.read_at(1, &mut bytes[100..]).unwrap();
    let expected: Vec<u8> = (10..110).chain(5000..5007).map(|at| byte_at(8, at)).collect();
    assert_eq!(bytes[..], expected[..]);

    let end = there + owner.cache.length();
    let outside = RemoteSpans::addresses([(end - 3, 4)]);
    let error = peer.write(LocalSpans::addresses([(here, 4)]), outside).await.unwrap_err();
    assert!(matches!(error.cause, Error::NotShared { length: 4, .. }), "{error}");
    assert_eq!(error.remote, Remote::Untouched);
    let error = peer
        .write(LocalSpans::addresses([(1, 4)]), RemoteSpans::addresses([(there, 4)]))
        .await
        .unwrap_err();
    assert!(matches!(error.cause, Error::NotRegistered { address: 1, .. }), "{error}");
}

#[tokio::test]
async fn addresses_of_another_incarnation_are_refused_before_anything_is_sent() {
    let (owner, initiator, peer) = pair().await;
    let (here, there) = (initiator.cache.base(), owner.cache.base());
    let push = |owner| {
        let remote = RemoteSpans::addresses([(there, 4)]).owned_by(owner);
        peer.write(LocalSpans::addresses([(here, 4)]), remote)
    };
    push(owner.engine.incarnation()).await.unwrap();
    let error = push(initiator.engine.incarnation()).await.unwrap_err();
    assert!(matches!(error.cause, Error::StaleHandle { .. }), "{error}");
    assert_eq!(error.remote, Remote::Untouched);
}

#[tokio::test]
async fn a_peer_can_be_named_before_it_is_connected() {
    let (owner, initiator) = hosts().await;
    owner.cache.share(Access::ReadWrite).unwrap();
    let peer = initiator.engine.peer(owner.engine.address()).unwrap();
    assert_eq!(peer.incarnation(), None);
    let push = || {
        let remote = RemoteSpans::addresses([(owner.cache.base(), 4)]);
        peer.write(LocalSpans::addresses([(initiator.cache.base(), 4)]), remote)
    };
    let error = push().await.unwrap_err();
    assert!(matches!(error.cause, Error::Unreachable { .. }), "{error}");
    peer.ready().await.unwrap();
    push().await.unwrap();
}

#[tokio::test]
async fn every_task_that_shares_a_handle_is_woken() {
    let (_owner, initiator, peer) = pair().await;
    let remote = peer.layout("layer.0").unwrap();
    let push = peer.write(initiator.layer.blocks(0..300), remote.blocks(0..300));
    let transfer = Arc::new(push.submit().unwrap());
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let transfer = transfer.clone();
            tokio::spawn(async move { (&*transfer).await.unwrap().bytes })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), 300 * BLOCK);
    }
    assert!(transfer.poll().unwrap().is_ok());
}

#[tokio::test]
async fn a_task_runs_beside_an_engine_and_ends_with_it() {
    let (owner, _initiator) = hosts().await;
    let tasks = owner.engine.tasks().clone();
    let (ran, running) = tokio::sync::oneshot::channel();
    let (held, ended) = tokio::sync::oneshot::channel::<()>();
    tasks.spawn(async move {
        ran.send(()).unwrap();
        std::future::pending::<()>().await;
        drop(held);
    });
    running.await.unwrap();
    owner.engine.shutdown(Duration::ZERO);
    ended.await.unwrap_err();
    let (held, ended) = tokio::sync::oneshot::channel::<()>();
    tasks.spawn(async move { drop(held) });
    ended.await.unwrap_err();
}

#[tokio::test]
async fn a_transfer_is_polled_and_waited_for_on_a_plain_thread() {
    let (_owner, initiator, peer) = pair().await;
    let remote = peer.layout("layer.0").unwrap();
    let local = initiator.layer;
    std::thread::spawn(move || {
        let transfer = peer.write(local.blocks(0..300), remote.blocks(0..300)).submit().unwrap();
        let mut end = transfer.completion_fd().unwrap();
        let mut byte = [0];
        assert_eq!(std::io::Read::read(&mut end, &mut byte).unwrap(), 0);
        assert!(transfer.poll().unwrap().is_ok());
        let transfer = peer.write(local.blocks(0..300), remote.blocks(0..300)).submit().unwrap();
        transfer.wait().unwrap();
        assert!(transfer.wait_for(Duration::ZERO).unwrap().is_ok());
    })
    .join()
    .unwrap();
}

#[tokio::test]
async fn mismatched_sides_and_unknown_names_are_refused_before_anything_is_sent() {
    let (owner, initiator, peer) = pair().await;
    let remote = peer.layout("layer.0").unwrap();
    let local = &initiator.layer;
    let cause = |result: Result<_, kvferry_engine::TransferError>| {
        let error = result.map(|_: kvferry_engine::Report| ()).unwrap_err();
        assert_eq!(error.remote, Remote::Untouched);
        error.cause
    };
    let error = cause(peer.write(local.blocks([1, 2]), remote.blocks([1])).await);
    assert!(matches!(error, Error::CountMismatch { local: 2, remote: 1 }), "{error}");
    let error = cause(peer.write(local.blocks([1]), remote.blocks([600])).await);
    assert!(matches!(error, Error::NoSuchBlock { index: 600, count: 600 }), "{error}");
    let span = initiator.cache.span(0, 5).unwrap();
    let error = cause(peer.write(span, remote.blocks([0])).await);
    assert!(matches!(error, Error::LengthMismatch { local: 5, remote: 4096, .. }), "{error}");
    let error = cause(peer.notify(vec![0; 65_537]).await);
    assert!(matches!(error, Error::NotificationTooLong { found: 65_537, .. }), "{error}");
    assert!(matches!(peer.layout("layer.1"), Err(Error::NoSuchLayout { .. })));
    assert_eq!(owner.engine.try_notification(), None);
}

#[tokio::test]
async fn a_grant_permits_what_it_lists_to_whom_it_names() {
    let (owner, initiator) = hosts().await;
    owner.layer.publish("layer.0").unwrap();
    let peer = initiator.engine.connect(owner.engine.address()).await.unwrap();
    let remote = peer.layout("layer.0").unwrap();
    let local = &initiator.layer;
    let error = peer.write(local.blocks([0]), remote.blocks([0])).await.unwrap_err();
    assert!(matches!(error.cause, Error::NotGranted { wanted: Access::Write, .. }), "{error}");

    let spans = [owner.layer.block(4).unwrap(), owner.layer.block(5).unwrap()];
    let me = initiator.engine.incarnation();
    let ttl = Duration::from_secs(60);
    let grant = owner.engine.grant(spans, me, Access::Write, ttl).unwrap();
    let ticket = owner.engine.ticket(&grant);
    let granted = Arc::new(RemoteGrant::from_ticket(&ticket).unwrap());
    fill(&initiator.cache, 5);
    peer.write(local.blocks([1, 2]), remote.blocks([4, 5]).under(&granted)).await.unwrap();
    assert_eq!(read_block(&owner.cache, 5), read_block(&initiator.cache, 2));
    let error =
        peer.write(local.blocks([1]), remote.blocks([6]).under(&granted)).await.unwrap_err();
    assert!(matches!(error.cause, Error::OutsideGrant { .. }), "{error}");
    let error = peer.read(remote.blocks([4]).under(&granted), local.blocks([1])).await.unwrap_err();
    assert!(matches!(error.cause, Error::NotGranted { wanted: Access::Read, .. }), "{error}");

    grant.revoke();
    let error =
        peer.write(local.blocks([1]), remote.blocks([4]).under(&granted)).await.unwrap_err();
    assert!(matches!(error.cause, Error::Refused { .. }), "{error}");
    assert_eq!(error.remote, Remote::Fenced);
}

#[tokio::test]
async fn of_a_grant_known_by_its_name_the_owner_checks_what_it_covers() {
    let (owner, initiator) = hosts().await;
    owner.layer.publish("layer.0").unwrap();
    let peer = initiator.engine.connect(owner.engine.address()).await.unwrap();
    let remote = peer.layout("layer.0").unwrap();
    let (local, me) = (&initiator.layer, initiator.engine.incarnation());
    let span = owner.layer.block(4).unwrap();
    let grant = owner.engine.grant([span], me, Access::Write, Duration::from_secs(60)).unwrap();
    let named = |owner| Arc::new(RemoteGrant::named(owner, grant.id(), Access::Write));
    let granted = named(owner.engine.incarnation());
    fill(&initiator.cache, 5);
    peer.write(local.blocks([1]), remote.blocks([4]).under(&granted)).await.unwrap();
    assert_eq!(read_block(&owner.cache, 4), read_block(&initiator.cache, 1));
    let error =
        peer.write(local.blocks([1]), remote.blocks([5]).under(&granted)).await.unwrap_err();
    assert!(matches!(error.cause, Error::Refused { .. }), "{error}");
    assert_eq!(read_block(&owner.cache, 5), vec![0; BLOCK as usize]);
    let foreign = named(initiator.engine.incarnation());
    let error =
        peer.write(local.blocks([1]), remote.blocks([4]).under(&foreign)).await.unwrap_err();
    assert!(matches!(error.cause, Error::StaleHandle { .. }), "{error}");

    grant.revoke();
    let error =
        peer.write(local.blocks([1]), remote.blocks([4]).under(&granted)).await.unwrap_err();
    assert!(matches!(error.cause, Error::Refused { .. }), "{error}");
}

#[tokio::test]
async fn an_expired_grant_permits_nothing() {
    let (owner, initiator) = hosts().await;
    owner.layer.publish("layer.0").unwrap();
    let peer = initiator.engine.connect(owner.engine.address()).await.unwrap();
    let remote = peer.layout("layer.0").unwrap();
    let me = initiator.engine.incarnation();
    let span = owner.layer.block(4).unwrap();
    let grant = owner.engine.grant([span], me, Access::ReadWrite, Duration::ZERO).unwrap();
    let granted = Arc::new(RemoteGrant::from_ticket(&owner.engine.ticket(&grant)).unwrap());
    fill(&initiator.cache, 6);
    for result in [
        peer.write(initiator.layer.blocks([1]), remote.blocks([4]).under(&granted)).await,
        peer.read(remote.blocks([4]).under(&granted), initiator.layer.blocks([1])).await,
    ] {
        let error = result.unwrap_err();
        assert!(error.to_string().contains("expired"), "{error}");
    }
    assert_eq!(read_block(&owner.cache, 4), vec![0; BLOCK as usize]);
}

#[tokio::test]
async fn what_is_registered_and_withdrawn_later_is_followed() {
    let (owner, initiator, peer) = pair().await;
    let late = owner.engine.registry().allocate(1 << 16).unwrap();
    late.share(Access::Read).unwrap();
    let whole = Layout { offset: 0, block_bytes: 1 << 16, stride: 1 << 16, count: 1 };
    late.layout(whole).unwrap().publish("late").unwrap();
    peer.ready().await.unwrap();
    let remote = peer.layout("late").unwrap();
    let local = initiator.cache.span(0, 1 << 16).unwrap();
    peer.read(remote.blocks([0]), local.clone()).await.unwrap();
    assert!(!late.unregister(Duration::from_secs(1)).still_referenced);
    // The copy here may be old: then the owner refuses.
    let error = peer.read(remote.blocks([0]), local.clone()).await.unwrap_err();
    let refused = matches!(error.cause, Error::Refused { .. } | Error::NotGranted { .. });
    assert!(refused, "{error}");
    peer.ready().await.unwrap();
    assert!(matches!(peer.layout("late"), Err(Error::NoSuchLayout { .. })));
    assert!(peer.layout("layer.0").is_ok());
}

#[tokio::test]
async fn many_small_transfers_from_many_threads_all_arrive() {
    let (owner, initiator, peer) = pair().await;
    let remote = peer.layout("layer.0").unwrap();
    fill(&initiator.cache, 9);
    let threads: Vec<_> = (0..16)
        .map(|thread| {
            let (peer, remote, local) = (peer.clone(), remote.clone(), initiator.layer.clone());
            std::thread::spawn(move || {
                for index in 0..200_u32 {
                    let block = thread * 37 + index % 37;
                    let request = peer.write(local.blocks([block]), remote.blocks([block]));
                    request.notify(block.to_le_bytes()).submit().unwrap().wait().unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    for block in 0..16 * 37 {
        assert_eq!(read_block(&owner.cache, block), read_block(&initiator.cache, block));
    }
    let mut notifications = 0;
    while owner.engine.try_notification().is_some() {
        notifications += 1;
    }
    assert_eq!(notifications, 3200);
    assert_eq!(peer.status().open_lanes, initiator.engine.status().lanes_opened);
    assert!(owner.engine.status().lanes_accepted <= 8);
}

#[tokio::test]
async fn an_address_of_no_bytes_is_in_no_region_wherever_it_stands_in_the_list() {
    let (owner, initiator, peer) = pair().await;
    let (here, there) = (initiator.cache.base(), owner.cache.base());
    for ranges in [vec![(here, 0)], vec![(here, 16), (here + 16, 0)]] {
        let remote = ranges.iter().map(|(at, length)| (at - here + there, *length));
        let (local, remote) =
            (LocalSpans::addresses(ranges.clone()), RemoteSpans::addresses(remote));
        let error = peer.write(local, remote).await.unwrap_err();
        assert!(matches!(error.cause, Error::NotRegistered { length: 0, .. }), "{error}");
        assert_eq!(error.remote, Remote::Untouched);
    }
}

/// More regions than frames may wait on a lane: each is lent by a frame of its own before the first slice
/// that needs it.
#[tokio::test]
async fn one_slice_of_many_regions_that_are_new_to_its_lane_is_pulled_and_pushed_at_once() {
    const REGIONS: u64 = 80;
    const PIECE: u64 = 8 << 10;
    let (owner, initiator) = hosts().await;
    let regions: Vec<_> = (0..REGIONS)
        .map(|_| {
            let region = owner.engine.registry().allocate(PIECE).unwrap();
            region.share(Access::ReadWrite).unwrap();
            region
        })
        .collect();
    let peer = initiator.engine.connect(owner.engine.address()).await.unwrap();
    let remote: Vec<_> = regions
        .iter()
        .map(|region| peer.regions().into_iter().find(|there| there.base() == region.base()))
        .map(|there| there.unwrap().whole())
        .collect();
    let here = |index: u64| initiator.cache.span(index * PIECE, PIECE).unwrap();
    let here: Vec<_> = (0..REGIONS).map(here).collect();
    for (region, seed) in regions.iter().zip(0..) {
        fill(region, seed);
    }
    let report = peer.read(remote.clone(), here.clone()).await.unwrap();
    assert_eq!(report.slices, 1);
    for (index, seed) in (0..REGIONS).zip(0..) {
        let mut bytes = vec![0; PIECE as usize];
        initiator.cache.read_at(index * PIECE, &mut bytes).unwrap();
        let wrong = bytes.iter().zip(0..).position(|(byte, at)| *byte != byte_at(seed, at));
        assert_eq!(wrong, None, "of region {index}");
    }
    fill(&initiator.cache, 7);
    peer.write(here, remote).await.unwrap();
    for (region, index) in regions.iter().zip(0..) {
        let mut bytes = vec![0; PIECE as usize];
        region.read_at(0, &mut bytes).unwrap();
        let wrong =
            bytes.iter().zip(index * PIECE..).position(|(byte, at)| *byte != byte_at(7, at));
        assert_eq!(wrong, None, "of region {index}");
    }
}

/// Who waits looks at the lanes meanwhile, and finds some idle while others are copied by.
#[test]
fn no_read_is_left_waiting_by_a_thread_that_looks_while_others_copy() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_owner, initiator, peer) = runtime.block_on(pair());
    let remote = peer.regions().remove(0);
    for _ in 0..300 {
        let read = peer.read(remote.whole(), initiator.cache.whole()).submit().unwrap();
        assert_eq!(read.wait().unwrap().bytes, BLOCK * BLOCKS);
    }
}
