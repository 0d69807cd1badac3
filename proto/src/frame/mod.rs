//! The frames of the data path.
//!
//! ```text
//! +--------+------------------+---------------------------------------------+
//! | prefix | head             | payload                                     |
//! | 16 B   | head_bytes       | payload_bytes: the spans named by the head, |
//! |        |                  | back to back, no header per block           |
//! +--------+------------------+---------------------------------------------+
//! ```
//!
//! The engine that opened a lane sends [`Request`]s on it, the other answers with [`Reply`]s. All
//! numbers are little-endian. A lane starts with one [`Hello`] and one [`Welcome`], both of fixed
//! size.

mod descriptor;
mod hello;
pub mod limits;
mod loan;
mod pair;
mod prefix;
mod read;
mod reply;
mod request;

pub use descriptor::{Descriptor, Section, SectionWriter, Sections};
pub use hello::{Hello, Refusal, Welcome};
pub use loan::{KeyLoan, Loan};
pub use pair::PairAddress;
pub use prefix::{Kind, Prefix};
pub use reply::{Reply, Status};
pub use request::{Control, Request, SliceHead, SliceRequest};

/// Why bytes are not a frame. Whoever reads this from a lane closes it: after a malformed frame
/// nothing says where the next one starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first two bytes are not the frame's mark.
    #[error("not a kvferry frame: it starts with {found:#06x}, expected {expected:#06x}")]
    Magic {
        /// What was found.
        found: u16,
        /// What every frame starts with.
        expected: u16,
    },
    /// No frame has this number.
    #[error("unknown frame kind {kind}")]
    Kind {
        /// The number found.
        kind: u8,
    },
    /// A frame of this kind does not belong on this end of a lane.
    #[error("a {kind:?} frame does not belong in this direction")]
    Direction {
        /// The kind found.
        kind: Kind,
    },
    /// A length is above its limit.
    #[error("{what} of {found} is above the limit of {limit}")]
    Limit {
        /// What is too large.
        what: &'static str,
        /// What was found.
        found: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// The head ends before its fields do.
    #[error("the head ends in the middle of its {what}")]
    Truncated {
        /// The field that is cut.
        what: &'static str,
    },
    /// The head goes on after its fields.
    #[error("{bytes} bytes are left over after the head's fields")]
    Excess {
        /// How many.
        bytes: usize,
    },
    /// A field has a value that no sender writes.
    #[error("{what} has the value {found}, which means nothing")]
    Value {
        /// The field.
        what: &'static str,
        /// Its value.
        found: u64,
    },
    /// The descriptors add up to something else than the payload announced.
    #[error("the descriptors cover {described} bytes, the payload announced is {announced}")]
    PayloadMismatch {
        /// What the descriptors add up to.
        described: u64,
        /// What the prefix or the sender announced.
        announced: u64,
    },
}
