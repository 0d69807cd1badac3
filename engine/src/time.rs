//! Points in time that exist.

use std::time::{Duration, Instant};

/// A time beyond the clock's range is as good as a year.
pub(crate) const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// `wait` after `start`, a year at the most: no duration overflows the clock.
pub(crate) fn after(start: Instant, wait: Duration) -> Instant {
    start + wait.min(YEAR)
}
