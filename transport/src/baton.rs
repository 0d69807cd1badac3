//! Work that any thread may bring, and that one at a time does.

use std::fmt;
use std::ops::ControlFlow;

use crate::sync::{Mutex, MutexGuard};

/// What is needed to do some work, held by whoever is at it. Threads that bring work lay it down
/// where everybody can find it, and then [`run`](Self::run): whoever finds nobody at it does what
/// all have brought. So nobody waits for another, and nothing is left lying.
///
/// What was brought must lie behind a lock of its own, under which it is laid down, taken, and
/// looked for. Then either the thread that brings finds the baton free, or the one that holds it
/// finds what was brought when it looks again after putting the baton down. A plain flag would not
/// do: both threads could read what was there before the other wrote.
#[derive(Default)]
pub struct Baton<T>(Mutex<T>);

impl<T> Baton<T> {
    /// One that nobody holds.
    pub fn new(needed: T) -> Self {
        Self(Mutex::new(needed))
    }

    /// Takes it, once whoever holds it has put it down. Who has taken it this way must look
    /// for what was brought meanwhile after putting it down.
    pub fn take(&self) -> MutexGuard<'_, T> {
        self.0.lock()
    }

    /// Does laps while something `is_brought`, unless somebody else is at it, who then does this
    /// too. A lap takes what it finds; it breaks off where the rest is left to another.
    pub fn run(
        &self,
        mut lap: impl FnMut(&mut T) -> ControlFlow<()>,
        is_brought: impl Fn() -> bool,
    ) {
        loop {
            let Some(mut held) = self.0.try_lock() else { return };
            let flow = lap(&mut held);
            drop(held);
            // Whoever brought something while the baton was held relies on this second look.
            if flow.is_break() || !is_brought() {
                return;
            }
        }
    }
}

impl<T> fmt::Debug for Baton<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Baton").finish_non_exhaustive()
    }
}
