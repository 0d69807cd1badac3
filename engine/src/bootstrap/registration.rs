//! What a worker says of itself, and where it is reached.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use kvferry_proto::Incarnation;

use super::address;
use crate::error::Error;
use crate::net::Endpoint;

/// The place of a worker in its deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank {
    /// Data parallel: which engine.
    pub dp: u32,
    /// Tensor parallel: which worker of a pipeline stage.
    pub tp: u32,
    /// Pipeline parallel: which stage.
    pub pp: u32,
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dp {} tp {} pp {}", self.dp, self.tp, self.pp)
    }
}

/// How many ranks there are, as far as a registrant says so. With a size, a table that lacks a
/// rank is known to be incomplete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Engines in the table.
    pub dp: Option<NonZeroU32>,
    /// Tensor parallel ranks of this engine.
    pub tp: Option<NonZeroU32>,
    /// Pipeline stages of this engine.
    pub pp: Option<NonZeroU32>,
}

/// Where a worker is reached: `tcp://HOST:PORT`, with a host that others can use and a port that
/// exists.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerAddress(Endpoint);

impl WorkerAddress {
    /// An endpoint as a worker's address.
    ///
    /// # Errors
    /// [`Error::Address`] for port 0, wildcards, and hosts that name nobody.
    pub fn new(endpoint: Endpoint) -> Result<Self, Error> {
        address::check_reachable(&endpoint)
            .map_err(|reason| Error::Address { address: endpoint.to_string(), reason })?;
        Ok(Self(endpoint))
    }

    /// Its host and port.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.0
    }
}

impl FromStr for WorkerAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let error = |reason| Error::Address { address: address::shown(text), reason };
        let rest = text
            .strip_prefix("tcp://")
            .ok_or_else(|| error("a worker's address is tcp://HOST:PORT"))?;
        let endpoint = address::parse(rest).map_err(error)?;
        address::check_reachable(&endpoint).map_err(error)?;
        Ok(Self(endpoint))
    }
}

impl fmt::Display for WorkerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp://{}", self.0)
    }
}

/// What a worker says of itself. In-tree vLLM gives the first three; the others are ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The name of the engine that the worker is a part of: the same for all its ranks.
    pub engine_id: Arc<str>,
    /// The worker's place.
    pub rank: Rank,
    /// Where it is reached.
    pub address: WorkerAddress,
    /// The random number that was drawn when it started: tells it from those before it.
    pub incarnation: Option<Incarnation>,
    /// How many ranks there are.
    pub sizes: Sizes,
    /// For how long it counts as alive without saying so again. Without: for as long as its
    /// address accepts connections.
    pub lease: Option<Duration>,
}

impl Registration {
    /// A worker as in-tree vLLM registers one: no incarnation, no sizes, no lease.
    #[must_use]
    pub fn new(engine_id: &str, rank: Rank, address: WorkerAddress) -> Self {
        let engine_id = engine_id.into();
        Self { engine_id, rank, address, incarnation: None, sizes: Sizes::default(), lease: None }
    }
}
