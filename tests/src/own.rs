//! An engine in the test's own process, with all of its interface at hand.

use std::time::{Duration, Instant};

use kvferry_engine::{Engine, EngineBuilder, Error, Peer, Registry};
use tokio::runtime::Runtime;

use crate::process::Process;

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
        let builder = Engine::builder(registry.clone()).listen("127.0.0.1:0");
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

/// Waits until so many lanes to a peer are open; panics after ten seconds.
pub fn await_lanes(peer: &Peer, count: usize) {
    let began = Instant::now();
    while peer.status().open_lanes < count {
        assert!(began.elapsed() < Duration::from_secs(10), "never: {peer:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
