//! How transfers fail.

use std::fmt;

use kvferry_proto::TransferId;

use super::{Error, Remote};
use crate::net::Endpoint;

/// A transfer that did not end `Done`.
#[derive(Clone, Debug)]
pub struct TransferError {
    /// Which, where it got a number.
    pub transfer: Option<TransferId>,
    /// With whom.
    pub peer: Endpoint,
    /// Why.
    pub cause: Error,
    /// What is known of the peer's memory. Reads never touch it.
    pub remote: Remote,
}

impl TransferError {
    /// Whether the transfer was cancelled by its caller.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self.cause, Error::Cancelled)
    }
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transfer {
            Some(transfer) => write!(f, "transfer {transfer} with {}", self.peer)?,
            None => write!(f, "a transfer with {}", self.peer)?,
        }
        write!(f, " failed: {} (the peer's memory is {})", self.cause, self.remote)
    }
}

impl std::error::Error for TransferError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

impl From<TransferError> for Error {
    fn from(error: TransferError) -> Self {
        error.cause
    }
}
