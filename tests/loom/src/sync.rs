//! loom's locks with the faces of parking_lot's.

use std::ops::{Deref, DerefMut};
use std::time::Instant;

use loom::sync::atomic::AtomicUsize;
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// To loom, putting a lock down is nothing that another thread could come before: whoever only tries
/// to get it would never find it held from the holder's last step on. So both are told to loom as
/// accesses to `put_down`, which, being relaxed, order nothing else.
#[derive(Default)]
pub struct Mutex<T> {
    lock: loom::sync::Mutex<T>,
    put_down: AtomicUsize,
}

pub struct MutexGuard<'a, T> {
    held: Option<loom::sync::MutexGuard<'a, T>>,
    put_down: &'a AtomicUsize,
}

const HELD: &str = "a guard is without its lock only while a condition is waited for";

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self { lock: loom::sync::Mutex::new(value), put_down: AtomicUsize::new(0) }
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.guard(self.lock.lock().expect("no thread panics"))
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.put_down.load(Ordering::Relaxed);
        self.lock.try_lock().ok().map(|held| self.guard(held))
    }

    fn guard<'a>(&'a self, held: loom::sync::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard { held: Some(held), put_down: &self.put_down }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        // Of a model that fails nothing more is tried.
        if !std::thread::panicking() {
            self.put_down.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect(HELD)
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect(HELD)
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
        let held = guard.held.take().expect(HELD);
        guard.held = Some(self.0.wait(held).expect("no thread panics"));
    }

    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _deadline: Instant) -> InTime {
        self.wait(guard);
        InTime
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
