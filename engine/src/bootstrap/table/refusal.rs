//! Why a registration is refused, or a table not given out.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use kvferry_proto::Incarnation;

use crate::bootstrap::registration::{Rank, WorkerAddress};

/// Why a registration is refused. Nothing of the table has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A field is outside its bounds.
    #[error("{field} is {found}: this server accepts {least} to {most}")]
    OutOfBounds {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The least that is accepted.
        least: u64,
        /// The most that is accepted.
        most: u64,
    },
    /// The table is full.
    #[error("the table is full: it has {limit} workers, as many as this server holds")]
    Full {
        /// The limit.
        limit: u32,
    },
    /// A later incarnation has registered for this rank.
    #[error(
        "incarnation {incarnation} of {rank} was replaced by {by}, which registered later: a \
         worker that starts again draws another incarnation"
    )]
    Superseded {
        /// The rank.
        rank: Rank,
        /// Who asks.
        incarnation: Incarnation,
        /// Who came later.
        by: Incarnation,
    },
    /// Another engine that is alive has this `dp_rank`.
    #[error(
        "engine {wanted:?} cannot have dp_rank {}: engine {present:?} has it, and its worker \
         {rank} at {address} {state}; stop that engine, or give this one another dp_rank",
        rank.dp
    )]
    EngineClash {
        /// Who asks.
        wanted: Arc<str>,
        /// Who has it.
        present: Arc<str>,
        /// A worker of that engine.
        rank: Rank,
        /// Where that worker is reached.
        address: WorkerAddress,
        /// What was found there.
        state: Presence,
    },
    /// Another worker that is alive has this rank.
    #[error(
        "{wanted} cannot have {rank} of engine {engine:?}: {present} has it and {state}; stop that \
         worker, or give this one another rank"
    )]
    AddressClash {
        /// The engine.
        engine: Arc<str>,
        /// The rank.
        rank: Rank,
        /// Who asks.
        wanted: WorkerAddress,
        /// Who has it.
        present: WorkerAddress,
        /// What was found there.
        state: Presence,
    },
    /// Two workers do not agree on how many ranks there are.
    #[error(
        "{rank} of engine {engine:?} says {field} {size}, and {other_rank} of engine \
         {other_engine:?} at {other_address}, which {state}, says {other_size}: start both with \
         the same"
    )]
    SizeClash {
        /// Which size.
        field: &'static str,
        /// Who asks.
        engine: Arc<str>,
        /// Its rank.
        rank: Rank,
        /// What it says.
        size: NonZeroU32,
        /// Who says otherwise.
        other_engine: Arc<str>,
        /// Its rank.
        other_rank: Rank,
        /// Where that worker is reached.
        other_address: WorkerAddress,
        /// What it says.
        other_size: NonZeroU32,
        /// What was found there.
        state: Presence,
    },
    /// A rank does not exist by what another worker says of the sizes.
    #[error(
        "{outside} of engine {outside_engine:?} does not exist where {field} is {size}, as {by} of \
         engine {by_engine:?} says ({present} {state}): start both with the same"
    )]
    OutsideSize {
        /// Which size.
        field: &'static str,
        /// What it is.
        size: NonZeroU32,
        /// The rank that is too high.
        outside: Rank,
        /// Its engine.
        outside_engine: Arc<str>,
        /// Who gave the size.
        by: Rank,
        /// Its engine.
        by_engine: Arc<str>,
        /// The one of the two that is in the table.
        present: WorkerAddress,
        /// What was found there.
        state: Presence,
    },
    /// A registrant's rank does not exist by its own sizes.
    #[error("{field} is {rank} and {size_field} {size}: ranks count from 0")]
    OutsideOwnSize {
        /// The rank's field.
        field: &'static str,
        /// The rank.
        rank: u32,
        /// The size's field.
        size_field: &'static str,
        /// The size.
        size: NonZeroU32,
    },
    /// The table kept changing while the workers in the way were looked at.
    #[error("{rank} is asked for by too many at once: try again")]
    Contended {
        /// The rank.
        rank: Rank,
    },
}

impl Refusal {
    /// Whether the same registration may be accepted later: when the table has room, or whoever
    /// is in the way is gone.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::OutOfBounds { .. } | Self::OutsideOwnSize { .. } | Self::Superseded { .. } => {
                false
            }
            Self::Full { .. }
            | Self::EngineClash { .. }
            | Self::AddressClash { .. }
            | Self::SizeClash { .. }
            | Self::OutsideSize { .. }
            | Self::Contended { .. } => true,
        }
    }
}

/// What is known of a worker that is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Its address accepts connections.
    Accepts,
    /// Whether it does could not be found out.
    Unknown,
}

impl std::fmt::Display for Presence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Accepts => "accepts connections",
            Self::Unknown => "may be alive (this server could not try its address)",
        })
    }
}

/// Why a table is not given out: ranks that must exist have not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{missing} ranks have not registered yet: {}", list(first, *missing))]
pub struct Incomplete {
    /// How many are missing. Of an engine that is missing as a whole, only its first rank counts.
    pub missing: u64,
    /// The first of them.
    pub first: Vec<Rank>,
}

fn list(first: &[Rank], missing: u64) -> String {
    let shown: Vec<_> = first.iter().map(Rank::to_string).collect();
    let is_all = u64::try_from(first.len()).is_ok_and(|shown| shown >= missing);
    format!("{}{}", shown.join(", "), if is_all { "" } else { ", ..." })
}

/// A lease as an error shows it.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
