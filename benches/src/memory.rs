//! How much memory there is, and whether a benchmark may have what it asks for.

use std::time::Duration;

/// Of what is free, the part that may be taken, in percent: the rest is for what fills, checks and
/// carries it, and for everybody else.
const SHARE_PERCENT: u64 = 80;

/// How slow touching memory may be at the worst.
const SLOWEST_BYTES_PER_S: u64 = 64 << 20;

/// A region that is too large for this host.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoRoom {
    #[error(
        "{wanted} bytes were asked for and {free} are free here, of which {SHARE_PERCENT} % may be \
         taken: move less at once (--total, --blocks, --requests, --batch)"
    )]
    Taken { wanted: u64, free: u64 },
    #[error("{wanted} bytes were asked for, and this target gives at most {limit} (--max-memory)")]
    Limited { wanted: u64, limit: u64 },
}

/// Refuses what this host has no room for, or what exceeds the limit that was set.
pub(crate) fn ensure_room(wanted: u64, limit: Option<u64>) -> Result<(), NoRoom> {
    if let Some(limit) = limit.filter(|limit| wanted > *limit) {
        return Err(NoRoom::Limited { wanted, limit });
    }
    // Where nothing says how much is free, the allocation decides.
    match kvferry_store::room().map(|room| room.bytes) {
        Some(free) if wanted > free / 100 * SHARE_PERCENT => Err(NoRoom::Taken { wanted, free }),
        _ => Ok(()),
    }
}

/// How long touching so many bytes may take.
pub(crate) fn touching(bytes: u64) -> Duration {
    Duration::from_secs(bytes / SLOWEST_BYTES_PER_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exceeds_the_host_or_the_limit_is_refused_by_name() {
        let error = ensure_room(1 << 60, None).unwrap_err();
        assert!(matches!(error, NoRoom::Taken { wanted, .. } if wanted == 1 << 60), "{error}");
        assert_eq!(
            ensure_room(2000, Some(1000)),
            Err(NoRoom::Limited { wanted: 2000, limit: 1000 })
        );
        assert_eq!(ensure_room(1000, Some(1000)), Ok(()));
    }
}
