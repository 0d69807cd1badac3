//! Two processes of one host: how they know that they are, and how one reads the other's memory.
//!
//! ```text
//!   process A                      one host                       process B
//!  +-----------+   connects to <run directory>/<incarnation>.sock +-----------+
//!  |           | -----------------------------------------------> |           |
//!  |           |   both pass a memfd with a number in it, and     |           |
//!  |           | <----------- say the other's number -----------> |           |
//!  |  memfd ===|=== its descriptor, sealed against writes ======> | mapping   |
//!  |  region   |                    read-only                     | copied by |
//!  +-----------+                                                  +---- B ----+
//! ```
//!
//! No process stores into another's memory: the owner of the destination copies. So whoever owns
//! memory can fence it without asking anybody.
//!
//! | file | what stands there |
//! |---|---|
//! | `directory` | where processes of one host find each other: [`RunDirectory`], [`Doorway`] |
//! | `proof` | the proof that the other end of a Unix socket is on this host: [`Challenge`] |
//! | `process` | the process at the other end, and its memory read where it lies: [`PeerProcess`], [`Beacon`] |
//! | `peer` | memory that a peer lends, mapped read-only or read where it lies: [`PeerMemory`], [`PeerSpans`] |
//! | `ring` | what they say to each other without a system call: [`RingEnd`], [`Ring`] |
//! | `copy` | copies from it, past the cache where they are large |

pub(crate) mod copy;
mod directory;
mod peer;
mod process;
mod proof;
mod ring;

pub use directory::{Doorway, RunDirectory, RunDirectoryError};
pub use peer::{PeerMemory, PeerSpans};
pub(crate) use peer::{Place, ranges};
pub(crate) use process::ReadError;
pub use process::{Beacon, Obstacle, PeerProcess};
pub use proof::{Challenge, NUMBER_BYTES, answer, is_same_user, receive_greeting, send_greeting};
pub(crate) use ring::{Consumer, Producer, Shared as RingShared};
pub use ring::{PARTS as RING_PARTS, Ring, RingEnd};
