//! Lanes with a queue pair: slices that the owner of their destination reads from the other end's
//! memory, by the adapter.
//!
//! ```text
//!  Rdma (settings) -> Adapters: ports that are used -> Device: open once, regions registered
//!                        |           offered in the handshake, paired with the peer's (topology)
//!                        v
//!  lane = connection + Link: one queue pair; keys lent and borrowed; slices under way
//! ```
//!
//! | file | what stands there |
//! |---|---|
//! | `settings` | what an engine is told of RDMA |
//! | `error` | why there is none |
//! | `adapters` | the devices that an engine uses, and the ports that it offers |
//! | `device` | a device that is open: regions and queue pairs on it, ports that work or do not |
//! | `events` | what devices tell of their own accord; those that have failed, opened anew |
//! | `ports` | ports on the wire |
//! | `pairs` | which pair of ports the next lane is on |
//! | `connect` | queue pairs of new lanes |
//! | `keys` | memory that the other end has lent by key |
//! | `link` | slices under way on one queue pair, and their fence |

mod adapters;
mod connect;
mod device;
mod error;
mod events;
mod keys;
mod link;
mod pairs;
mod ports;
mod settings;

pub(crate) use adapters::Adapters;
pub(crate) use connect::Half;
pub(crate) use device::{Berth, Device};
pub use error::RdmaError;
pub(crate) use events::{attend, readiness_of};
pub(crate) use keys::{BorrowedKeys, LentRegion};
pub(crate) use link::{End, Errand, Link};
pub(crate) use pairs::{LaneEnd, PairChoice, PortPair};
pub(crate) use ports::{from_wire, to_wire};
pub use settings::Rdma;
