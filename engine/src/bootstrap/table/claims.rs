//! Workers that another was taken to have replaced, and that go on saying that they are there.
//!
//! The order in which incarnations first register says which is the newer, and can be wrong once: a
//! registration may reach the server when its worker is dead and the next one has registered. That
//! one must not be refused for ever, so it takes its rank back when the other has not renewed and
//! its rank is vacant. A late repeat of a worker that is dead comes now and then, and does not go on.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kvferry_proto::Incarnation;

use crate::bootstrap::registration::Rank;

/// A claim: whose, since when, and when it was last renewed.
#[derive(Debug)]
struct Claim {
    by: Incarnation,
    since: Instant,
    renewed: Instant,
}

/// Who claims which vacant rank.
#[derive(Debug, Default)]
pub(super) struct Claims(BTreeMap<Rank, Claim>);

impl Claims {
    /// A worker that was replaced registers for its rank, which is vacant. Whether it has gone on
    /// doing so for as long as `long`. Of more than `most` ranks the claims are not remembered.
    pub(super) fn renew(
        &mut self,
        now: Instant,
        rank: Rank,
        by: Incarnation,
        long: Duration,
        most: usize,
    ) -> bool {
        let last = |claim: &Claim| now.saturating_duration_since(claim.renewed);
        let known = self.0.get_mut(&rank);
        if let Some(claim) = known.filter(|claim| claim.by == by && last(claim) < long) {
            claim.renewed = now;
            return now.saturating_duration_since(claim.since) >= long;
        }
        if self.0.len() >= most {
            self.0.retain(|_, claim| last(claim) < long);
        }
        if self.0.len() < most || self.0.contains_key(&rank) {
            self.0.insert(rank, Claim { by, since: now, renewed: now });
        }
        false
    }

    /// The rank is not vacant.
    pub(super) fn clear(&mut self, rank: Rank) {
        self.0.remove(&rank);
    }
}
