//! How a session behaves.

use std::time::Duration;

use crate::time;

/// How a session behaves.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Lanes for large transfers, beside the one for small ones. With none, that one carries all.
    pub bulk_lanes: usize,
    /// Up to this many bytes a transfer is small.
    pub small_bytes: u64,
    /// How many payload bytes may be out on one lane.
    pub window_bytes: u64,
    /// When nothing was heard for this long, the peer is asked for a sign of life.
    pub ping_interval: Duration,
    /// When nothing was heard for this long, the peer counts as dead.
    pub dead_after: Duration,
    /// After how long a notification that the peer had no room for is sent again.
    pub notify_retry: Duration,
    /// The wait after the first failed attempt to reach the peer; it doubles.
    pub backoff_first: Duration,
    /// The longest wait between attempts.
    pub backoff_most: Duration,
    /// Lanes that nothing was submitted for close after this long.
    pub idle_after: Duration,
    /// When no lane of the best transport has been up for this long, its spare takes its place.
    pub spare_after: Duration,
    /// The wait before the best transport is tried again while its spare has its place; it doubles.
    pub return_first: Duration,
    /// The longest such wait.
    pub return_most: Duration,
    /// When lanes of the best transport have been up for this long and have carried something, its
    /// failures before do not count.
    pub recovered_after: Duration,
    /// How long a peer that is there has for something to come through on a lane, before the lane is
    /// doubted whose transfer runs out of time.
    pub barren_after: Duration,
    /// How many transfers may be open.
    pub open_transfers: u64,
}

impl Settings {
    /// The wait before what has failed so often before is tried again.
    pub(super) fn backoff(&self, failures: u32) -> Duration {
        time::backoff(self.backoff_first, self.backoff_most, failures)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            bulk_lanes: 1,
            small_bytes: 64 << 10,
            window_bytes: 16 << 20,
            ping_interval: Duration::from_secs(3),
            dead_after: Duration::from_secs(7),
            notify_retry: Duration::from_millis(20),
            backoff_first: Duration::from_millis(50),
            backoff_most: Duration::from_secs(2),
            idle_after: Duration::from_secs(300),
            spare_after: Duration::from_millis(500),
            return_first: Duration::from_millis(500),
            return_most: Duration::from_secs(30),
            recovered_after: Duration::from_secs(10),
            barren_after: Duration::from_secs(1),
            open_transfers: 16_384,
        }
    }
}
