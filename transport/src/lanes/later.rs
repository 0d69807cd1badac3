//! Sends that wait until a thread is through with what it is doing.
//!
//! What arrives often has something sent: an answer, or the next slices of a window that opens. If
//! that went out at once, a thread that reads answers would send all of a bulk transfer before it
//! looked at another lane, and one that holds a lock would hold it for as long. So lanes are only
//! queued on meanwhile, and sent on afterwards.

use std::cell::RefCell;

use super::lane::Lane;
use super::reactor::TURN_BYTES;

thread_local! {
    /// Lanes that this thread has queued on; `None` while it sends at once.
    static QUEUED: RefCell<Option<Vec<Lane>>> = const { RefCell::new(None) };
}

/// Does something. What it sends on lanes is queued, and goes out when it is done: on each lane as
/// much as a thread may send at once, the rest by the lane's reactor. Within another such call,
/// what is queued goes out at the end of that.
pub fn send_afterwards<R>(act: impl FnOnce() -> R) -> R {
    let (result, queued) = gather(act);
    for lane in queued {
        lane.send_some(TURN_BYTES);
    }
    result
}

/// As [`send_afterwards`], but on all lanes together up to about `budget` bytes, from which it takes
/// what was sent.
pub(super) fn send_within<R>(budget: &mut usize, act: impl FnOnce() -> R) -> R {
    let (result, queued) = gather(act);
    for lane in queued {
        *budget = budget.saturating_sub(lane.send_some(*budget));
    }
    result
}

/// Does something, and returns the lanes that are to be sent on: none within another such call,
/// which returns these too.
fn gather<R>(act: impl FnOnce() -> R) -> (R, Vec<Lane>) {
    /// Ends it also where `act` panics.
    struct Gathering;

    impl Drop for Gathering {
        fn drop(&mut self) {
            QUEUED.with_borrow_mut(|queued| *queued = None);
        }
    }

    let is_outermost = QUEUED.with_borrow_mut(|queued| {
        let is_outermost = queued.is_none();
        queued.get_or_insert_default();
        is_outermost
    });
    if !is_outermost {
        return (act(), Vec::new());
    }
    let gathering = Gathering;
    let result = act();
    let queued = QUEUED.with_borrow_mut(Option::take);
    drop(gathering);
    (result, queued.unwrap_or_default())
}

/// Whether what is queued on `lane` is sent later, by [`gather`].
pub(super) fn is_later(lane: &Lane) -> bool {
    // A thread on its way out gathers nothing any more.
    let noted = QUEUED.try_with(|queued| {
        let mut queued = queued.borrow_mut();
        let Some(queued) = queued.as_mut() else { return false };
        if !queued.iter().any(|other| other.is_same(lane)) {
            queued.push(lane.clone());
        }
        true
    });
    noted.unwrap_or(false)
}
