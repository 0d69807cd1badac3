//! Who was there before: what lets a late repeat be told from a new start.
//!
//! Incarnations are random, so only the order in which they first registered says which is the
//! newer. It is remembered also after the worker is forgotten: a worker that was stopped, expired,
//! and wakes after another took its rank must not take it back.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use kvferry_proto::Incarnation;

use crate::bootstrap::registration::Rank;

/// How many incarnations of a rank, and engines of a `dp_rank`, are remembered. One that so many
/// others have followed counts as new again; its late repeats have long given up by then.
const GENERATIONS: usize = 16;

/// The order in which incarnations and engines first registered.
#[derive(Debug, Default)]
pub(super) struct History {
    incarnations: BTreeMap<Rank, Incarnations>,
    /// As many as there may be engines, each with a bounded name.
    engines: BTreeMap<u32, VecDeque<Arc<str>>>,
    notes: u64,
}

/// The incarnations of one rank.
#[derive(Debug, Default)]
struct Incarnations {
    known: VecDeque<Incarnation>,
    /// The number of the last note.
    noted: u64,
}

impl History {
    /// The newest incarnation of a rank, where it is not this one and this one is known.
    pub(super) fn successor(&self, rank: Rank, incarnation: Incarnation) -> Option<Incarnation> {
        let known = &self.incarnations.get(&rank)?.known;
        let newest = *known.back()?;
        (newest != incarnation && known.contains(&incarnation)).then_some(newest)
    }

    /// Whether another engine registered for a `dp_rank` after this one did.
    pub(super) fn engine_was_replaced(&self, dp: u32, engine: &Arc<str>) -> bool {
        let known = self.engines.get(&dp);
        known.is_some_and(|known| known.back() != Some(engine) && known.contains(engine))
    }

    /// Notes that a registration was accepted.
    pub(super) fn note(&mut self, rank: Rank, incarnation: Option<Incarnation>, engine: &Arc<str>) {
        if let Some(incarnation) = incarnation {
            self.notes += 1;
            let incarnations = self.incarnations.entry(rank).or_default();
            incarnations.noted = self.notes;
            note(&mut incarnations.known, incarnation);
        }
        note(self.engines.entry(rank.dp).or_default(), engine.clone());
    }

    /// Forgets ranks that nobody holds, those first that were noted longest ago, until at most
    /// `most` are left.
    pub(super) fn bound(&mut self, most: usize, is_held: impl Fn(Rank) -> bool) {
        while self.incarnations.len() > most {
            let vacant = self.incarnations.iter().filter(|(rank, _)| !is_held(**rank));
            let Some((&rank, _)) = vacant.min_by_key(|(_, incarnations)| incarnations.noted) else {
                return;
            };
            self.incarnations.remove(&rank);
        }
    }

    /// How many ranks are remembered.
    #[cfg(test)]
    pub(super) fn ranks(&self) -> usize {
        self.incarnations.len()
    }
}

/// The newest stands last, and each once.
fn note<T: PartialEq>(known: &mut VecDeque<T>, newest: T) {
    if known.back() == Some(&newest) {
        return;
    }
    known.retain(|earlier| *earlier != newest);
    known.push_back(newest);
    if known.len() > GENERATIONS {
        known.pop_front();
    }
}
