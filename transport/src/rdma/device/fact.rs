//! A fact, or why there is none.

use std::io;

/// What a file said, or why it said nothing.
pub type Fact<T> = Result<T, Absence>;

/// Why a fact is not known. Paths are those inside the host's root: `/sys/...`, `/proc/...`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Absence {
    /// There is no such file: the kernel, the driver or the device does not offer it.
    #[error("{path} does not exist")]
    Missing {
        /// The file.
        path: String,
    },
    /// The file is there and refuses to be read; attributes of an empty GID do that.
    #[error("{path} cannot be read ({kind})")]
    Unreadable {
        /// The file.
        path: String,
        /// What the kernel answered.
        kind: io::ErrorKind,
    },
    /// The file says something that it never should.
    #[error("{path} says {found:?}, which is not {expected}")]
    Malformed {
        /// The file.
        path: String,
        /// The beginning of what was found.
        found: String,
        /// What was expected.
        expected: &'static str,
    },
    /// The file is larger than any honest one.
    #[error("{path} is longer than {limit_bytes} bytes")]
    TooLong {
        /// The file.
        path: String,
        /// How much is read at most.
        limit_bytes: u64,
    },
    /// The kernel knows the file and has no value for it, as a NUMA node of -1.
    #[error("{path} says that there is no {what}")]
    NotAssigned {
        /// The file.
        path: String,
        /// What is not assigned.
        what: &'static str,
    },
    /// The addresses of the running host could not be listed.
    #[error("the kernel does not list its addresses ({kind})")]
    NoAddresses {
        /// What the kernel answered.
        kind: io::ErrorKind,
    },
}

impl Absence {
    /// The characters of a malformed file that an error quotes at most.
    const QUOTED_CHARS: usize = 60;

    pub(super) fn malformed(path: &str, found: &str, expected: &'static str) -> Self {
        let found = found.chars().take(Self::QUOTED_CHARS).collect();
        Self::Malformed { path: path.to_owned(), found, expected }
    }

    pub(super) fn from_io(path: &str, error: &io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Missing { path },
            kind => Self::Unreadable { path, kind },
        }
    }
}
