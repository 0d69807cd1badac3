//! How a pool behaves.

use std::time::Duration;

use super::lease::LeaseTimes;
use super::placement::Strategy;

/// How a pool behaves. Every setting has a default.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How long what was found to read is kept.
    pub read_lease: Duration,
    /// How long what was found to exist is kept, if there is room.
    pub notice_lease: Duration,
    /// The longest soft pin; and how long one lasts where a put does not say.
    pub most_soft_pin: Duration,
    /// Whether soft pins give way where nothing else is left to evict.
    pub evict_soft_pinned: bool,
    /// How long room is kept for an object that is being written.
    pub reservation: Duration,
    /// How long after that a write that was begun in time may still land: the room is not used again
    /// for so long.
    pub late_writes: Duration,
    /// When silent clients are suspected, expire, and are forgotten.
    pub clients: LeaseTimes,
    /// How long owners have after the master's start to say what they have.
    pub recovery: Duration,
    /// How long it may take at the most, while they are saying it.
    pub most_recovery: Duration,
    /// Objects are evicted while more than this share of the pool is in use.
    pub high_watermark: f64,
    /// What share of the pool is evicted at once, beyond what is above the watermark.
    pub eviction_ratio: f64,
    /// How segments are chosen.
    pub strategy: Strategy,
    /// Bounds.
    pub limits: Limits,
}

/// How much a pool may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Objects.
    pub keys: u64,
    /// Memory of the master for objects and their keys, in bytes.
    pub metadata_bytes: u64,
    /// Segments.
    pub segments: u32,
    /// Clients that have joined.
    pub clients: usize,
    /// Tenants of which all objects were removed at some time.
    pub tenants: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            read_lease: Duration::from_secs(10),
            notice_lease: Duration::from_secs(10),
            most_soft_pin: Duration::from_secs(24 * 3600),
            evict_soft_pinned: true,
            reservation: Duration::from_secs(30),
            late_writes: Duration::from_secs(30),
            clients: LeaseTimes {
                suspect: Duration::from_secs(5),
                expire: Duration::from_secs(10),
                forget: Duration::from_secs(120),
                look_every: Duration::from_millis(250),
            },
            recovery: Duration::from_secs(3),
            most_recovery: Duration::from_secs(120),
            high_watermark: 0.9,
            eviction_ratio: 0.05,
            strategy: Strategy::default(),
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            keys: 100_000_000,
            metadata_bytes: 64 << 30,
            segments: 16_384,
            clients: 65_536,
            tenants: 65_536,
        }
    }
}
