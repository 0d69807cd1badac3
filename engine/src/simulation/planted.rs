//! Bugs that can be planted, to see that a simulation finds them.

use std::cell::Cell;

/// A guard that is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// What is withdrawn is stored all the same: grants, cancels and fences are not looked at
    /// before bytes are stored.
    LateWrite,
    /// A transfer's end is told twice.
    DoubleEnd,
    /// A notification is confirmed and not delivered.
    LostNotification,
    /// A lane meant for a former incarnation is accepted.
    StaleIncarnation,
    /// A lane that is to be closed stays open.
    LeakedLane,
    /// A write that was refused is confirmed.
    FalseAck,
    /// A notification that is repeated is delivered again.
    RepeatedNotification,
    /// A cancel is confirmed without being made.
    FalseFence,
    /// What is withdrawn is read all the same.
    LateRead,
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Plants a bug in everything that nodes do on this thread from now on, or none.
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

pub(crate) fn is_planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}
