//! How much memory can be lent: what the host has free, and what the control groups leave.
//!
//! What the kernel's files say is described in its `Documentation/admin-guide/cgroup-v2.rst`
//! (`memory.max`, `memory.current`, `memory.stat`), `cgroup-v1/memory.rst` and
//! `filesystems/proc.rst` (`MemAvailable`).

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::Error;

/// What is kept for the program and the kernel, of what is free.
const KEPT_PART: u64 = 32;
const KEPT_LEAST_BYTES: u64 = 64 << 20;

/// A file of the kernel that says something of memory.
pub(crate) trait Files {
    /// Its text; `None` where there is none.
    fn read(&self, path: &str) -> Option<String>;
}

/// How much memory is free, and by which limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// How much, in bytes.
    pub bytes: u64,
    /// The file of the kernel's that says so.
    pub limit: Arc<str>,
}

impl Room {
    /// The least that any limit leaves; `None` where the kernel says nothing of any.
    pub(crate) fn of(files: &impl Files) -> Option<Self> {
        let host = files.read("/proc/meminfo").and_then(|text| {
            let kib = field(&text, "MemAvailable:")?;
            Some(Self { bytes: kib.saturating_mul(1024), limit: "/proc/meminfo".into() })
        });
        let membership = files.read("/proc/self/cgroup").unwrap_or_default();
        let groups = membership.lines().flat_map(|line| groups(files, line));
        host.into_iter().chain(groups).min_by_key(|room| room.bytes)
    }

    /// Whether so much can be lent.
    ///
    /// # Errors
    /// [`Error::NoRoom`].
    pub(crate) fn check(&self, wanted: u64) -> Result<(), Error> {
        let kept = (self.bytes / KEPT_PART).max(KEPT_LEAST_BYTES);
        if wanted.saturating_add(kept) <= self.bytes {
            return Ok(());
        }
        Err(Error::NoRoom { wanted, available: self.bytes, kept, limit: self.limit.clone() })
    }
}

/// The control groups that a line of `/proc/self/cgroup` names: it and those around it.
fn groups(files: &impl Files, line: &str) -> Vec<Room> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { return Vec::new() };
    let names: &Names = match controllers {
        "" => &UNIFIED,
        _ if controllers.split(',').any(|name| name == "memory") => &SEPARATE,
        _ => return Vec::new(),
    };
    // Inside a container its own group is often mounted as the root: then the path leads nowhere,
    // and the root is what limits.
    let path = PathBuf::from(path);
    path.ancestors().filter_map(|group| names.room(files, &group.to_string_lossy())).collect()
}

/// How a version of the control groups names its files.
struct Names {
    root: &'static str,
    most: &'static str,
    used: &'static str,
    /// What is used and can be had back: pages of files that nobody needs at the moment.
    reclaimable: &'static str,
}

const UNIFIED: Names = Names {
    root: "/sys/fs/cgroup",
    most: "memory.max",
    used: "memory.current",
    reclaimable: "inactive_file",
};

const SEPARATE: Names = Names {
    root: "/sys/fs/cgroup/memory",
    most: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};

impl Names {
    /// What a group leaves; `None` where it limits nothing.
    fn room(&self, files: &impl Files, group: &str) -> Option<Room> {
        let directory = format!("{}{}", self.root, group.trim_end_matches('/'));
        let read = |name: &str| files.read(&format!("{directory}/{name}"));
        let limit = format!("{directory}/{}", self.most);
        // "max" is no number, and no limit.
        let most: u64 = read(self.most)?.trim().parse().ok()?;
        let used: u64 = read(self.used)?.trim().parse().ok()?;
        let stat = read("memory.stat").unwrap_or_default();
        let reclaimable = field(&stat, self.reclaimable).unwrap_or(0);
        let bytes = most.saturating_sub(used.saturating_sub(reclaimable));
        Some(Room { bytes, limit: limit.into() })
    }
}

/// The number behind a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(name)).then(|| words.next())?
    });
    line?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    impl Files for HashMap<&str, &str> {
        fn read(&self, path: &str) -> Option<String> {
            self.get(path).map(|text| (*text).to_owned())
        }
    }

    const MEMINFO: &str = "MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\n";

    #[test]
    fn the_host_limits_where_no_group_does() {
        let files = HashMap::from([
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/cgroup", "0::/user.slice\n"),
            ("/sys/fs/cgroup/user.slice/memory.max", "max\n"),
            ("/sys/fs/cgroup/user.slice/memory.current", "100\n"),
        ]);
        let room = Room::of(&files).unwrap();
        assert_eq!((room.bytes, &*room.limit), (8_000_000 * 1024, "/proc/meminfo"));
    }

    #[test]
    fn the_tightest_of_the_groups_around_the_process_limits() {
        let files = HashMap::from([
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/cgroup", "0::/pod/container\n"),
            ("/sys/fs/cgroup/pod/container/memory.max", "4000000000\n"),
            ("/sys/fs/cgroup/pod/container/memory.current", "1000000000\n"),
            ("/sys/fs/cgroup/pod/memory.max", "3500000000\n"),
            ("/sys/fs/cgroup/pod/memory.current", "3000000000\n"),
            ("/sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 200000000\n"),
        ]);
        let room = Room::of(&files).unwrap();
        assert_eq!((room.bytes, &*room.limit), (700_000_000, "/sys/fs/cgroup/pod/memory.max"));
    }

    #[test]
    fn a_container_whose_group_is_mounted_as_the_root_is_limited_by_that() {
        let files = HashMap::from([
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/cgroup", "5:cpu,memory:/docker/abc\n0::/\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000000\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "500000000\n"),
        ]);
        assert_eq!(Room::of(&files).unwrap().bytes, 1_500_000_000);
    }

    #[test]
    fn a_kernel_that_says_nothing_forbids_nothing() {
        assert_eq!(Room::of(&HashMap::new()), None);
    }

    #[test]
    fn some_is_kept_back_and_the_error_names_the_limit() {
        let room = Room { bytes: 1 << 30, limit: "memory.max".into() };
        assert!(room.check((1 << 30) - (64 << 20)).is_ok());
        let error = room.check((1 << 30) - (64 << 20) + 1).unwrap_err().to_string();
        assert!(error.contains("memory.max") && error.contains("1073741824"), "{error}");
        // An amount beyond all bounds is refused and not wrapped around.
        assert!(room.check(u64::MAX).is_err());
    }
}
