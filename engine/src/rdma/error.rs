//! Why there is no RDMA.

use std::sync::Arc;

use kvferry_proto::RegionId;
use kvferry_transport::rdma::verbs::VerbsError;

use crate::topology::{Refusal, SelectionError, WishError};

/// Why RDMA cannot be had or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RdmaError {
    /// The library or a device does not do what it should.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The environment wishes for something that says nothing.
    #[error(transparent)]
    Wish(#[from] WishError),
    /// A wish that cannot be granted.
    #[error("{0}")]
    Selection(Box<SelectionError>),
    /// No port of this host is used.
    #[error("this host has no RDMA port that can be used{}; see `kvctl topology`", listed(.refused))]
    NoPort {
        /// The ports there are, and why each is not used.
        refused: Vec<(String, Refusal)>,
    },
    /// The devices there are cannot be used any more.
    #[error("{why}")]
    GivenUp {
        /// Why, of the first of them.
        why: Arc<str>,
    },
    /// A port is not used now.
    #[error("{why}")]
    PortDown {
        /// Which, and why.
        why: Arc<str>,
    },
    /// Memory cannot be registered with a device.
    #[error("region {region} cannot be reached by RDMA: {source}")]
    Region {
        /// The region.
        region: RegionId,
        /// What the device says.
        source: VerbsError,
    },
}

fn listed(refused: &[(String, Refusal)]) -> String {
    refused.iter().map(|(port, why)| format!("\n  {port}: {why}")).collect()
}
