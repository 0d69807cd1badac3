//! The pool's client: segments that are lent, objects that are put and got.
//!
//! The pool keeps objects, blocks of KV caches for the most part, in memory that many processes lend.
//! A master knows what is where. It never sees a byte: a client asks it for room, writes into the
//! memory of the owners by its own engine, and tells it; whoever gets the object is told where it is,
//! and for how long the bytes stay, and reads them by its own engine.
//!
//! ```text
//!      put                        master                        get
//!   +--------+  room for "k"? +-------------+  where is "k"? +--------+
//!   | client | -------------> | "k": B, 4096| <------------- | client |
//!   +--------+  it is there   +-------------+  lease: 10 s   +--------+
//!       |                      ^ signs of life,                  ^
//!       |  write               | what is in it         read      |
//!       |                 +---------------------+                |
//!       `---------------> | B: segment, 64 GiB  | ---------------'
//!                         +---------------------+
//! ```
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use kvferry_engine::{Engine, Registry};
//! use kvferry_store::{Key, Store};
//!
//! let registry = Registry::new();
//! let engine = Arc::new(Engine::builder(registry.clone()).listen("[::]:0").start().await?);
//! let store = Store::builder(engine, "master:50051").start().await?;
//!
//! // Lend 4 GiB to everybody.
//! store.lend(4 << 30, "node-3")?.mounted().await?;
//!
//! // Put two scattered blocks as one object, and get it into others.
//! let cache = registry.allocate(1 << 20)?;
//! let key = Key::try_from("llama@layer.0@3f9c")?;
//! store.put(key.clone(), [cache.span(0, 65536)?, cache.span(524_288, 65536)?]).await?;
//! let bytes = store.get(key, [cache.span(131_072, 131_072)?]).await?;
//! assert_eq!(bytes, 131_072);
//! # Ok(())
//! # }
//! ```
//!
//! What can be relied on:
//!
//! - **A put that returned [`Stored::New`] can be found** until it is evicted or removed, or its
//!   last owner dies. Where `is_recorded` is set it outlives the master, too.
//! - **A get returns the bytes that were put, or an error.** It checks, when the last byte has
//!   arrived, that the lease under which they stay still runs. When it fails, what is in its spans is
//!   undefined.
//! - **What owners have is the truth.** When the master starts again, each client joins it, mounts its
//!   segments and says what is in them, without anybody's doing.
//! - **Everything ends in time**: calls to the master within 5 s, transfers by the end of the lease or
//!   the reservation that they run under.
//!
//! | module | what stands there | I/O |
//! |---|---|---|
//! | `store`, `builder` | the whole: what programs call | |
//! | `object` | what is put and got, and how | none |
//! | `decide` | state machines: membership, inventory, batches, choice of replica, room | none |
//! | `drive` | what carries decisions out: calls, transfers, threads | sockets |
//! | `error` | what can go wrong | none |
#![forbid(unsafe_code)]

mod builder;
mod decide;
mod drive;
mod error;
mod object;
mod store;

pub use builder::StoreBuilder;
pub use decide::put::Stored;
pub use decide::room::Room;
pub use drive::kernel::room;
pub use drive::lend::SegmentState;
pub use error::Error;
pub use object::{Get, GetOptions, Put, PutOptions, Removed};
pub use store::{Lent, Store, StoreStatus};

/// The examples of the handbook's page, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../docs/pool.md")]
struct Handbook;

/// Names and values of the pool, as they are on the wire.
pub use kvferry_proto::pool::{
    Key, Matching, Outcome, RemoveMatchingAnswer, SegmentId, SegmentStatus, Tenant,
};
