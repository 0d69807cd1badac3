//! Bounds and times of a table.

use std::time::Duration;

/// What a table may hold: no registrant can make it grow beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Engines, which is also the bound of `dp_rank` and `dp_size`.
    pub engines: u32,
    /// Workers of all engines together, which is also the bound of `tp_rank`, `pp_rank`, their
    /// sizes and the sizes' product.
    pub workers: u32,
    /// The length of an engine's name, in bytes.
    pub engine_id_bytes: usize,
    /// The shortest lease: a shorter one would be renewed more often than is good for anybody.
    pub least_lease: Duration,
    /// The longest lease.
    pub most_lease: Duration,
}

impl Default for Limits {
    /// 1,024 engines, 16,384 workers, names of 256 bytes, leases of 100 ms to a day.
    fn default() -> Self {
        Self {
            engines: 1024,
            workers: 16_384,
            engine_id_bytes: 256,
            least_lease: Duration::from_millis(100),
            most_lease: Duration::from_secs(24 * 3600),
        }
    }
}

/// How a table behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What it may hold.
    pub limits: Limits,
    /// How often the address of a worker without a lease is tried.
    pub probe_every: Duration,
    /// For how long such an address must have accepted nothing before its worker is forgotten.
    pub forget_after: Duration,
}

impl Default for Settings {
    /// Tried every 10 s, forgotten after 60 s.
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            probe_every: Duration::from_secs(10),
            forget_after: Duration::from_secs(60),
        }
    }
}
