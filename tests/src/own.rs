//! An engine in the test's own process, with all of its interface at hand.

use std::time::{Duration, Instant};

use kvferry_engine::topology::Wishes;
use kvferry_engine::{Engine, EngineBuilder, Error, Peer, Rdma, Registry, Transport, Transports};
use tokio::runtime::Runtime;

use crate::process::{NEAR_DEVICE, Process, over_by_environment, run_directory};

/// An engine, its registry, and what awaits its futures.
#[derive(Debug)]
pub struct Own {
    /// The registry.
    pub registry: Registry,
    /// The engine.
    pub engine: Engine,
    runtime: Runtime,
}

impl Own {
    /// Starts one with default settings.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(|builder| builder)
    }

    /// Starts one.
    #[must_use]
    pub fn start_with(set: impl FnOnce(EngineBuilder) -> EngineBuilder) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let registry = Registry::new();
        let mut builder = Engine::builder(registry.clone()).listen("127.0.0.1:0");
        if let Some(transport) = over_by_environment() {
            builder =
                builder.transports(Transports::Only(transport)).run_directory(run_directory());
            if transport == Transport::Rdma {
                builder = builder.rdma(adapters(NEAR_DEVICE));
            }
        }
        let engine = set(builder).start_blocking().expect("loopback has ports");
        Self { registry, engine, runtime: runtime.expect("a system with epoll") }
    }

    /// Connects to a peer process that is there.
    #[must_use]
    pub fn connect(&self, to: &Process) -> Peer {
        self.connect_to(&to.address).expect("it is there")
    }

    /// Connects to an address.
    ///
    /// # Errors
    /// As [`Engine::connect`].
    pub fn connect_to(&self, address: &str) -> Result<Peer, Error> {
        self.runtime.block_on(self.engine.connect(address))
    }

    /// Waits until everything that a peer shares by now is known.
    pub fn catch_up(&self, peer: &Peer) {
        self.runtime.block_on(peer.ready()).expect("it is there");
    }
}

/// Settings of an engine that uses these adapters, apart by commas, and no others.
///
/// # Panics
/// Where they are no names.
#[must_use]
pub fn adapters(names: &str) -> Rdma {
    let wish = |name: &str| (name == "KVFERRY_RDMA_DEVICES").then(|| names.to_owned());
    Rdma::default().wishes(Wishes::from_environment(wish).expect("these are names of devices"))
}

/// Waits until so many lanes to a peer are open; panics after ten seconds.
pub fn await_lanes(peer: &Peer, count: usize) {
    let began = Instant::now();
    while peer.status().open_lanes < count {
        assert!(began.elapsed() < Duration::from_secs(10), "never: {peer:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
