//! When transfers are submitted: together, or one after another.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How many transfers one after another an iteration may have: each is planned before the clock
/// starts.
pub(crate) const MOST_TRANSFERS: u64 = 1 << 20;

/// When the transfers of an iteration are submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Pace {
    /// All at once: how much is moved in a time
    Bulk,
    /// One after another without a pause, so that both ends are still looking for the next
    Hot,
    /// One after another, 10 ms apart, so that both ends have gone to sleep
    Cold,
}

impl Pace {
    /// The pause before each transfer; `None` where they are submitted together.
    pub(crate) fn pause(self) -> Option<Duration> {
        match self {
            Self::Bulk => None,
            Self::Hot => Some(Duration::ZERO),
            Self::Cold => Some(Duration::from_millis(10)),
        }
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bulk => "bulk",
            Self::Hot => "hot",
            Self::Cold => "cold",
        })
    }
}
