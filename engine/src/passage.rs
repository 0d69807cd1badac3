//! The fence: how permission to touch memory is withdrawn for certain.
//!
//! Every system call that touches region memory is made inside [`enter`], and only after a look, also
//! inside, at whatever may forbid it: a grant, a cancelled transfer, a fenced lane. Whoever forbids
//! something sets that mark first and then calls [`quiesce`], which returns when every call that
//! may have started before the mark was set has returned. Since none of those calls blocks, that is
//! a matter of microseconds, whatever any peer does.
//!
//! Each thread has a gate of its own, so that to enter costs one uncontended lock, however many
//! grants a call stands on.

use std::cell::Cell;
use std::sync::Arc;

use parking_lot::Mutex;

type Gate = Arc<Mutex<()>>;

static GATES: Mutex<Vec<Gate>> = Mutex::new(Vec::new());

struct OwnGate {
    gate: Gate,
    inside: Cell<bool>,
}

impl OwnGate {
    fn register() -> Self {
        let gate = Gate::default();
        GATES.lock().push(gate.clone());
        Self { gate, inside: Cell::new(false) }
    }
}

impl Drop for OwnGate {
    fn drop(&mut self) {
        GATES.lock().retain(|gate| !Arc::ptr_eq(gate, &self.gate));
    }
}

thread_local! {
    static OWN: OwnGate = OwnGate::register();
}

/// Makes a call that touches memory. What forbids it must be looked at inside `call`.
pub(crate) fn enter<R>(call: impl FnOnce() -> R) -> R {
    OWN.with(|own| {
        let _inside = own.gate.lock();
        own.inside.set(true);
        let result = call();
        own.inside.set(false);
        result
    })
}

/// Returns when no call is under way that did not see what was forbidden before this one. Must not
/// be called inside [`enter`].
pub(crate) fn quiesce() {
    debug_assert!(!OWN.with(|own| own.inside.get()), "quiesce inside a passage waits for itself");
    // A thread that registers after this copy was taken sees the mark: it was set before the list
    // was locked here.
    let gates = GATES.lock().clone();
    for gate in gates {
        drop(gate.lock());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn nothing_is_touched_after_quiesce_returned() {
        static FORBIDDEN: AtomicBool = AtomicBool::new(false);
        static TOUCHES: AtomicU32 = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut allowed = true;
                    while allowed {
                        allowed = enter(|| {
                            if FORBIDDEN.load(Ordering::Acquire) {
                                return false;
                            }
                            std::thread::sleep(Duration::from_micros(50));
                            TOUCHES.fetch_add(1, Ordering::Relaxed);
                            true
                        });
                    }
                });
            }
            while TOUCHES.load(Ordering::Relaxed) < 100 {
                std::thread::yield_now();
            }
            FORBIDDEN.store(true, Ordering::Release);
            quiesce();
            let touches = TOUCHES.load(Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(TOUCHES.load(Ordering::Relaxed), touches);
        });
    }
}
