//! What is told of a table, and whether all of it is there.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use kvferry_proto::Incarnation;

use super::refusal::Incomplete;
use super::worker::{DP, Dimension, Engine, WITHIN_ENGINE};
use super::{Table, WorkerAddress};
use crate::bootstrap::registration::Rank;

/// How many missing ranks an error names.
const NAMED: usize = 8;

/// Engines by `dp_rank`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The engines.
    pub engines: BTreeMap<u32, ListedEngine>,
}

/// An engine and its workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedEngine {
    /// Its name.
    pub engine_id: Arc<str>,
    /// Its workers by tensor rank, then pipeline rank.
    pub workers: BTreeMap<u32, BTreeMap<u32, ListedWorker>>,
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedWorker {
    /// Where it is reached.
    pub address: WorkerAddress,
    /// Its incarnation, where it gave one.
    pub incarnation: Option<Incarnation>,
}

impl Table {
    pub(super) fn listing(&self) -> Listing {
        let engines = self.engines.iter().map(|(dp, engine)| {
            let mut workers: BTreeMap<u32, BTreeMap<u32, ListedWorker>> = BTreeMap::new();
            for ((tp, pp), worker) in &engine.workers {
                let (address, incarnation) = (worker.address.clone(), worker.incarnation);
                let listed = ListedWorker { address, incarnation };
                workers.entry(*tp).or_default().insert(*pp, listed);
            }
            (*dp, ListedEngine { engine_id: engine.id.clone(), workers })
        });
        Listing { engines: engines.collect() }
    }

    /// Whether every rank is there that exists by the sizes that registrants gave. Where only one
    /// of an engine's two sizes is known, the other is what has registered.
    pub(super) fn check_complete(&self) -> Result<(), Incomplete> {
        let mut missing = Missing::default();
        let dp_size = self.engines.values().find_map(|engine| size_of(engine, DP));
        for dp in 0..dp_size.map_or(0, NonZeroU32::get) {
            if !self.engines.contains_key(&dp) {
                missing.add(Rank { dp, tp: 0, pp: 0 });
            }
        }
        for (dp, engine) in &self.engines {
            let sizes = WITHIN_ENGINE.map(|dimension| size_of(engine, dimension));
            if sizes == [None, None] {
                continue;
            }
            let seen = |dimension: Dimension| {
                let ranks = engine.ranked(*dp).map(|(rank, _)| dimension.rank(rank));
                ranks.max().map_or(1, |most| most.saturating_add(1))
            };
            let [tp_size, pp_size] =
                [0, 1].map(|at| sizes[at].map_or_else(|| seen(WITHIN_ENGINE[at]), NonZeroU32::get));
            missing.count_in(*dp, engine, tp_size, pp_size);
        }
        if missing.count == 0 {
            return Ok(());
        }
        Err(Incomplete { missing: missing.count, first: missing.first })
    }
}

/// The size that an engine's workers gave: all that did gave the same.
fn size_of(engine: &Engine, dimension: Dimension) -> Option<NonZeroU32> {
    engine.workers.values().find_map(|worker| dimension.size(&worker.sizes))
}

/// Ranks that are missing.
#[derive(Debug, Default)]
struct Missing {
    count: u64,
    first: Vec<Rank>,
}

impl Missing {
    fn add(&mut self, rank: Rank) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push(rank);
        }
    }

    /// The work is bounded by the engine's workers, not by what their sizes make of it.
    fn count_in(&mut self, dp: u32, engine: &Engine, tp_size: u32, pp_size: u32) {
        let wanted = u64::from(tp_size) * u64::from(pp_size);
        let missing = wanted.saturating_sub(engine.workers.len() as u64);
        let gaps = (0..tp_size).flat_map(|tp| (0..pp_size).map(move |pp| (tp, pp)));
        let gaps = gaps.filter(|place| !engine.workers.contains_key(place));
        let left = NAMED - self.first.len();
        let named = usize::try_from(missing).unwrap_or(usize::MAX).min(left);
        self.first.extend(gaps.take(named).map(|(tp, pp)| Rank { dp, tp, pp }));
        self.count += missing;
    }
}
