//! RDMA verbs: adapters that read and write the memory of other processes.
//!
//! ```text
//!  Verbs            libibverbs, loaded when asked for: a machine without it works without RDMA
//!   Context         a device that is open: its limits, ports, events
//!    ProtectionDomain  what belongs together
//!     MemoryRegion     memory that is registered: locked, reachable by keys
//!     QueuePair        a reliable connection to a peer's: requests are posted ...
//!    CompletionQueue   ... and end here
//! ```
//!
//! What is made holds what it was made with, so nothing is freed too early, whatever is dropped
//! first. What an adapter does to memory it does to a [`Memory`](crate::memory::Memory): no Rust
//! reference leads there. Bounds are checked here when a request is posted, and by the adapter,
//! which knows regions by their keys, when it is carried out.
//!
//! | module | what stands there |
//! |---|---|
//! | `abi` | what the library and its drivers expect in memory; compared with the header by `make test-abi` |
//! | `library` | the library, loaded at run time |
//! | `context` | devices, their limits, ports and events |
//! | `domain` | protection domains and registered memory |
//! | `completion` | completion queues |
//! | `queue_pair`, `work` | connections, and the requests that are posted on them |
//! | `counts` | how much was asked of a device |
//! | `trial` | whether an adapter works at all |
//!
//! ```no_run
//! use kvferry_transport::memory::Memory;
//! use kvferry_transport::rdma::device::DeviceName;
//! use kvferry_transport::rdma::verbs::{ProtectionDomain, Rights, Verbs};
//!
//! let context = Verbs::load()?.open(&DeviceName::new("mlx5_0"))?;
//! let domain = ProtectionDomain::new(&context)?;
//! let memory = Memory::allocate(1 << 20)?;
//! let rights = Rights { write: true, ..Rights::default() };
//! let region = domain.register(&memory, 0, memory.length(), rights)?;
//! println!("peers may write to {:?}", region.address_of(0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod abi;
mod completion;
mod context;
mod counts;
mod domain;
mod error;
mod library;
mod nonblocking;
mod queue_pair;
mod trial;
mod work;

pub use completion::{Completion, CompletionQueue, Outcome, Status};
pub use context::{Context, DeviceEvent, Limits, Link, PortFacts};
pub use counts::Counts;
pub use domain::{LocalSpan, MemoryRegion, ProtectionDomain, RemoteAddress, Rights};
pub use error::VerbsError;
pub use library::Verbs;
pub use queue_pair::{Address, Capacity, Mtu, QueuePair, Route, Unconnected};
pub use trial::{TRIAL_BYTES, TrialError, write_and_read_back};
pub use work::{Operation, Work};
