//! Registry, planning, peers and transfers: kvferry's public API.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use kvferry_engine::{Engine, Layout, Registry};
//!
//! let registry = Registry::new();
//! let engine = Engine::builder(registry.clone()).listen("[::]:0").start().await?;
//! let cache = registry.allocate(1 << 30)?;
//! let layer = cache.layout(Layout { offset: 0, block_bytes: 65536, stride: 65536, count: 1024 })?;
//!
//! let prefill = engine.connect("prefill-0:7001").await?;
//! let remote = prefill.layout("layer.0")?;
//! prefill.read(remote.blocks([9, 1, 2]), layer.blocks([3, 17, 4])).notify(b"req-42").await?;
//! # Ok(())
//! # }
//! ```
//!
//! Decisions are made by state machines without I/O, which take the time and an event and return
//! what to do; thin drivers carry that out. The first kind is public, so that a simulator can run
//! it.
//!
//! | module | what stands there | I/O |
//! |---|---|---|
//! | `registry` | regions, layouts, grants, and what peers are told of them | none |
//! | [`plan`] | from pairs of spans to slices | none |
//! | [`transfer`] | one transfer: slices, acknowledgements, cancel, deadline, fence, failover | none |
//! | [`session`] | one peer: handshake, back-off, lanes, transfers, liveness | none |
//! | [`serve`] | the owner's side; [`serve::inbound`] is its state machine | lanes |
//! | `remote` | the copy of a peer's table, and handles into it | none |
//! | `request`, `completion`, `ending` | what a caller asks for, and the end it waits for | none |
//! | `inbox` | notifications that wait for the program, each peer with a fair share of the room | none |
//! | `passage` | the fence: how permission to touch memory is withdrawn for certain | none |
//! | `peer` | the driver of one session | lanes |
//! | `loan` | memory that two engines lend each other, lane by lane | lanes |
//! | `rdma` | lanes with a queue pair: adapters and what they tell, keys, slices that are read by the adapter, their fence | adapters |
//! | `outreach` | what a session asks for that takes its time: handshakes, lanes, alarms | none |
//! | `control` | gRPC between engines, and how lanes come about | sockets |
//! | [`bootstrap`] | where workers of a prefill deployment register and are found; [`bootstrap::table`] is its state machine | sockets |
//! | [`metrics`] | what an engine counts, and by which names it is shown | none |
//! | [`topology`] | which RDMA devices are used, with whom, and why the others are not | none |
//! | [`size`] | sizes in bytes, as people write and read them | none |
//! | `simulation` | engines in virtual time, driven by hand (feature `simulation`) | socket pairs |
//! | `engine`, `builder`, `core`, `lanes`, `net`, `transports`, `error`, `sync`, `time` | the whole, its settings, addresses, errors | |
#![forbid(unsafe_code)]

/// Whether a guard is taken away here, to see that a simulation finds it out. Never, in an engine.
#[cfg(feature = "simulation")]
macro_rules! planted {
    ($bug:ident) => {
        crate::simulation::is_planted(crate::simulation::Bug::$bug)
    };
}
#[cfg(not(feature = "simulation"))]
macro_rules! planted {
    ($bug:ident) => {
        false
    };
}

pub mod bootstrap;
mod builder;
mod completion;
mod control;
mod core;
mod ending;
mod engine;
mod error;
mod inbox;
mod lanes;
mod loan;
pub mod metrics;
mod net;
mod outreach;
mod passage;
mod peer;
pub mod plan;
mod rdma;
mod registry;
mod remote;
mod request;
pub mod serve;
pub mod session;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod size;
mod sync;
mod time;
pub mod topology;
pub mod transfer;
mod transports;

/// The example of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

pub use builder::EngineBuilder;
pub use completion::{Ended, Report, Transfer};
pub use engine::{Engine, EngineStatus, Tasks};
pub use error::{Error, Remote, TransferError};
pub use inbox::Notification;
pub use net::{Endpoint, IntoEndpoint};
pub use peer::{Peer, PeerStatus};
pub use rdma::{Rdma, RdmaError};
pub use registry::{
    BlockList, Grant, Layout, LayoutView, Region, Registry, Released, Span, crc32c,
};
pub use remote::{RemoteBlocks, RemoteGrant, RemoteLayout, RemoteRegion, RemoteSpan};
pub use request::{LocalSpans, RemoteSpans, Request};
pub use transports::{Transport, Transports};

/// Memory to register: allocated, foreign, a mapped file, or a device's.
pub use kvferry_transport::memory::{Location, Memory, MemoryError, Pages};

/// What adapters were asked to do.
pub use kvferry_transport::rdma::verbs::Counts as RdmaCounts;

/// What a peer says of a slice.
pub use kvferry_proto::frame::Status;
/// Identities and access, as they are on the wire.
pub use kvferry_proto::{Access, GrantId, Incarnation, RegionId, TransferId};
