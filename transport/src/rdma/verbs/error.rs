//! Why verbs fail.

use std::ffi::OsString;
use std::io;

use crate::memory::MemoryError;
use crate::rdma::device::{DeviceName, PortNumber};

/// Why an adapter cannot be had or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// There is no library, or it is too old.
    #[error(
        "RDMA is not available because {} cannot be loaded: {why}; install rdma-core 29 or later \
         (Debian and Ubuntu: libibverbs1 and ibverbs-providers)", library.display()
    )]
    Unavailable {
        /// What was to be loaded.
        library: OsString,
        /// What the dynamic linker says.
        why: String,
    },
    /// No device of this name can be opened by this process.
    #[error(
        "there is no RDMA device {name} here: {}; in a container, pass --device=/dev/infiniband",
        listed(present)
    )]
    NoDevice {
        /// What was asked for.
        name: DeviceName,
        /// What there is.
        present: Vec<DeviceName>,
    },
    /// The device's port does not carry traffic.
    #[error("port {port} of {device} is in state {state} and not active (4); see `kvctl topology`")]
    NotActive {
        /// The device.
        device: DeviceName,
        /// Its port.
        port: PortNumber,
        /// The state, as the verbs specification numbers them.
        state: i32,
    },
    /// Memory that an adapter reaches has to be locked, and this process may not lock as much.
    #[error(
        "{device} cannot register {bytes} bytes: this process may lock {limit_bytes} bytes of memory; \
         `ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit, or --ulimit memlock=-1 for a \
         container"
    )]
    MemoryLock {
        /// The device.
        device: DeviceName,
        /// What was to be registered.
        bytes: u64,
        /// The limit of this process (`RLIMIT_MEMLOCK`).
        limit_bytes: u64,
    },
    /// A registration that is longer than the device takes at once.
    #[error("{device} registers at most {most_bytes} bytes at once, not {bytes}: register parts")]
    TooLong {
        /// The device.
        device: DeviceName,
        /// What was to be registered.
        bytes: u64,
        /// The device's limit.
        most_bytes: u64,
    },
    /// Memory of a device cannot be registered by its dma-buf.
    #[error(
        "{device} takes no dma-bufs: {why}; where nvidia_peermem is loaded, memory of a GPU can be \
         registered by its address instead (Memory::device)"
    )]
    NoDmaBuf {
        /// The adapter.
        device: DeviceName,
        /// What is missing, and what has it.
        why: String,
    },
    /// A span outside its memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A request with more local spans than its queue pair was made for.
    #[error("a request of this queue pair names at most {most_spans} local spans, not {spans}")]
    TooManySpans {
        /// What it names.
        spans: u32,
        /// What the queue pair was made for.
        most_spans: u32,
    },
    /// Things of two devices, or of two openings of one, that were to work together.
    #[error("{what} is of {found}, or of another opening of it, and the queue pair of {device}")]
    OtherDevice {
        /// What is of another.
        what: &'static str,
        /// Whose it is.
        found: DeviceName,
        /// Whose it should be.
        device: DeviceName,
    },
    /// An index that a queue pair cannot name.
    #[error("GID index {index} of {device} cannot be used: a queue pair names 0 to 255")]
    GidIndex {
        /// The device.
        device: DeviceName,
        /// The index.
        index: u16,
    },
    /// A completion queue without room for what its queue pairs may have completed at once.
    #[error(
        "the completion queue holds {depth} completions, of which {free} are not spoken for, and the \
         queue pair may have {wanted}: make it deeper"
    )]
    CompletionsFull {
        /// What it holds.
        depth: u32,
        /// What is left for further queue pairs.
        free: u32,
        /// What the queue pair may have posted at once.
        wanted: u32,
    },
    /// The queue pair has failed: a completion said why.
    #[error("the queue pair has failed, and takes nothing any more: connect another")]
    QueuePairFailed,
    /// More was posted than the queue pair has room for. Nothing is wrong: it is to be posted again
    /// when earlier work has completed.
    #[error("the queue pair took {posted} requests and has no room for the next")]
    QueueFull {
        /// How many were posted of those that were to be.
        posted: usize,
    },
    /// A call failed.
    #[error("{call} failed on {device}: {source}")]
    Call {
        /// The verb.
        call: &'static str,
        /// The device.
        device: DeviceName,
        /// What the system says.
        source: io::Error,
    },
}

impl VerbsError {
    /// Whether the same may be tried again when earlier work has completed.
    #[must_use]
    pub fn is_backpressure(&self) -> bool {
        matches!(self, Self::QueueFull { .. })
    }
}

fn listed(present: &[DeviceName]) -> String {
    if present.is_empty() {
        return "there is none".to_owned();
    }
    let names: Vec<_> = present.iter().map(DeviceName::as_str).collect();
    format!("there are {}", names.join(", "))
}
