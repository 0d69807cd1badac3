//! A pool: its master, those who lend and those who put and get, as processes; and clients in the
//! test's own.
//!
//! | module | what stands there |
//! |---|---|
//! | [`program`] | processes: started, heard, signalled, killed |
//! | [`load`] | clients that put, get and remove at random, and check every byte that they read |
//! | [`history`] | which bytes a read may still return |

pub mod history;
pub mod load;
pub mod program;

use std::sync::Arc;

use kvferry_engine::{Engine, Region, Registry, Transport, Transports};
use kvferry_store::{Key, Store};

use crate::process::run_directory;

/// A client of a pool, in this process.
#[derive(Debug)]
pub struct Client {
    /// Its store.
    pub store: Store,
    /// Its memory.
    pub memory: Region,
}

impl Client {
    /// One on a host of this name, with so much memory of its own, whose bytes go as these say.
    pub async fn start(master: &str, host: &str, bytes: u64, transports: Transports) -> Self {
        let registry = Registry::new();
        let engine = Engine::builder(registry.clone()).listen("127.0.0.1:0");
        let engine = engine.transports(transports).run_directory(run_directory()).start().await;
        let engine = Arc::new(engine.expect("loopback has ports"));
        let store = Store::builder(engine, master).host(host).start().await;
        let memory = registry.allocate(bytes).expect("a little memory");
        Self { store: store.expect("the master is there"), memory }
    }
}

/// Bytes go over TCP, as between hosts.
pub const TCP: Transports = Transports::Only(Transport::Tcp);

/// The key of this number.
#[must_use]
pub fn key(number: u64) -> Key {
    Key::try_from(format!("object/{number}").as_str()).expect("it is short")
}
