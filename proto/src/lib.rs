//! Messages, frames and identities of kvferry, and the checked way from wire to value.
//!
//! Two things travel between engines. The **control path** is gRPC (service `Peer`): who is there,
//! which regions it owns, what changed. The **data path** is frames on lanes: requests out,
//! replies back, payloads behind them. Everything that arrives is parsed into a value that cannot
//! be wrong in form, or refused with an error that says why; nothing here allocates more than the
//! limits in [`frame::limits`] allow, and nothing panics on any input.
//!
//! | module | what stands there |
//! |---|---|
//! | [`identity`] | newtypes for everything that has a number: incarnations, regions, grants, transfers, lanes |
//! | [`access`] | what a grant permits |
//! | [`frame`] | the frames of the data path: prefix, requests, replies, descriptors, hello |
//! | [`message`] | values of the control path, and their checked conversion from and to the wire |
//! | [`pool`] | the same for the pool: keys, segments, puts, leases |
//! | [`codec`] | how messages of the pool are read: none that would take far more memory than it has bytes |
//! | [`rpc`] | the types that prost and tonic generate; not to be used past the conversion |
//!
//! ```
//! use kvferry_proto::frame::{Control, Prefix, Request};
//! use kvferry_proto::identity::TransferId;
//!
//! let mut bytes = Vec::new();
//! Control::Cancel { transfer: TransferId(7), floor: TransferId(3) }.encode(&mut bytes);
//! let (prefix, head) = bytes.split_at(Prefix::BYTES);
//! let prefix = Prefix::decode(prefix.try_into()?)?;
//! assert!(matches!(
//!     Request::decode(&prefix, head)?,
//!     Request::Control(Control::Cancel { transfer: TransferId(7), .. })
//! ));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod access;
pub mod codec;
pub mod frame;
pub mod identity;
pub mod message;
pub mod pool;
pub mod rpc;

pub use access::Access;
pub use identity::{GrantId, Incarnation, LaneId, RegionId, TransferId};
