//! Points in time: now, and those that exist.

use std::time::{Duration, Instant};

/// A time beyond the clock's range is as good as a year.
pub(crate) const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// `wait` after `start`, a year at the most: no duration overflows the clock.
pub(crate) fn after(start: Instant, wait: Duration) -> Instant {
    start + wait.min(YEAR)
}

/// The wait before what has failed so often before is tried again: `first`, and twice as long each time,
/// `most` at the most.
pub(crate) fn backoff(first: Duration, most: Duration, failures: u32) -> Duration {
    (first * 2_u32.saturating_pow(failures.min(16))).min(most)
}

/// The time by the system's monotonic clock; in a simulation, by the calling thread's.
pub(crate) fn now() -> Instant {
    #[cfg(feature = "simulation")]
    if let Some(now) = simulated::now() {
        return now;
    }
    Instant::now()
}

#[cfg(feature = "simulation")]
pub(crate) mod simulated {
    use std::cell::Cell;
    use std::time::Instant;

    thread_local! {
        static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    /// The thread's time, where it is simulated.
    pub(super) fn now() -> Option<Instant> {
        NOW.try_with(Cell::get).ok().flatten()
    }

    /// What the time is on this thread from now on.
    pub(crate) fn set(now: Option<Instant>) {
        NOW.set(now);
    }
}
