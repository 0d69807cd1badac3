//! A store with an engine and memory of its own.

use std::sync::Arc;
use std::time::Duration;

use kvferry_engine::{Engine, Region, Registry, Span};
use kvferry_store::{Key, Lent, Store};

use super::master::Master;

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) struct Client {
    pub(crate) store: Store,
    /// What it puts from and gets into.
    pub(crate) memory: Region,
}

impl Client {
    pub(crate) async fn start(master: &Master, host: &str) -> Self {
        let registry = Registry::new();
        let engine = Engine::builder(registry.clone()).listen("127.0.0.1:0").start().await;
        let engine = Arc::new(engine.unwrap());
        let store = Store::builder(engine, master.address).host(host).start().await.unwrap();
        Self { store, memory: registry.allocate(4 * MIB).unwrap() }
    }

    /// One that lends.
    pub(crate) async fn lending(master: &Master, host: &str, bytes: u64) -> (Self, Lent) {
        let client = Self::start(master, host).await;
        let mut lent = client.store.lend(bytes, host).unwrap();
        lent.mounted().await.unwrap();
        (client, lent)
    }

    /// Fills memory from an offset on with bytes that tell where they belong, and names them.
    pub(crate) fn fill(&self, offset: u64, length: u64, seed: u8) -> Span {
        let bytes: Vec<u8> = (0..length).map(|at| pattern(at, seed)).collect();
        self.memory.write_at(offset, &bytes).unwrap();
        self.memory.span(offset, length).unwrap()
    }

    /// Whether memory from an offset on has those bytes.
    pub(crate) fn has(&self, offset: u64, length: u64, seed: u8) -> bool {
        let mut bytes = vec![0; usize::try_from(length).unwrap()];
        self.memory.read_at(offset, &mut bytes).unwrap();
        bytes.iter().zip(0..).all(|(byte, at)| *byte == pattern(at, seed))
    }

    pub(crate) fn span(&self, offset: u64, length: u64) -> Span {
        self.memory.span(offset, length).unwrap()
    }
}

fn pattern(at: u64, seed: u8) -> u8 {
    let mixed = (at ^ (at >> 8)).wrapping_mul(167).wrapping_add(u64::from(seed) * 31);
    u8::try_from(mixed % 251).unwrap()
}

pub(crate) fn key(name: &str) -> Key {
    Key::try_from(name).unwrap()
}

/// Waits for something that happens in the background.
pub(crate) async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: not within ten seconds");
}
