//! What carries transfers, and what may.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// The environment variable that is read where [`EngineBuilder::transports`](crate::EngineBuilder::transports)
/// was not called.
pub(crate) const VARIABLE: &str = "KVFERRY_TRANSPORT";

/// A kind of lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP connections.
    Tcp,
    /// Unix sockets between processes of one host, and memory that they lend each other.
    Local,
    /// Queue pairs of RDMA adapters, by which each end reads the other's memory, beside TCP connections
    /// for all that is said.
    Rdma,
}

impl Transport {
    /// All there are, the best first.
    pub const ALL: [Self; 3] = [Self::Local, Self::Rdma, Self::Tcp];

    /// Its name in reports, logs and settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Local => "local",
            Self::Rdma => "rdma",
        }
    }

    /// The one of this name, if there is one.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Which transports an engine may use with its peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transports {
    /// The best that works with each peer: `local` where it is proven that the peer is on this
    /// host, else `rdma` where both have adapters that reach each other, else `tcp`, which also takes
    /// RDMA's place while that fails.
    #[default]
    Auto,
    /// This one and no other: a peer with which it does not work cannot be reached.
    Only(Transport),
}

impl Transports {
    /// Whether `transport` may be used.
    #[must_use]
    pub fn permit(self, transport: Transport) -> bool {
        match self {
            Self::Auto => true,
            Self::Only(only) => only == transport,
        }
    }

    /// All that may be used, the best first.
    pub(crate) fn permitted(self) -> impl Iterator<Item = Transport> {
        Transport::ALL.into_iter().filter(move |one| self.permit(*one))
    }

    /// What the environment says; `Auto` where it says nothing.
    pub(crate) fn from_environment() -> Result<Self, Error> {
        match std::env::var(VARIABLE) {
            Ok(value) if !value.is_empty() => value.parse(),
            Ok(_) | Err(std::env::VarError::NotPresent) => Ok(Self::Auto),
            Err(std::env::VarError::NotUnicode(value)) => {
                Err(Error::UnknownTransport { value: value.to_string_lossy().into_owned() })
            }
        }
    }
}

impl FromStr for Transports {
    type Err = Error;

    fn from_str(value: &str) -> Result<Self, Error> {
        if value == "auto" {
            return Ok(Self::Auto);
        }
        let only = Transport::named(value).map(Self::Only);
        only.ok_or_else(|| Error::UnknownTransport { value: value.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_demanded_excludes_the_other_and_typing_errors_say_what_is_possible() {
        let only = |value: &str| value.parse::<Transports>().unwrap();
        assert!(only("tcp").permit(Transport::Tcp) && !only("tcp").permit(Transport::Local));
        assert!(only("local").permit(Transport::Local) && !only("local").permit(Transport::Tcp));
        let best_first: Vec<_> = only("auto").permitted().collect();
        assert_eq!(best_first, [Transport::Local, Transport::Rdma, Transport::Tcp]);
        let demanded: Vec<_> = only("rdma").permitted().collect();
        assert_eq!(demanded, [Transport::Rdma]);
        let error = "Local".parse::<Transports>().unwrap_err();
        assert!(error.to_string().contains("auto, tcp, local or rdma"), "{error}");
    }
}
