//! Locks and atomics of what is also compiled against loom, which tries their interleavings:
//! `tests/loom` has another module of this name.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

pub(crate) use parking_lot::{Mutex, MutexGuard};
