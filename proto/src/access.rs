//! What a grant permits.

use std::fmt;

/// What a peer may do with memory that it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read it: the peer pulls.
    Read,
    /// Write it: the peer pushes.
    Write,
    /// Both.
    ReadWrite,
}

impl Access {
    /// Whether this permits all that `wanted` asks for.
    #[must_use]
    pub fn permits(self, wanted: Self) -> bool {
        self == Self::ReadWrite || self == wanted
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::ReadWrite => "read and write",
        })
    }
}
