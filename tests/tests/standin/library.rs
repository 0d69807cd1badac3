//! The library, a machine that has its adapters, and engines on it.

use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use kvferry_engine::{
    Access, Engine, EngineBuilder, Layout, LayoutView, Peer, Rdma, Region, Registry, RemoteLayout,
    Request, Transport, Transports,
};
use kvferry_tests::hosts::Host;
use kvferry_tests::own::Own;
use kvferry_tests::pattern;
use kvferry_transport::rdma::device::HostRoot;
use kvferry_transport::rdma::verbs::Verbs;

/// The blocks of the caches.
pub(crate) const BLOCK: u64 = 4096;

/// The library, loaded a second time to tell it what to do: a file of its own for each, since a file is
/// loaded once in a process.
pub(crate) struct StandIn {
    library: libloading::Library,
    verbs: Verbs,
    host: Host,
    directory: tempfile::TempDir,
}

/// Where cargo has built it: beside this test.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("libkvferry_standin.so")
}

/// One with two adapters, for tests that tell it nothing.
pub(crate) fn shared() -> &'static StandIn {
    static SHARED: LazyLock<StandIn> = LazyLock::new(|| StandIn::with_adapters(2));
    &SHARED
}

impl StandIn {
    /// A machine with so many adapters, each on a network of its own.
    pub(crate) fn with_adapters(count: usize) -> Self {
        Self::of_library(&std::fs::read(built()).unwrap(), count)
    }

    /// The same with a library from before there were dma-bufs, which has no function for them.
    pub(crate) fn before_dma_bufs(count: usize) -> Self {
        let mut library = std::fs::read(built()).unwrap();
        let name = b"ibv_reg_dmabuf_mr\0";
        let is_there = |at: &usize| library[*at..].starts_with(name);
        let found: Vec<usize> = (0..library.len()).filter(is_there).collect();
        assert!(!found.is_empty(), "it has one by now");
        found.into_iter().for_each(|at| library[at] = b'x');
        Self::of_library(&library, count)
    }

    fn of_library(library: &[u8], count: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("libstandin.so");
        std::fs::write(&path, library).unwrap();
        // SAFETY: the stand-in's constructor does nothing.
        let library = unsafe { libloading::Library::new(&path) }.unwrap();
        // SAFETY: it has the interface of libibverbs.
        let verbs = unsafe { Verbs::load_from(path.as_os_str()) }.unwrap();
        let adapter = |at: usize| {
            format!(
                "[[roce]]\nname = \"standin{at}\"\nnetdev = \"rail{at}\"\n\
                 addresses = [\"10.77.{at}.1/24\"]\n"
            )
        };
        let adapters: String = (0..count).map(adapter).collect();
        let host = Host::of_manifest(&format!("about = \"stand-ins\"\n{adapters}")).unwrap();
        let this = Self { library, verbs, host, directory };
        // SAFETY: the function of this name has this type.
        unsafe { this.library.get::<extern "C" fn(usize)>(b"standin_devices") }.unwrap()(count);
        this
    }

    /// A directory of this user's, a new one each time: who does not share it is not met on this host.
    pub(crate) fn private_directory(&self) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let private = std::fs::Permissions::from_mode(0o700);
        let within = self.directory.path();
        tempfile::Builder::new().permissions(private).tempdir_in(within).unwrap().keep()
    }

    /// The library.
    pub(crate) fn verbs(&self) -> Verbs {
        self.verbs.clone()
    }

    /// What the kernel says of the machine.
    pub(crate) fn host_root(&self) -> HostRoot {
        self.host.root()
    }

    /// What an engine is told of it.
    pub(crate) fn rdma(&self) -> Rdma {
        let wishes = kvferry_engine::topology::Wishes::default();
        Rdma::default().verbs(self.verbs.clone()).host(self.host.root()).wishes(wishes)
    }

    fn switch(&self, name: &[u8], on: bool) {
        // SAFETY: the functions of these names have this type.
        unsafe { self.library.get::<extern "C" fn(c_int)>(name) }.unwrap()(c_int::from(on));
    }

    /// How many bytes a registration may have, for engines that are started from now on.
    pub(crate) fn limit_registrations(&self, most: u64) {
        // SAFETY: as above.
        unsafe { self.library.get::<extern "C" fn(u64)>(b"standin_region_bytes") }.unwrap()(most);
    }

    /// Whether requests wait until they are released.
    pub(crate) fn hold(&self, on: bool) {
        self.switch(b"standin_hold", on);
    }

    /// Whether those that move no bytes wait, too, while requests do: nothing is heard of a queue pair.
    pub(crate) fn hold_all(&self, on: bool) {
        self.switch(b"standin_hold_all", on);
    }

    /// Carries out up to so many requests that wait, and says how many there were.
    pub(crate) fn release(&self, most: usize) -> usize {
        // SAFETY: as above.
        unsafe { self.library.get::<extern "C" fn(usize) -> usize>(b"standin_release") }.unwrap()(
            most,
        )
    }

    /// Refuses the next call of this name.
    pub(crate) fn refuse(&self, call: &CStr) {
        // SAFETY: as above; the name ends in zero.
        unsafe {
            let refuse = self.library.get::<unsafe extern "C" fn(*const c_char)>(b"standin_refuse");
            refuse.unwrap()(call.as_ptr());
        }
    }

    /// Whether an adapter registers dma-bufs.
    pub(crate) fn takes_dma_bufs(&self, adapter: usize, on: bool) {
        // SAFETY: as above.
        let takes = unsafe { self.library.get::<extern "C" fn(usize, c_int)>(b"standin_dma_bufs") };
        takes.unwrap()(adapter, c_int::from(on));
    }

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        // SAFETY: as above.
        unsafe { self.library.get::<extern "C" fn() -> usize>(b"standin_waiting") }.unwrap()()
    }

    /// Submits a request and has a queue pair fail under it: another does the rest.
    pub(crate) fn fail_in_the_middle(&self, request: Request) {
        self.hold(true);
        let transfer = request.submit().unwrap();
        await_that("requests are under way", || self.waiting() > 0);
        self.release(3);
        assert!(self.fail_one(), "a queue pair with requests under way");
        self.hold(false);
        self.release(usize::MAX);
        let report = transfer.wait().unwrap();
        assert!(report.repeated_slices > 0);
        assert_eq!(report.transport, "rdma");
    }

    /// Has the queue pair fail whose request has waited longest; false where none waits.
    pub(crate) fn fail_one(&self) -> bool {
        // SAFETY: as above.
        let fail = unsafe { self.library.get::<extern "C" fn() -> c_int>(b"standin_fail_one") };
        fail.unwrap()() != 0
    }

    /// Whether an adapter is cut off: no packet comes through by it.
    pub(crate) fn cut_off(&self, adapter: usize, on: bool) {
        // SAFETY: as above.
        let cut = unsafe { self.library.get::<extern "C" fn(usize, c_int)>(b"standin_cut") };
        cut.unwrap()(adapter, c_int::from(on));
    }

    /// Whether the port of an adapter is up, which it tells.
    pub(crate) fn set_port(&self, adapter: usize, is_up: bool) {
        // SAFETY: as above.
        let port = unsafe { self.library.get::<extern "C" fn(usize, c_int)>(b"standin_port") };
        port.unwrap()(adapter, c_int::from(is_up));
    }

    /// Whether an adapter has another address than at first. It tells so.
    pub(crate) fn set_moved(&self, adapter: usize, on: bool) {
        // SAFETY: as above.
        let moved = unsafe { self.library.get::<extern "C" fn(usize, c_int)>(b"standin_move") };
        moved.unwrap()(adapter, c_int::from(on));
    }

    /// An adapter fails for good, and tells so.
    pub(crate) fn break_down(&self, adapter: usize) {
        // SAFETY: as above.
        unsafe { self.library.get::<extern "C" fn(usize)>(b"standin_break") }.unwrap()(adapter);
    }

    /// An adapter that has failed can be opened again.
    pub(crate) fn mend(&self, adapter: usize) {
        // SAFETY: as above.
        unsafe { self.library.get::<extern "C" fn(usize)>(b"standin_mend") }.unwrap()(adapter);
    }

    /// How often adapters are open.
    pub(crate) fn contexts(&self) -> usize {
        // SAFETY: as above.
        unsafe { self.library.get::<extern "C" fn() -> usize>(b"standin_contexts") }.unwrap()()
    }

    /// How many queue pairs there are on an adapter.
    pub(crate) fn pairs_on(&self, adapter: usize) -> usize {
        // SAFETY: as above.
        let pairs = unsafe { self.library.get::<extern "C" fn(usize) -> usize>(b"standin_pairs") };
        pairs.unwrap()(adapter)
    }

    /// How many registrations of memory there are.
    pub(crate) fn registrations(&self) -> usize {
        // SAFETY: as above.
        unsafe { self.library.get::<extern "C" fn() -> usize>(b"standin_registrations") }.unwrap()()
    }

    /// On how many adapters requests were posted.
    pub(crate) fn adapters_used(&self) -> usize {
        // SAFETY: as above.
        unsafe { self.library.get::<extern "C" fn() -> usize>(b"standin_devices_used") }.unwrap()()
    }

    /// How many objects there are that were made and not given back.
    pub(crate) fn live(&self) -> usize {
        // SAFETY: as above.
        unsafe { self.library.get::<extern "C" fn() -> usize>(b"standin_live") }.unwrap()()
    }

    /// An engine that uses RDMA and nothing else, unless it is set otherwise.
    pub(crate) fn engine(&self, set: impl FnOnce(EngineBuilder) -> EngineBuilder) -> Own {
        let only = Transports::Only(Transport::Rdma);
        Own::start_with(|builder| set(builder.transports(only).rdma(self.rdma())))
    }
}

/// An engine with a cache of blocks.
pub(crate) struct End {
    pub(crate) own: Own,
    pub(crate) cache: Region,
    pub(crate) layer: LayoutView,
    pub(crate) blocks: u64,
}

impl End {
    pub(crate) fn new(
        standin: &StandIn,
        blocks: u64,
        set: impl FnOnce(EngineBuilder) -> EngineBuilder,
    ) -> Self {
        let own = standin.engine(set);
        let cache = own.registry.allocate(blocks * BLOCK).unwrap();
        let layout = Layout { offset: 0, block_bytes: BLOCK, stride: BLOCK, count: blocks };
        let layer = cache.layout(layout).unwrap();
        Self { own, cache, layer, blocks }
    }

    /// Shares the cache with everybody.
    pub(crate) fn shared(self) -> Self {
        self.cache.share(Access::ReadWrite).unwrap();
        self.layer.publish("cache").unwrap();
        self
    }

    /// The other as a peer, with its cache.
    pub(crate) fn meet(&self, other: &Self) -> (Peer, RemoteLayout) {
        let peer = self.own.connect_to(&other.engine().address().to_string()).unwrap();
        let layout = peer.layout("cache").unwrap();
        (peer, layout)
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.own.engine
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.own.registry
    }

    pub(crate) fn fill(&self, seed: u64) {
        pattern::fill(&self.cache, 0, self.blocks * BLOCK, seed, 0).unwrap();
    }

    /// Where the cache does not hold these contents, each block of its own place.
    pub(crate) fn first_wrong(&self, seed: u64) -> Option<u64> {
        pattern::first_wrong(&self.cache, 0, self.blocks * BLOCK, seed, 0).unwrap()
    }

    pub(crate) fn all(&self) -> Vec<u32> {
        (0..u32::try_from(self.blocks).unwrap()).collect()
    }
}

/// A transfer of all blocks between two ends, a push and a pull by turns, of contents of its own.
pub(crate) struct Round<'a> {
    number: u64,
    initiator: &'a End,
    target: &'a End,
}

impl<'a> Round<'a> {
    pub(crate) fn new(number: u64, initiator: &'a End, target: &'a End) -> Self {
        initiator.fill(number);
        target.fill(number + 100);
        Self { number, initiator, target }
    }

    fn pushes(&self) -> bool {
        self.number.is_multiple_of(2)
    }

    /// The transfer, with the target as its initiator met it.
    pub(crate) fn request(&self, peer: &Peer, remote: &RemoteLayout) -> Request {
        let here = self.initiator.layer.blocks(self.initiator.all());
        let there = remote.blocks(self.target.all());
        if self.pushes() { peer.write(here, there) } else { peer.read(there, here) }
    }

    /// That all of it is where it was to go.
    pub(crate) fn assert_moved(&self) {
        let (end, seed) = if self.pushes() {
            (self.target, self.number)
        } else {
            (self.initiator, self.number + 100)
        };
        assert_eq!(end.first_wrong(seed), None, "round {}", self.number);
    }
}

/// Waits until something is so; panics after ten seconds.
pub(crate) fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(10), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
