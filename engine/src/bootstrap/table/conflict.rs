//! Who in the table is in the way of a registration.

use std::num::NonZeroU32;

use super::refusal::{Presence, Refusal};
use super::worker::{DP, Dimension, Engine, WITHIN_ENGINE, Worker, is_repeat};
use super::{Table, Version};
use crate::bootstrap::registration::{Rank, Registration, WorkerAddress};

/// A worker that is in the way of a registration.
#[derive(Clone, Debug)]
pub(super) struct Conflict {
    pub(super) rank: Rank,
    pub(super) version: Version,
    pub(super) address: WorkerAddress,
    /// Whether the order of registration decides: both have an incarnation, and the newcomer's is
    /// new. Otherwise the one that is there gives way only when it is gone.
    pub(super) yields: bool,
    cause: Cause,
}

/// Why it is in the way.
#[derive(Clone, Copy, Debug)]
enum Cause {
    /// It belongs to another engine with the same `dp_rank`.
    Engine,
    /// It has the rank.
    Place,
    /// It says another size.
    Size { dimension: Dimension, newcomer: NonZeroU32, present: NonZeroU32 },
    /// Its rank does not exist by the newcomer's sizes.
    Outside { dimension: Dimension, size: NonZeroU32 },
    /// The newcomer's rank does not exist by its sizes.
    LeavesOutside { dimension: Dimension, size: NonZeroU32 },
}

impl Table {
    /// Who is in the way, in the order of their ranks.
    pub(super) fn conflicts(&self, registration: &Registration) -> Vec<Conflict> {
        let rank = registration.rank;
        let place = (rank.tp, rank.pp);
        let mut conflicts = Vec::new();
        let own = self.engines.get(&rank.dp);
        if let Some(own) = own {
            let present = own.workers.get(&place);
            if present.is_some_and(|worker| is_repeat(own, worker, registration)) {
                return conflicts;
            }
            if own.id != registration.engine_id {
                let late = self.history.engine_was_replaced(rank.dp, &registration.engine_id);
                for (rank, worker) in own.ranked(rank.dp) {
                    let yields = !late && is_ordered(worker, registration);
                    conflicts.push(Conflict::new(rank, worker, yields, Cause::Engine));
                }
            } else if let Some(worker) = present
                && !is_same_worker(worker, registration)
            {
                let yields = is_ordered(worker, registration);
                conflicts.push(Conflict::new(rank, worker, yields, Cause::Place));
            }
        }
        for (dp, engine) in &self.engines {
            if *dp != rank.dp {
                conflicts.extend(size_conflicts(&[DP], *dp, engine, registration));
            } else if engine.id == registration.engine_id {
                let others = size_conflicts(&WITHIN_ENGINE, *dp, engine, registration)
                    .chain(size_conflicts(&[DP], *dp, engine, registration));
                conflicts.extend(others.filter(|other| other.rank != rank));
            }
        }
        conflicts
    }

    /// What a registration is refused with where a worker in its way does not give way.
    pub(super) fn clash(
        &self,
        conflict: &Conflict,
        registration: &Registration,
        state: Presence,
    ) -> Refusal {
        let present = self.engines.get(&conflict.rank.dp);
        let engine = registration.engine_id.clone();
        let other_engine = present.map_or_else(|| engine.clone(), |present| present.id.clone());
        let (rank, address) = (conflict.rank, conflict.address.clone());
        match conflict.cause {
            Cause::Engine => {
                Refusal::EngineClash { wanted: engine, present: other_engine, rank, address, state }
            }
            Cause::Place => Refusal::AddressClash {
                engine,
                rank,
                wanted: registration.address.clone(),
                present: address,
                state,
            },
            Cause::Size { dimension, newcomer, present } => Refusal::SizeClash {
                field: dimension.size_field,
                engine,
                rank: registration.rank,
                size: newcomer,
                other_engine,
                other_rank: rank,
                other_address: address,
                other_size: present,
                state,
            },
            Cause::Outside { dimension, size } => Refusal::OutsideSize {
                field: dimension.size_field,
                size,
                outside: rank,
                outside_engine: other_engine,
                by: registration.rank,
                by_engine: engine,
                present: address,
                state,
            },
            Cause::LeavesOutside { dimension, size } => Refusal::OutsideSize {
                field: dimension.size_field,
                size,
                outside: registration.rank,
                outside_engine: engine,
                by: rank,
                by_engine: other_engine,
                present: address,
                state,
            },
        }
    }
}

impl Conflict {
    fn new(rank: Rank, worker: &Worker, yields: bool, cause: Cause) -> Self {
        Self { rank, version: worker.version, address: worker.address.clone(), yields, cause }
    }
}

/// Whether the order of registration says which of two workers is the newer.
fn is_ordered(worker: &Worker, registration: &Registration) -> bool {
    worker.incarnation.is_some() && registration.incarnation.is_some()
}

/// Whether a registration for a worker's rank and engine comes from that worker, or from one that
/// has taken over its address, which the other can no longer use.
fn is_same_worker(worker: &Worker, registration: &Registration) -> bool {
    let is_same_incarnation =
        registration.incarnation.is_some() && worker.incarnation == registration.incarnation;
    let is_one_unnamed = worker.incarnation.is_none() || registration.incarnation.is_none();
    is_same_incarnation || (is_one_unnamed && worker.address == registration.address)
}

fn size_conflicts<'a>(
    dimensions: &'a [Dimension],
    dp: u32,
    engine: &'a Engine,
    registration: &'a Registration,
) -> impl Iterator<Item = Conflict> + 'a {
    engine.ranked(dp).filter_map(move |(rank, worker)| {
        let cause = dimensions.iter().find_map(|dimension| {
            let dimension = *dimension;
            let newcomer = dimension.size(&registration.sizes);
            let present = dimension.size(&worker.sizes);
            if let (Some(newcomer), Some(present)) = (newcomer, present)
                && newcomer != present
            {
                return Some(Cause::Size { dimension, newcomer, present });
            }
            let outside = dimension.excess(rank, &registration.sizes);
            if let Some(size) = outside {
                return Some(Cause::Outside { dimension, size });
            }
            let leaves_outside = dimension.excess(registration.rank, &worker.sizes);
            leaves_outside.map(|size| Cause::LeavesOutside { dimension, size })
        })?;
        Some(Conflict::new(rank, worker, false, cause))
    })
}
