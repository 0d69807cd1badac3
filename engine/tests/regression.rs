//! What went wrong once.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use kvferry_engine::{
    Access, Engine, EngineBuilder, Error, Layout, Region, Registry, Transport, Transports,
};

const SECONDS: Duration = Duration::from_secs(10);

fn tcp_engine(registry: &Registry) -> EngineBuilder {
    let builder = Engine::builder(registry.clone()).listen("127.0.0.1:0");
    builder.transports(Transports::Only(Transport::Tcp))
}

async fn host() -> (Engine, Region) {
    let registry = Registry::new();
    let engine = tcp_engine(&registry).start().await.unwrap();
    let cache = registry.allocate(64 << 20).unwrap();
    cache.share(Access::ReadWrite).unwrap();
    (engine, cache)
}

fn blocks(region: &Region) -> kvferry_engine::LayoutView {
    let layout = Layout { offset: 0, block_bytes: 4096, stride: 4096, count: 4 };
    region.layout(layout).unwrap()
}

#[tokio::test]
async fn an_engine_that_is_known_by_two_names_is_reached_by_both() {
    let ((owner, _cache), (initiator, local)) = (host().await, host().await);
    let port = owner.address().port();
    let by_address = initiator.connect(format!("127.0.0.1:{port}")).await.unwrap();
    for index in 0..20_u32 {
        by_address.notify(index.to_le_bytes()).await.unwrap();
        assert_eq!(&*owner.next_notification().await.bytes, index.to_le_bytes());
    }
    let by_name = initiator.connect(format!("localhost:{port}")).await.unwrap();
    by_name.notify(b"by name").await.unwrap();
    assert_eq!(&*owner.next_notification().await.bytes, b"by name");
    for peer in [by_name, by_address] {
        let remote = peer.regions().remove(0).span(0, 4096).unwrap();
        peer.write(local.span(0, 4096).unwrap(), remote).await.unwrap();
    }
}

#[tokio::test]
async fn ends_that_both_have_much_to_send_do_not_wait_for_each_other() {
    let ((owner, _cache), (initiator, local)) = (host().await, host().await);
    let peer = initiator.connect(owner.address()).await.unwrap();
    let remote = peer.regions().remove(0);
    let threads: Vec<_> = (0..8_u64)
        .map(|thread| {
            let (peer, remote, local) = (peer.clone(), remote.clone(), local.clone());
            std::thread::spawn(move || {
                let transfers: Vec<_> = (0..1000)
                    .map(|index| {
                        let at = (thread * 1000 + index) * 4096 % (32 << 20);
                        // What is written and what is read are different halves.
                        let at = if thread % 2 == 0 { at } else { at + (32 << 20) };
                        let here = local.span(at, 4096).unwrap();
                        let there = remote.span(at, 4096).unwrap();
                        let request = match thread % 2 {
                            0 => peer.read(there, here),
                            _ => peer.write(here, there),
                        };
                        request.submit().unwrap()
                    })
                    .collect();
                for transfer in transfers {
                    transfer.wait().unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[tokio::test]
async fn nothing_is_granted_or_published_of_a_region_that_is_being_unregistered() {
    let ((owner, cache), (other, _other_cache)) = (host().await, host().await);
    let peer = owner.connect(other.address()).await.unwrap();
    let (span, view) = (cache.span(0, 4096).unwrap(), blocks(&cache));
    // Something that uses the region and does not end: nobody answers any more.
    other.shutdown(Duration::ZERO);
    let remote = peer.regions().remove(0).span(0, 4096).unwrap();
    let held = peer.write(span.clone(), remote).deadline(SECONDS).submit();
    let unregistering = std::thread::spawn(move || cache.unregister(Duration::from_millis(600)));
    while owner.registry().grant_count() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let grant = owner.grant([span], other.incarnation(), Access::ReadWrite, SECONDS);
    assert!(matches!(grant, Err(Error::Unregistered { .. })), "{grant:?}");
    assert!(matches!(view.publish("late"), Err(Error::Unregistered { .. })));
    unregistering.join().unwrap();
    assert_eq!(owner.registry().grant_count(), 0);
    let again = owner.registry().allocate(1 << 20).unwrap();
    blocks(&again).publish("late").unwrap();
    drop(held);
}

#[tokio::test]
async fn durations_beyond_the_clock_are_as_good_as_long() {
    let registry = Registry::new();
    let forever = Duration::MAX;
    let builder = tcp_engine(&registry).idle_after(forever);
    let engine = builder.connect_timeout(forever).start().await.unwrap();
    let local = registry.allocate(4096).unwrap();
    let (owner, _cache) = host().await;
    let peer = engine.connect(owner.address()).await.unwrap();
    let remote = peer.regions().remove(0).span(0, 4096).unwrap();
    let grant = engine.grant([local.whole()], owner.incarnation(), Access::Read, forever).unwrap();
    let transfer = peer.write(local.whole(), remote).deadline(forever).notify(b"x").submit();
    assert!(transfer.unwrap().wait_for(forever).unwrap().is_ok());
    assert!(owner.wait_notification(forever).is_some());
    drop(grant);
    local.unregister(forever);
    engine.shutdown(forever);
}

#[tokio::test]
async fn a_deadline_that_is_over_ends_its_transfer_before_it_starts() {
    let ((owner, _cache), (initiator, local)) = (host().await, host().await);
    let peer = initiator.connect(owner.address()).await.unwrap();
    let remote = peer.regions().remove(0).span(0, 4096).unwrap();
    let request = peer.write(local.span(0, 4096).unwrap(), remote).deadline(Duration::ZERO);
    let error = request.await.unwrap_err();
    assert!(matches!(error.cause, Error::Deadline { .. }), "{error}");
    assert_eq!(error.remote, kvferry_engine::Remote::Untouched);
}

#[tokio::test]
async fn what_was_shared_for_one_access_stays_shared_when_another_is_added() {
    let ((owner, _cache), (initiator, local)) = (host().await, host().await);
    let late = owner.registry().allocate(1 << 20).unwrap();
    late.share(Access::Read).unwrap();
    late.share(Access::Write).unwrap();
    let peer = initiator.connect(owner.address()).await.unwrap();
    let remote = peer.find(late.base(), 4096).unwrap().span(0, 4096).unwrap();
    peer.read(remote, local.span(0, 4096).unwrap()).await.unwrap();
    peer.write(local.span(0, 4096).unwrap(), remote).await.unwrap();
}

#[tokio::test]
async fn a_part_of_a_region_does_not_share_the_whole() {
    let registry = Registry::new();
    let whole = registry.allocate(1 << 20).unwrap();
    let base = std::ptr::with_exposed_provenance_mut(usize::try_from(whole.base()).unwrap());
    // SAFETY: `whole` outlives it, and nobody holds a reference into the range.
    let part = unsafe { kvferry_engine::Memory::foreign(base, 4096) }.unwrap();
    let part = registry.register(part, Access::ReadWrite).unwrap();
    let error = part.share(Access::Read).unwrap_err();
    assert!(matches!(error, Error::PartOfRegion { length: 4096, .. }), "{error}");
    assert_eq!(registry.grant_count(), 0);
    let shared = whole.share(Access::Read).unwrap();
    assert_eq!(part.share(Access::Read).unwrap(), shared, "it is shared with the whole");
    let error = part.share(Access::Write).unwrap_err();
    assert!(matches!(error, Error::PartOfRegion { length: 4096, .. }), "{error}");
}

#[tokio::test]
async fn ready_means_that_all_that_was_published_is_known() {
    let ((owner, cache), (initiator, _local)) = (host().await, host().await);
    let peer = initiator.connect(owner.address()).await.unwrap();
    for round in 0..5 {
        for index in 0..2500 {
            blocks(&cache).publish(&format!("{round}-{index}")).unwrap();
        }
        peer.ready().await.unwrap();
        for index in 0..2500 {
            peer.layout(&format!("{round}-{index}")).unwrap();
        }
    }
}

#[tokio::test]
async fn connecting_ends_when_lanes_lead_to_somebody_else() {
    let (other, _cache) = host().await;
    let lanes = format!("127.0.0.1:{}", other.lane_port());
    let owner = tcp_engine(&Registry::new()).lane_advertise(lanes).start().await.unwrap();
    let (initiator, _local) = host().await;
    for _ in 0..2 {
        let connecting = initiator.connect(owner.address());
        let connected = tokio::time::timeout(SECONDS, connecting).await.expect("it ends");
        assert!(matches!(connected, Err(Error::Unreachable { .. })), "{connected:?}");
    }
}

#[tokio::test]
async fn peers_that_nobody_uses_any_more_are_forgotten() {
    let (owner, _cache) = host().await;
    let initiator =
        tcp_engine(&Registry::new()).idle_after(Duration::from_millis(100)).start().await.unwrap();
    for _ in 0..20 {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let nobody = listener.local_addr().unwrap();
        drop(listener);
        initiator.connect(nobody).await.unwrap_err();
    }
    let kept = initiator.connect(owner.address()).await.unwrap();
    let by_name = format!("localhost:{}", owner.address().port());
    drop(initiator.connect(by_name).await.unwrap());
    let mut waited = Duration::ZERO;
    while initiator.status().peers > 1 || owner.status().lanes_accepted > 0 {
        assert!(waited < SECONDS, "{:?}", initiator.status());
        tokio::time::sleep(Duration::from_millis(50)).await;
        waited += Duration::from_millis(50);
    }
    kept.notify(b"still there").await.unwrap();
    assert_eq!(&*owner.next_notification().await.bytes, b"still there");
}
