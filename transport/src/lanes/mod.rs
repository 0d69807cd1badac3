//! Lanes over stream sockets, TCP or Unix, and the threads that drive them.
//!
//! ```text
//!  any thread                      reactor thread (epoll)
//!  ----------                      ----------------------
//!  lane.send(frame) ---+           readable: prefix, head -> LaneHandler::on_frame
//!  lane.send_bulk(..) -+-> queue             payload -> Landing::store -> region memory
//!     |                      |     writable: queue -> Outgoing::load -> socket
//!     +-- sends at once when |
//!         the lane is free --+
//! ```
//!
//! Nothing here blocks: every system call on a socket returns at once, so a permission to touch
//! memory that is held around one such call ([`Landing::store`], [`Outgoing::load`]) can be
//! withdrawn within microseconds, whatever the peer does. That is what fences rest on.
//!
//! Lanes take turns. In one, a thread receives and sends a bounded number of bytes on a lane, what it
//! sends on others because of it included ([`send_afterwards`]), so that nothing small waits behind
//! more than a turn of each lane of its thread.
//!
//! Payloads of large spans can be handed to the socket as pages, without a copy
//! ([`Loader::lend`]): then whoever sends them answers for their not changing until the receiver has
//! said that it has all of them.
//!
//! What a frame asks for may also be [`Work`] without a payload, which is done in pieces: the same
//! holds of each.
//!
//! Between processes of one host, frames can go through a ring in shared memory beside the stream
//! ([`Ring`](crate::local::Ring)), which then carries their payloads and descriptors, each in its frame's turn. Whoever looks at such a lane
//! need not ask the kernel, and nobody is woken for it.
//!
//! What is no stream and has to do with lanes all the same, such as the completions of a queue pair, is
//! looked at by the same threads ([`Watched`]).
//!
//! Frames are [`FramePrefix`], head and payload. Bulk payloads are scattered straight into region
//! memory; the receive buffer takes what comes behind them in the same call, so a stream of slices
//! costs no calls for its prefixes and heads.

mod beside;
mod frame;
mod hot;
mod lane;
mod later;
mod look;
mod outgoing;
mod pages;
mod reactor;
mod receive;
mod send;
mod socket;
mod turn;
mod watch;

pub use frame::{FramePrefix, ParsePrefix};
pub use lane::{
    CloseReason, Incoming, Landed, Landing, Lane, LaneConfig, LaneHandler, Line, Owed, Progress,
    Store, Storer, Work,
};
pub use later::send_afterwards;
pub use look::look_until;
pub use outgoing::{Load, Loader, Outgoing, Start};
pub use reactor::{Reactor, ReactorConfig};
pub(crate) use socket::send as send_bytes;
pub use socket::{is_memory_fault, is_unhealthy};
pub use watch::{Look, Watch, Watched};
