//! What becomes of a key.

use std::fmt;

use crate::message::MessageError;
use crate::rpc::pool as rpc;

/// What becomes of one key of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It is done.
    Ok,
    /// There is no such object, or none of its replicas can be reached.
    NotFound,
    /// There is an object under this key.
    Exists,
    /// Somebody is writing an object under this key.
    BeingWritten,
    /// A lease forbids it.
    Leased,
    /// A pin forbids it.
    Pinned,
    /// There is no room now.
    NoSpace,
    /// The number of keys, or the memory for them, is exhausted.
    Full,
    /// The reservation is over, or is another's.
    NotReserved,
    /// The client has not joined, or its lease is over: it has to join again.
    NotJoined,
    /// The master is still being told what owners have.
    Recovering,
    /// It is larger than any segment that is mounted.
    TooLarge,
    /// The master is shutting down.
    Closing,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Ok,
        Self::NotFound,
        Self::Exists,
        Self::BeingWritten,
        Self::Leased,
        Self::Pinned,
        Self::NoSpace,
        Self::Full,
        Self::NotReserved,
        Self::NotJoined,
        Self::Recovering,
        Self::TooLarge,
        Self::Closing,
    ];

    /// Whether the same request may well succeed a little later.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::BeingWritten
                | Self::Leased
                | Self::NoSpace
                | Self::Full
                | Self::NotJoined
                | Self::Recovering
                | Self::Closing
        )
    }

    /// Whether it says that the pool is full: who puts should stop for a while.
    #[must_use]
    pub fn is_backpressure(self) -> bool {
        matches!(self, Self::NoSpace | Self::Full)
    }

    /// Its number in the dialect of Mooncake's store (its `docs`, "Error Code Explanation"): 0, or
    /// negative. What has no number there has that of what callers do about it.
    #[must_use]
    pub fn mooncake_code(self) -> i32 {
        match self {
            Self::Ok => 0,
            Self::NotJoined => -103,
            Self::NoSpace | Self::Full => -200,
            Self::TooLarge => -600,
            Self::NotReserved => -601,
            Self::NotFound => -704,
            Self::Exists => -705,
            Self::Leased | Self::Pinned => -706,
            Self::BeingWritten => -714,
            Self::Recovering => -1010,
            Self::Closing => -1011,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "done",
            Self::NotFound => "there is no such object, or nothing that holds it can be reached",
            Self::Exists => "there is an object under this key",
            Self::BeingWritten => "somebody is writing an object under this key",
            Self::Leased => "a lease forbids it: wait until it is over, or force it",
            Self::Pinned => "a pin forbids it: force it",
            Self::NoSpace => "the pool is full of what may not be evicted: try again later",
            Self::Full => "the master holds as many keys as it may: try again later",
            Self::NotReserved => "the reservation is over, or is another client's: start again",
            Self::NotJoined => "the client's lease is over, or it has never joined: join again",
            Self::Recovering => {
                "the master has started, and is being told what there is: try again soon"
            }
            Self::TooLarge => "it is larger than any segment of the pool: mount a larger one",
            Self::Closing => "the master is shutting down: try again with the next",
        })
    }
}

impl From<Outcome> for rpc::Outcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Ok => Self::Ok,
            Outcome::NotFound => Self::NotFound,
            Outcome::Exists => Self::Exists,
            Outcome::BeingWritten => Self::BeingWritten,
            Outcome::Leased => Self::Leased,
            Outcome::Pinned => Self::Pinned,
            Outcome::NoSpace => Self::NoSpace,
            Outcome::Full => Self::Full,
            Outcome::NotReserved => Self::NotReserved,
            Outcome::NotJoined => Self::NotJoined,
            Outcome::Recovering => Self::Recovering,
            Outcome::TooLarge => Self::TooLarge,
            Outcome::Closing => Self::Closing,
        }
    }
}

impl Outcome {
    pub(super) fn to_wire(self) -> i32 {
        rpc::Outcome::from(self).into()
    }

    pub(super) fn from_wire(message: &'static str, value: i32) -> Result<Self, MessageError> {
        match rpc::Outcome::try_from(value) {
            Ok(rpc::Outcome::Ok) => Ok(Self::Ok),
            Ok(rpc::Outcome::NotFound) => Ok(Self::NotFound),
            Ok(rpc::Outcome::Exists) => Ok(Self::Exists),
            Ok(rpc::Outcome::BeingWritten) => Ok(Self::BeingWritten),
            Ok(rpc::Outcome::Leased) => Ok(Self::Leased),
            Ok(rpc::Outcome::Pinned) => Ok(Self::Pinned),
            Ok(rpc::Outcome::NoSpace) => Ok(Self::NoSpace),
            Ok(rpc::Outcome::Full) => Ok(Self::Full),
            Ok(rpc::Outcome::NotReserved) => Ok(Self::NotReserved),
            Ok(rpc::Outcome::NotJoined) => Ok(Self::NotJoined),
            Ok(rpc::Outcome::Recovering) => Ok(Self::Recovering),
            Ok(rpc::Outcome::TooLarge) => Ok(Self::TooLarge),
            Ok(rpc::Outcome::Closing) => Ok(Self::Closing),
            Ok(rpc::Outcome::Unknown) => Err(MessageError::Missing { message, field: "outcome" }),
            Err(_) => {
                let value = u64::from(value.unsigned_abs());
                Err(MessageError::Value { message, field: "outcome", value })
            }
        }
    }

    /// As many as were asked for.
    pub(super) fn list(
        message: &'static str,
        outcomes: &[i32],
        expected: usize,
    ) -> Result<Vec<Self>, MessageError> {
        super::find::count(message, "outcomes", outcomes.len(), expected)?;
        outcomes.iter().map(|value| Self::from_wire(message, *value)).collect()
    }
}
