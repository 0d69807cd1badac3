//! loom's locks with the faces of parking_lot's.

use std::ops::{Deref, DerefMut};
use std::time::Instant;

pub use loom::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

pub struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

const HELD: &str = "a guard is without its lock only while a condition is waited for";

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().expect("no thread panics")))
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect(HELD)
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect(HELD)
    }
}

pub struct Condvar(loom::sync::Condvar);

/// loom knows no time: none passes.
pub struct InTime;

impl InTime {
    pub fn timed_out(&self) -> bool {
        false
    }
}

impl Condvar {
    pub fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }

    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.0.take().expect(HELD);
        guard.0 = Some(self.0.wait(held).expect("no thread panics"));
    }

    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _deadline: Instant) -> InTime {
        self.wait(guard);
        InTime
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
