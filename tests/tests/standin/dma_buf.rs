//! Memory of devices, which adapters reach by dma-bufs and no processor does: a file in memory stands for
//! it, and at its addresses nothing is mapped.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use kvferry_engine::{
    Access, Engine, Error, Grant, Layout, LayoutView, Memory, MemoryError, Peer, Rdma, Region,
    Registry, Remote, RemoteGrant, RemoteLayout, RemoteSpans, Request, TransferError, Transport,
    Transports,
};
use kvferry_tests::own::await_lanes;
use kvferry_tests::pattern;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::library::{BLOCK, End, StandIn, await_that};
use crate::replaced::{auto, carrier};

const BLOCKS: u64 = 1024;
const BYTES: u64 = BLOCKS * BLOCK;

/// Where the memory starts in its dma-buf: not at the start of a page.
const WITHIN: u64 = 3 * BLOCK + 512;

/// Memory that holds blocks.
struct Cache {
    region: Region,
    /// What stands for it, where it is a device's.
    exported: Option<File>,
}

/// A dma-buf of `bytes` and what surrounds them, and the memory by an address of its own.
fn exported(number: u64, bytes: u64) -> (File, Memory) {
    let file = File::from(memfd_create("exported", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(WITHIN + bytes + BLOCK).unwrap();
    let base = 0x0dea_0000_0000 + (number << 32) + WITHIN % BLOCK;
    let memory = Memory::dma_buf(file.try_clone().unwrap().into(), WITHIN, base, bytes).unwrap();
    (file, memory)
}

impl Cache {
    fn on_device(registry: &Registry) -> Self {
        let (file, memory) = exported(0, BYTES);
        let region = registry.register(memory, Access::ReadWrite).unwrap();
        Self { region, exported: Some(file) }
    }

    fn on_host(registry: &Registry) -> Self {
        Self { region: registry.allocate(BYTES).unwrap(), exported: None }
    }

    fn fill(&self, seed: u64) {
        let bytes = pattern::bytes_at(seed, 0, BYTES);
        match &self.exported {
            Some(file) => file.write_all_at(&bytes, WITHIN).unwrap(),
            None => self.region.write_at(0, &bytes).unwrap(),
        }
    }

    fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(BYTES).unwrap()];
        match &self.exported {
            Some(file) => file.read_exact_at(&mut bytes, WITHIN).unwrap(),
            None => self.region.read_at(0, &mut bytes).unwrap(),
        }
        bytes
    }

    fn holds(&self, seed: u64) -> bool {
        self.content() == pattern::bytes_at(seed, 0, BYTES)
    }

    /// Whether the blocks are those of the contents called `seed`, from the last to the first.
    fn holds_reversed(&self, seed: u64) -> bool {
        let there = pattern::bytes_at(seed, 0, BYTES);
        let block = usize::try_from(BLOCK).unwrap();
        self.content().chunks(block).eq(there.chunks(block).rev())
    }

    fn layer(&self) -> LayoutView {
        let layout = Layout { offset: 0, block_bytes: BLOCK, stride: BLOCK, count: BLOCKS };
        self.region.layout(layout).unwrap()
    }

    fn share(&self, name: &str) {
        self.layer().publish(name).unwrap();
        self.region.share(Access::ReadWrite).unwrap();
    }

    /// Permits one engine everything, without telling it where the memory lives.
    fn grant(&self, owner: &Engine, to: &Engine) -> (Grant, Arc<RemoteGrant>) {
        let (spans, minute) = ([self.region.whole()], Duration::from_secs(60));
        let grant = owner.grant(spans, to.incarnation(), Access::ReadWrite, minute).unwrap();
        let remote = Arc::new(RemoteGrant::from_ticket(&owner.ticket(&grant)).unwrap());
        (grant, remote)
    }
}

/// A push or a pull of all blocks, which end up in the opposite order.
fn reversed(peer: &Peer, pushes: bool, near: &Cache, far: &RemoteLayout) -> Request {
    let last = u32::try_from(BLOCKS).unwrap() - 1;
    let (here, there) = (near.layer().blocks(0..=last), far.blocks((0..=last).rev()));
    if pushes { peer.write(here, there) } else { peer.read(there, here) }
}

/// The first bytes of what was granted.
fn part_of(granted: &Arc<RemoteGrant>, bytes: u64) -> RemoteSpans {
    RemoteSpans::from(granted.spans()[0].part(0, bytes).unwrap()).under(granted)
}

fn assert_rdma_only(error: &TransferError, says: &str) {
    assert!(matches!(error.cause, Error::RdmaOnly { .. }), "{error}");
    let text = error.to_string();
    for part in ["memory of a device moves by RDMA only", "KVFERRY_TRANSPORT=rdma", says] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn blocks_are_pushed_into_and_pulled_out_of_memory_of_devices_and_nothing_is_left_registered() {
    let standin = StandIn::with_adapters(2);
    // So that a cache has several parts.
    standin.limit_registrations(1 << 20);
    let target = End::new(&standin, 64, |builder| builder);
    let initiator = End::new(&standin, 64, |builder| builder);
    let at_rest = standin.registrations();
    let far = [Cache::on_device(target.registry()), Cache::on_host(target.registry())];
    assert_eq!(
        standin.registrations(),
        at_rest + 2 * 2 * 4,
        "two caches, two adapters, four parts"
    );
    far[0].share("on device");
    far[1].share("on host");
    let near = [Cache::on_device(initiator.registry()), Cache::on_host(initiator.registry())];
    let peer = initiator.own.connect_to(&target.engine().address().to_string()).unwrap();
    let theirs = [peer.layout("on device").unwrap(), peer.layout("on host").unwrap()];
    let mut seed = 0;
    for (here, there) in [(0, 0), (1, 0), (0, 1)] {
        for pushes in [true, false] {
            seed += 1;
            near[here].fill(seed);
            far[there].fill(seed + 100);
            let request = reversed(&peer, pushes, &near[here], &theirs[there]);
            let report = request.notify(b"it is there").submit().unwrap().wait().unwrap();
            assert_eq!((report.transport, report.by_reference), ("rdma", true));
            assert_eq!((report.pairs, report.bytes), (BLOCKS, BYTES));
            let (landed, sent) =
                if pushes { (&far[there], seed) } else { (&near[here], seed + 100) };
            assert!(landed.holds_reversed(sent), "{here} {there} {pushes}");
            let told = target.engine().wait_notification(Duration::from_secs(5)).unwrap();
            assert_eq!(&*told.bytes, b"it is there");
        }
    }
    assert_eq!(standin.adapters_used(), 2);
    drop((near, far));
    assert_eq!(standin.registrations(), at_rest);
}

#[test]
fn over_tcp_nothing_of_it_moves_and_the_error_says_what_to_do() {
    let standin = StandIn::with_adapters(1);
    let bare = StandIn::with_adapters(0);
    let target = End::new(&standin, 64, auto(&standin)).shared();
    let none = Rdma::default().host(bare.host_root());
    let initiator = End::new(&standin, 64, |builder| auto(&standin)(builder).rdma(none));
    let (peer, remote) = initiator.meet(&target);
    assert_eq!(carrier(&peer), Some(Transport::Tcp));
    let theirs = Cache::on_device(target.registry());
    theirs.fill(1);
    let ours = Cache::on_device(initiator.registry());
    ours.fill(2);
    let host = Cache::on_host(initiator.registry());
    host.fill(3);

    // Where the memory lives is not known here, so it is the owner that refuses: what is small and what is
    // large, whether it would carry checksums or not.
    let (grant, granted) = theirs.grant(target.engine(), initiator.engine());
    for bytes in [100, BLOCK, BYTES] {
        for checksum in [false, true] {
            let (here, there) = (host.region.span(0, bytes).unwrap(), part_of(&granted, bytes));
            let write = peer.write(here.clone(), there.clone()).notify(b"not this");
            let read = peer.read(there, here);
            for request in [write, read] {
                let error = request.checksum(checksum).submit().unwrap().wait().unwrap_err();
                assert_rdma_only(&error, "in another way");
                assert_eq!(error.remote, Remote::Fenced);
            }
        }
    }
    grant.revoke();

    // Where it is known nothing is sent.
    theirs.share("on device");
    initiator.own.catch_up(&peer);
    let layer = peer.layout("on device").unwrap();
    let all = || (initiator.layer.blocks(initiator.all()), remote.blocks(target.all()));
    let part = || ours.layer().blocks(initiator.all());
    for request in [
        reversed(&peer, true, &host, &layer),
        reversed(&peer, false, &host, &layer),
        reversed(&peer, true, &ours, &layer),
        peer.write(part(), all().1),
        peer.read(all().1, part()),
    ] {
        let error = request.submit().unwrap_err();
        assert_rdma_only(&error, "tcp carries transfers to");
        assert!(error.to_string().contains("no RDMA port that can be used"), "{error}");
        assert_eq!((error.remote, error.transfer), (Remote::Untouched, None));
    }
    assert!(theirs.holds(1) && ours.holds(2) && host.holds(3));

    // All else goes on, and nothing else was announced.
    initiator.fill(4);
    let (from, to) = all();
    peer.write(from, to).notify(b"this").submit().unwrap().wait().unwrap();
    assert_eq!(target.first_wrong(4), None);
    let told = target.engine().wait_notification(Duration::from_secs(5)).unwrap();
    assert_eq!(&*told.bytes, b"this");
}

#[test]
fn processes_of_one_host_do_not_move_it_by_what_they_share() {
    let standin = StandIn::with_adapters(1);
    let met = standin.private_directory();
    let start = |builder: kvferry_engine::EngineBuilder| {
        builder.transports(Transports::Auto).run_directory(met.clone())
    };
    let target = End::new(&standin, 64, start).shared();
    let initiator = End::new(&standin, 64, start);
    let (peer, remote) = initiator.meet(&target);
    assert_eq!(carrier(&peer), Some(Transport::Local));
    let (theirs, host) =
        (Cache::on_device(target.registry()), Cache::on_host(initiator.registry()));
    theirs.fill(1);
    host.fill(2);
    let (_grant, granted) = theirs.grant(target.engine(), initiator.engine());
    // By the ring, by the socket, and by a mapping.
    for bytes in [100, 16 << 10, BYTES] {
        let (here, there) = (host.region.span(0, bytes).unwrap(), part_of(&granted, bytes));
        for request in [peer.write(here.clone(), there.clone()), peer.read(there, here)] {
            let error = request.submit().unwrap().wait().unwrap_err();
            assert_rdma_only(&error, "in another way");
        }
    }
    let ours = Cache::on_device(initiator.registry());
    let part = ours.layer().blocks(initiator.all());
    let error = peer.write(part, remote.blocks(target.all())).submit().unwrap_err();
    assert_rdma_only(&error, "local carries transfers to");
    assert!(theirs.holds(1) && host.holds(2));
    let (from, to) = (initiator.layer.blocks(initiator.all()), remote.blocks(target.all()));
    peer.write(from, to).submit().unwrap().wait().unwrap();
}

#[test]
fn tcp_that_takes_rdmas_place_does_not_finish_it_and_finishes_all_else() {
    let standin = StandIn::with_adapters(1);
    let target = End::new(&standin, 1024, auto(&standin)).shared();
    let initiator = End::new(&standin, 1024, auto(&standin));
    let theirs = Cache::on_device(target.registry());
    theirs.share("on device");
    let host = Cache::on_host(initiator.registry());
    let (peer, remote) = initiator.meet(&target);
    let layer = peer.layout("on device").unwrap();
    for pushes in [true, false] {
        await_that("RDMA is used", || carrier(&peer) == Some(Transport::Rdma));
        await_lanes(&peer, 2);
        theirs.fill(1);
        host.fill(2);
        initiator.fill(3);
        standin.hold(true);
        let lost = reversed(&peer, pushes, &host, &layer).submit().unwrap();
        let (from, to) = (initiator.layer.blocks(initiator.all()), remote.blocks(target.all()));
        let kept = peer.write(from, to).submit().unwrap();
        await_that("requests are under way", || standin.waiting() > 0);
        standin.cut_off(0, true);
        standin.hold(false);
        let error = lost.wait().unwrap_err();
        assert!(matches!(error.cause, Error::RdmaFailed { .. }), "{error}");
        assert!(error.cause.is_retryable());
        assert!(error.to_string().contains("memory of a device"), "{error}");
        assert_eq!(error.remote, Remote::Fenced);
        assert!(kept.wait().unwrap().transport.ends_with("tcp"));
        assert_eq!(target.first_wrong(3), None);
        assert!(theirs.holds(1) && host.holds(2));
        standin.cut_off(0, false);
    }
    await_that("RDMA is used", || carrier(&peer) == Some(Transport::Rdma));
    reversed(&peer, true, &host, &layer).submit().unwrap().wait().unwrap();
    assert!(theirs.holds_reversed(2));
}

#[test]
fn slices_of_a_queue_pair_that_failed_go_by_another() {
    let standin = StandIn::with_adapters(2);
    let target = End::new(&standin, 64, |builder| builder).shared();
    let initiator = End::new(&standin, 64, |builder| builder);
    let (ours, theirs) =
        (Cache::on_device(initiator.registry()), Cache::on_device(target.registry()));
    theirs.share("on device");
    let (peer, _) = initiator.meet(&target);
    let layer = peer.layout("on device").unwrap();
    for round in 0..8 {
        let pushes = round % 2 == 0;
        ours.fill(round);
        theirs.fill(round + 100);
        standin.fail_in_the_middle(reversed(&peer, pushes, &ours, &layer));
        let (landed, sent) = if pushes { (&theirs, round) } else { (&ours, round + 100) };
        assert!(landed.holds_reversed(sent), "round {round}");
    }
}

#[test]
fn memory_of_a_device_that_is_unregistered_while_it_is_written_is_touched_no_more() {
    let standin = StandIn::with_adapters(1);
    let target = End::new(&standin, 64, |builder| builder).shared();
    let initiator = End::new(&standin, 64, |builder| builder);
    let at_rest = standin.registrations();
    let host = Cache::on_host(initiator.registry());
    host.fill(1);
    let theirs = Cache::on_device(target.registry());
    theirs.share("on device");
    let (peer, _) = initiator.meet(&target);
    let layer = peer.layout("on device").unwrap();
    standin.hold(true);
    let transfer = reversed(&peer, true, &host, &layer).submit().unwrap();
    await_that("requests are under way", || standin.waiting() > 0);
    let Cache { region, exported } = theirs;
    region.unregister(Duration::from_millis(50));
    // From here on the memory is the device's alone.
    let exported = exported.unwrap();
    exported.write_all_at(&vec![7; usize::try_from(BYTES).unwrap()], WITHIN).unwrap();
    standin.hold(false);
    standin.release(usize::MAX);
    let error = transfer.wait().unwrap_err();
    assert!(matches!(error.cause, Error::Refused { .. }), "{error}");
    let mut now = vec![0; usize::try_from(BYTES).unwrap()];
    exported.read_exact_at(&mut now, WITHIN).unwrap();
    assert!(now.iter().all(|byte| *byte == 7));
    drop(host);
    assert_eq!(standin.registrations(), at_rest);
}

/// That memory of a device is not registered, and that of the host is.
fn assert_refused(standin: &StandIn, transports: Transports, says: &[&str]) {
    let apart = standin.private_directory();
    let end = End::new(standin, 64, |b| b.transports(transports).run_directory(apart));
    let before = (standin.live(), end.registry().region_count());
    let (_, memory) = exported(0, BYTES);
    let error = end.registry().register(memory, Access::ReadWrite).unwrap_err();
    assert!(matches!(error, Error::Rdma(_)), "{error}");
    for part in says {
        assert!(error.to_string().contains(part), "{part} is not in: {error}");
    }
    assert_eq!((standin.live(), end.registry().region_count()), before);
    let _host = end.registry().allocate(1 << 20).unwrap();
    assert!(standin.live() > before.0, "{transports:?}");
}

#[test]
fn an_adapter_without_dma_bufs_is_an_error_that_names_the_fix_and_carries_all_else() {
    for transports in [Transports::Only(Transport::Rdma), Transports::Auto] {
        let standin = StandIn::with_adapters(2);
        // Of two, one does.
        standin.takes_dma_bufs(1, false);
        let says = ["standin1 takes no dma-bufs", "Linux 5.12 or later", "nvidia_peermem"];
        assert_refused(&standin, transports, &says);
        standin.takes_dma_bufs(1, true);
        standin.refuse(c"ibv_reg_dmabuf_mr");
        assert_refused(&standin, transports, &["ibv_reg_dmabuf_mr failed on standin"]);
        let says = ["standin0 takes no dma-bufs", "rdma-core 34 or later"];
        assert_refused(&StandIn::before_dma_bufs(1), transports, &says);
    }
}

#[test]
fn memory_that_the_adapters_of_an_engine_do_not_take_is_not_moved_by_it_and_all_else_is() {
    let standin = StandIn::with_adapters(1);
    standin.takes_dma_bufs(0, false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (theirs, ours) = (Registry::new(), Registry::new());
    let (far, far_host) = (Cache::on_device(&theirs), Cache::on_host(&theirs));
    let (near, near_host) = (Cache::on_device(&ours), Cache::on_host(&ours));
    far.share("on device");
    far_host.share("on host");
    let builder = |registry: &Registry| {
        let builder = Engine::builder(registry.clone()).listen("127.0.0.1:0");
        builder.rdma(standin.rdma()).run_directory(standin.private_directory())
    };
    // It is demanded.
    let only = Transports::Only(Transport::Rdma);
    let error = builder(&theirs).transports(only).start_blocking().unwrap_err();
    assert!(error.to_string().contains("takes no dma-bufs"), "{error}");
    assert_eq!(standin.live(), 0);
    let start = |registry| builder(registry).transports(Transports::Auto).start_blocking().unwrap();
    let (target, initiator) = (start(&theirs), start(&ours));
    let peer = runtime.block_on(initiator.connect(target.address().to_string())).unwrap();
    assert_eq!(carrier(&peer), Some(Transport::Rdma));
    let (layer, host_layer) = (peer.layout("on device").unwrap(), peer.layout("on host").unwrap());
    far.fill(1);
    near.fill(2);
    near_host.fill(3);
    for pushes in [true, false] {
        let transfer = reversed(&peer, pushes, &near_host, &layer).submit().unwrap();
        assert_rdma_only(&transfer.wait().unwrap_err(), "the peer was asked for slice");
        let transfer = reversed(&peer, pushes, &near, &host_layer).submit().unwrap();
        assert_rdma_only(&transfer.wait().unwrap_err(), "the adapter of the lane does not reach");
    }
    assert!(far.holds(1) && near.holds(2) && near_host.holds(3));
    let report = reversed(&peer, true, &near_host, &host_layer).submit().unwrap().wait().unwrap();
    assert_eq!(report.transport, "rdma");
    assert!(far_host.holds_reversed(3));
}

#[test]
fn what_takes_a_processor_is_refused_over_rdma_too() {
    let standin = StandIn::with_adapters(1);
    let target = End::new(&standin, 64, |builder| builder).shared();
    let initiator = End::new(&standin, 64, |builder| builder);
    let (ours, theirs) =
        (Cache::on_device(initiator.registry()), Cache::on_device(target.registry()));
    ours.fill(1);
    theirs.fill(2);
    theirs.share("on device");
    let file = |end: &End| {
        let file = tempfile::tempfile().unwrap();
        file.set_len(BYTES).unwrap();
        let region = end.registry().register(Memory::map_file(file).unwrap(), Access::ReadWrite);
        Cache { region: region.unwrap(), exported: None }
    };
    let (our_file, their_file) = (file(&initiator), file(&target));
    let (peer, remote) = initiator.meet(&target);
    let layer = peer.layout("on device").unwrap();

    let part = ours.layer().blocks(initiator.all());
    let write = peer.write(part, remote.blocks(target.all())).checksum(true);
    assert_rdma_only(&write.submit().unwrap_err(), "a checksum was asked for");
    let pull = reversed(&peer, false, &our_file, &layer);
    assert_rdma_only(&pull.submit().unwrap_err(), "land in a file");
    let push = reversed(&peer, true, &our_file, &layer).submit().unwrap();
    assert_rdma_only(&push.wait().unwrap_err(), "it is a file");
    // A file of the peer's that is not known as one comes as a payload, which is dropped.
    let (_grant, granted) = their_file.grant(target.engine(), initiator.engine());
    let error = peer.read(&granted, ours.region.whole()).submit().unwrap().wait().unwrap_err();
    assert_rdma_only(&error, "it is a file");

    let mut byte = [0];
    match ours.region.read_at(0, &mut byte) {
        Err(Error::Memory(error)) => assert!(matches!(*error, MemoryError::OnDevice), "{error}"),
        other => panic!("{other:?}"),
    }
    assert!(ours.holds(1) && theirs.holds(2));
    reversed(&peer, true, &ours, &layer).submit().unwrap().wait().unwrap();
    assert!(theirs.holds_reversed(1));
}

#[test]
fn memory_that_a_devices_driver_tells_adapters_of_is_registered_by_its_address() {
    let standin = StandIn::with_adapters(1);
    standin.takes_dma_bufs(0, false);
    let target = End::new(&standin, 64, |builder| builder);
    let initiator = End::new(&standin, 64, |builder| builder);
    // What stands for the device's memory, which this process can look at as it is.
    let arena = Memory::allocate(usize::try_from(BYTES).unwrap()).unwrap();
    // SAFETY: nobody but the adapter touches it by this, and it outlives the region.
    let memory = unsafe { Memory::device(arena.base(), BYTES) }.unwrap();
    let region = target.registry().register(memory, Access::ReadWrite).unwrap();
    let theirs = Cache { region, exported: None };
    theirs.share("on device");
    let host = Cache::on_host(initiator.registry());
    host.fill(1);
    let peer = initiator.own.connect_to(&target.engine().address().to_string()).unwrap();
    let layer = peer.layout("on device").unwrap();
    let report = reversed(&peer, true, &host, &layer).submit().unwrap().wait().unwrap();
    assert_eq!(report.transport, "rdma");
    reversed(&peer, false, &host, &layer).submit().unwrap().wait().unwrap();
    assert!(host.holds(1), "there and back");
    let mut first = vec![0; usize::try_from(BLOCK).unwrap()];
    arena.copy_out(0, &mut first).unwrap();
    assert_eq!(first, pattern::bytes_at(1, BYTES - BLOCK, BLOCK));
    assert!(theirs.region.read_at(0, &mut first).is_err());
}
