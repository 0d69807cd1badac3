//! How much was asked of a device, and how often.

use std::sync::atomic::{AtomicU64, Ordering};

/// What all queue pairs of a device have had done since it was opened. Each is exact; taken while
/// others post, they may be of slightly different moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were posted.
    pub requests: u64,
    /// Calls that posted them: each rings the device's doorbell once.
    pub doorbells: u64,
    /// Completions that were fetched.
    pub completions: u64,
    /// How often a completion queue was asked to tell of the next completion, so that somebody could
    /// sleep until then: a system call with most devices.
    pub armed: u64,
}

impl Counts {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            doorbells: self.doorbells + other.doorbells,
            completions: self.completions + other.completions,
            armed: self.armed + other.armed,
        }
    }
}

/// Counts as they grow.
#[derive(Debug, Default)]
pub(super) struct Tally {
    requests: AtomicU64,
    doorbells: AtomicU64,
    completions: AtomicU64,
    armed: AtomicU64,
}

impl Tally {
    /// So many requests were posted by one call.
    pub(super) fn post(&self, requests: usize) {
        self.requests.fetch_add(requests as u64, Ordering::Relaxed);
        self.doorbells.fetch_add(1, Ordering::Relaxed);
    }

    /// So many completions were fetched.
    pub(super) fn complete(&self, completions: usize) {
        if completions > 0 {
            self.completions.fetch_add(completions as u64, Ordering::Relaxed);
        }
    }

    /// A queue was armed.
    pub(super) fn arm(&self) {
        self.armed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            requests: read(&self.requests),
            doorbells: read(&self.doorbells),
            completions: read(&self.completions),
            armed: read(&self.armed),
        }
    }
}
