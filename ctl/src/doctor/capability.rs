//! Capabilities of this process.

use kvferry_transport::rdma::device::HostRoot;

const STATUS: &str = "/proc/self/status";

/// A capability, by its bit in `include/uapi/linux/capability.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capability {
    /// Locks any amount of memory.
    IpcLock = 14,
    /// Reads the memory of any process.
    SysPtrace = 19,
}

impl Capability {
    /// Whether the process has it; not where that cannot be read.
    pub(super) fn is_held(self, root: &HostRoot) -> bool {
        let effective = root.parsed(STATUS, "a process's status", effective);
        effective.is_ok_and(|effective| effective & (1 << self as u32) != 0)
    }
}

fn effective(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}
