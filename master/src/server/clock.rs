//! The one place where the master meets the clock and randomness.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::state::Moment;

/// Time since the master's start, and seeds that nobody can guess.
#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
    seed: AtomicU64,
}

impl Clock {
    pub(crate) fn new(seed: u64) -> Self {
        Self { start: Instant::now(), seed: AtomicU64::new(seed) }
    }

    pub(crate) fn now(&self) -> Moment {
        let millis = self.start.elapsed().as_millis();
        Moment(u64::try_from(millis).unwrap_or(u64::MAX))
    }

    /// Another seed each time.
    pub(crate) fn seed(&self) -> u64 {
        // An odd step visits every number before one comes again; whoever uses a seed mixes it.
        self.seed.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }
}
