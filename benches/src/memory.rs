//! How much memory there is, and whether a benchmark may have what it asks for.

use std::fs;
use std::path::Path;
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
         taken: move less at once (--total, --blocks, --requests)"
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
    match free_bytes() {
        Some(free) if wanted > free / 100 * SHARE_PERCENT => Err(NoRoom::Taken { wanted, free }),
        _ => Ok(()),
    }
}

/// How long touching so many bytes may take.
pub(crate) fn touching(bytes: u64) -> Duration {
    Duration::from_secs(bytes / SLOWEST_BYTES_PER_S)
}

/// What the host has available, or this process's control group, whichever is less.
fn free_bytes() -> Option<u64> {
    let host = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| {
        let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
        group_free(&Path::new("/sys/fs/cgroup").join(path))
    });
    match (host, group) {
        (Some(host), Some(group)) => Some(host.min(group)),
        (host, group) => host.or(group),
    }
}

/// `MemAvailable` of `/proc/meminfo` (proc_meminfo(5)), in bytes.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

/// What is left to a control group of version 2: its limit without what it uses, but for files'
/// pages that the kernel takes back on demand.
fn group_free(group: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    let stat = read("memory.stat")?;
    let reclaimable = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
    let reclaimable: u64 = reclaimable?.trim().parse().ok()?;
    Some(limit.saturating_sub(used.saturating_sub(reclaimable)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_available_is_read_in_bytes() {
        let text = "MemTotal:       24000000 kB\nMemAvailable:    1000 kB\n";
        assert_eq!(available(text), Some(1_024_000));
        assert_eq!(available("MemTotal: 5 kB\n"), None);
        assert_eq!(available("MemAvailable: many kB\n"), None);
        assert_eq!(available(&format!("MemAvailable: {} kB\n", u64::MAX)), None);
    }

    #[test]
    fn a_control_group_leaves_its_limit_without_what_is_in_use() {
        let group = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(group.path().join(name), text).unwrap();
        assert_eq!(group_free(group.path()), None);
        put("memory.max", "1000\n");
        put("memory.current", "700\n");
        put("memory.stat", "anon 300\ninactive_file 400\n");
        assert_eq!(group_free(group.path()), Some(700));
        put("memory.current", "5000\n");
        assert_eq!(group_free(group.path()), Some(0));
        put("memory.max", "max\n");
        assert_eq!(group_free(group.path()), None);
    }

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
