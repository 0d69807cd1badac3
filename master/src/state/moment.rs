//! Points in time, as the state counts them: milliseconds since the master started.

use std::time::Duration;

/// A point in time, in milliseconds since the master started, by a monotonic clock. What the state
/// decides depends on the moments that it is given, and on no clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Moment {
    /// The time from `earlier` to this; zero where it is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// The moment that comes so long after this. Part of a millisecond counts as a whole one: what
    /// lasts until then lasts long enough.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        let millis = u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(millis))
    }
}

/// A moment to an eighth of a second, in four bytes: for what is only compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Coarse(u32);

impl Coarse {
    /// Rounded down.
    pub(super) fn of(moment: Moment) -> Self {
        Self(u32::try_from(moment.0 / 125).unwrap_or(u32::MAX))
    }

    /// Its beginning.
    pub(super) fn moment(self) -> Moment {
        Moment(u64::from(self.0) * 125)
    }
}
