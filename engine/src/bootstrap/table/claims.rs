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

/// Who claims which vacant rank, and since when.
#[derive(Debug, Default)]
pub(super) struct Claims(BTreeMap<Rank, (Incarnation, Instant)>);

impl Claims {
    /// A worker that was replaced registers for its rank, which is vacant. Whether it has done so for
    /// as long as `long`. Of more than `most` ranks the claims are not remembered.
    pub(super) fn renew(
        &mut self,
        now: Instant,
        rank: Rank,
        incarnation: Incarnation,
        long: Duration,
        most: usize,
    ) -> bool {
        match self.0.get(&rank) {
            Some((claimant, since)) if *claimant == incarnation => {
                now.saturating_duration_since(*since) >= long
            }
            None if self.0.len() >= most => false,
            _ => {
                self.0.insert(rank, (incarnation, now));
                false
            }
        }
    }

    /// The rank is not vacant.
    pub(super) fn clear(&mut self, rank: Rank) {
        self.0.remove(&rank);
    }
}
