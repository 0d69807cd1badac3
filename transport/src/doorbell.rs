//! Who sleeps and who rings: how one end of shared memory learns that the other has something for it.
//!
//! One end says how far it has come, in a position that the other reads; the other says, in a mark,
//! whether it wants to be woken. Each writes its own and then reads the other's, with a fence in
//! between: so of an end that moves on and one that goes to sleep at the same time, one sees the other.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Says how far this end has come. Returns the other end's mark, for who has to be woken because of it.
pub(crate) fn publish(position: &AtomicU64, reached: u64, mark: &AtomicU32) -> u32 {
    // What lies before the position was written before it.
    position.store(reached, Ordering::Release);
    fence(Ordering::SeqCst);
    mark.load(Ordering::Relaxed)
}

/// How far the other end has come, to be asked again after this end's mark was changed: what is
/// published after this is answered by the new mark.
pub(crate) fn settle(position: &AtomicU64) -> u64 {
    fence(Ordering::SeqCst);
    reached(position)
}

/// How far the other end has come, and what lies before it can be read.
pub(crate) fn reached(position: &AtomicU64) -> u64 {
    // Such a load is all that may be done to memory that is mapped for reading only.
    let reached = position.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    reached
}
