//! What can go wrong with the pool, with the values that tell how to put it right.

use std::sync::Arc;

use kvferry_engine::{Endpoint, Incarnation, TransferError};
use kvferry_proto::message::MessageError;
use kvferry_proto::pool::{Outcome, SegmentId};

/// Anything that the pool's client refuses or fails at.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The master said so.
    #[error("the pool's master: {0}")]
    Outcome(Outcome),
    /// The master cannot be reached, or broke off.
    #[error("the pool's master at {master} cannot be asked: {reason}")]
    Master {
        /// Its address.
        master: Endpoint,
        /// What failed.
        reason: Arc<str>,
    },
    /// The master will not do this, however often it is asked.
    #[error("the pool's master at {master} refuses: {reason}")]
    Refused {
        /// Its address.
        master: Endpoint,
        /// What it says.
        reason: Arc<str>,
    },
    /// What the master answered is no answer.
    #[error("what answers at {master} is no master of this version: {error}")]
    Foreign {
        /// Its address.
        master: Endpoint,
        /// What is wrong with the answer.
        error: MessageError,
    },
    /// What was asked for has no form that can be sent.
    #[error("this cannot be asked of the pool: {0}")]
    Malformed(#[from] MessageError),
    /// An object, and a segment, has at least one byte.
    #[error("no bytes cannot be put or lent: give at least one")]
    Empty,
    /// There is too much of something.
    #[error("{found} {what} are too many: at most {limit} are allowed")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// The name of a segment, a host or a group is too long.
    #[error("a name has {found} bytes, at most {limit} are allowed")]
    NameTooLong {
        /// Its length in bytes.
        found: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The object is longer than the memory that was given for it.
    #[error("the object has {length} bytes, and there is room for {room}: give it more")]
    TooSmall {
        /// The object's length in bytes.
        length: u64,
        /// How many bytes the spans have.
        room: u64,
    },
    /// The lease was over before the last byte had arrived, each time.
    #[error("the read took longer than its lease: ask the master for longer leases")]
    LeaseOver,
    /// The bytes are not those that were put.
    #[error("the bytes in segment {segment} of {owner} do not match their checksum")]
    Checksum {
        /// Where they are.
        segment: SegmentId,
        /// Whose that is.
        owner: Incarnation,
    },
    /// A segment's owner is not the process that lent it any more.
    #[error("segment {segment} was lent by {expected} at {address}, which is {found} now")]
    OwnerGone {
        /// The segment.
        segment: SegmentId,
        /// Where its owner was reached.
        address: Arc<str>,
        /// The incarnation that lent it.
        expected: Incarnation,
        /// The incarnation there now.
        found: Incarnation,
    },
    /// A segment's owner does not share its memory any more.
    #[error("{address} does not lend segment {segment} any more")]
    SegmentGone {
        /// The segment.
        segment: SegmentId,
        /// Where its owner is reached.
        address: Arc<str>,
    },
    /// A transfer failed.
    #[error(transparent)]
    Transfer(Arc<TransferError>),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] kvferry_engine::Error),
    /// There is not enough memory to lend.
    #[error(
        "{wanted} bytes cannot be lent: {available} are free by {limit}, of which {kept} are kept \
         for the program; lend less, or raise that limit"
    )]
    NoRoom {
        /// How many bytes were to be lent.
        wanted: u64,
        /// How many are free.
        available: u64,
        /// How many of those are not lent.
        kept: u64,
        /// What limits them.
        limit: Arc<str>,
    },
    /// What is being done was given up because somebody took it back.
    #[error("it was taken back before it was done")]
    TakenBack,
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// The system refused something.
    #[error("{what} failed: {reason}")]
    System {
        /// What was asked of it.
        what: &'static str,
        /// What it answered.
        reason: Arc<str>,
    },
}

impl Error {
    /// Whether the same call may well succeed a little later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Outcome(outcome) => outcome.is_retryable(),
            Self::Engine(error) => error.is_retryable(),
            Self::Transfer(error) => error.cause.is_retryable(),
            Self::Master { .. }
            | Self::LeaseOver
            | Self::OwnerGone { .. }
            | Self::SegmentGone { .. } => true,
            _ => false,
        }
    }

    /// Whether too much is stored or under way: who puts should stop for a while.
    #[must_use]
    pub fn is_backpressure(&self) -> bool {
        match self {
            Self::Outcome(outcome) => outcome.is_backpressure(),
            Self::Engine(error) => error.is_backpressure(),
            Self::Transfer(error) => error.cause.is_backpressure(),
            _ => false,
        }
    }

    /// Its number in the dialect of Mooncake's store (its `docs`, "Error Code Explanation").
    #[must_use]
    pub fn mooncake_code(&self) -> i32 {
        match self {
            Self::Outcome(outcome) => outcome.mooncake_code(),
            Self::Master { .. } | Self::Foreign { .. } => -900,
            Self::Refused { .. }
            | Self::Malformed(_)
            | Self::Empty
            | Self::TooMany { .. }
            | Self::NameTooLong { .. } => -600,
            Self::TooSmall { .. } => -10,
            Self::LeaseOver => -707,
            Self::Checksum { .. } => -801,
            Self::OwnerGone { .. } | Self::SegmentGone { .. } | Self::Transfer(_) => -800,
            Self::Engine(error) if error.is_backpressure() => -200,
            Self::Engine(_) => -800,
            Self::NoRoom { .. } => -200,
            Self::TakenBack | Self::Closed => -601,
            Self::System { .. } => -1,
        }
    }

    pub(crate) fn system(what: &'static str, reason: impl std::fmt::Display) -> Self {
        Self::System { what, reason: reason.to_string().into() }
    }
}

impl From<TransferError> for Error {
    fn from(error: TransferError) -> Self {
        Self::Transfer(Arc::new(error))
    }
}
