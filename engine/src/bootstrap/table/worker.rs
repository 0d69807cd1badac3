//! What a table holds of one worker, and of one engine.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvferry_proto::Incarnation;

use super::Version;
use crate::bootstrap::registration::{Rank, Registration, Sizes, WorkerAddress};
use crate::time;

/// A worker in the table.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub(super) address: WorkerAddress,
    pub(super) incarnation: Option<Incarnation>,
    pub(super) sizes: Sizes,
    /// Another with every registration, a repeat too: what a probe found of an earlier one says
    /// nothing of this.
    pub(super) version: Version,
    pub(super) life: Life,
}

/// How a worker's death is noticed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Life {
    /// It has to register again before this.
    Leased { until: Instant },
    /// Its address is tried.
    Watched { next_probe: Instant, silent_since: Option<Instant> },
}

impl Life {
    pub(super) fn new(now: Instant, lease: Option<Duration>, probe_every: Duration) -> Self {
        match lease {
            Some(lease) => Self::Leased { until: time::after(now, lease) },
            None => Self::Watched { next_probe: time::after(now, probe_every), silent_since: None },
        }
    }

    /// When something is to be done about it.
    pub(super) fn due(self) -> Instant {
        match self {
            Self::Leased { until } => until,
            Self::Watched { next_probe, .. } => next_probe,
        }
    }
}

/// The engine that has a `dp_rank`, and its workers by tensor and pipeline rank.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    pub(super) id: Arc<str>,
    pub(super) workers: BTreeMap<(u32, u32), Worker>,
}

impl Engine {
    /// Its workers with their whole rank.
    pub(super) fn ranked(&self, dp: u32) -> impl Iterator<Item = (Rank, &Worker)> {
        self.workers.iter().map(move |((tp, pp), worker)| (Rank { dp, tp: *tp, pp: *pp }, worker))
    }
}

/// One of the three ways in which work is spread, and where its rank and size stand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dimension {
    pub(super) rank_field: &'static str,
    pub(super) size_field: &'static str,
    rank: fn(Rank) -> u32,
    size: fn(&Sizes) -> Option<NonZeroU32>,
}

/// The size of this one is the same for the whole table.
pub(super) const DP: Dimension = Dimension {
    rank_field: "dp_rank",
    size_field: "dp_size",
    rank: |rank| rank.dp,
    size: |sizes| sizes.dp,
};

/// The sizes of these are the same for the workers of one engine.
pub(super) const WITHIN_ENGINE: [Dimension; 2] = [
    Dimension {
        rank_field: "tp_rank",
        size_field: "tp_size",
        rank: |rank| rank.tp,
        size: |sizes| sizes.tp,
    },
    Dimension {
        rank_field: "pp_rank",
        size_field: "pp_size",
        rank: |rank| rank.pp,
        size: |sizes| sizes.pp,
    },
];

impl Dimension {
    pub(super) fn rank(self, rank: Rank) -> u32 {
        (self.rank)(rank)
    }

    pub(super) fn size(self, sizes: &Sizes) -> Option<NonZeroU32> {
        (self.size)(sizes)
    }

    /// The size that a rank does not fit in.
    pub(super) fn excess(self, rank: Rank, sizes: &Sizes) -> Option<NonZeroU32> {
        self.size(sizes).filter(|size| self.rank(rank) >= size.get())
    }
}

/// Whether a registration says nothing that the table does not hold.
pub(super) fn is_repeat(engine: &Engine, worker: &Worker, registration: &Registration) -> bool {
    let newcomer = registration.incarnation;
    engine.id == registration.engine_id
        && worker.address == registration.address
        && (newcomer.is_none() || newcomer == worker.incarnation)
        && worker.sizes == registration.sizes
}
