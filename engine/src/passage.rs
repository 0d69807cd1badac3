//! The fence: how permission to touch memory is withdrawn for certain.
//!
//! Every system call that touches region memory is made inside [`enter`], and only after a look, also
//! inside, at whatever may forbid it: a grant, a cancelled transfer, a fenced lane. Whoever forbids
//! something sets that mark first and then calls [`quiesce`], which returns when every call that
//! may have started before the mark was set has returned. Since none of those calls blocks, that is
//! a matter of microseconds, whatever any peer does.
//!
//! What an adapter does to memory goes on after the call that asked for it. Whoever asks for such things
//! knows what is under way ([`Flight`]), and is asked too: the call was made inside a passage, so what
//! it began is known once the gates were passed.
//!
//! Each thread has a gate of its own, so that to enter costs one uncontended lock, however many
//! grants a call stands on.

use std::cell::Cell;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

type Gate = Arc<Mutex<()>>;

static GATES: Mutex<Vec<Gate>> = Mutex::new(Vec::new());

static FLIGHTS: Mutex<Vec<Weak<dyn Flight>>> = Mutex::new(Vec::new());

/// Something that touches memory after the call that began it has returned.
pub(crate) trait Flight: Send + Sync {
    /// Returns when nothing is under way whose permission is gone. Takes no longer than tearing down
    /// what does it.
    fn settle(&self);
}

/// Has [`quiesce`] ask a flight too, for as long as it exists.
pub(crate) fn take_off(flight: &Arc<dyn Flight>) {
    let mut flights = FLIGHTS.lock();
    flights.retain(|known| known.strong_count() > 0);
    flights.push(Arc::downgrade(flight));
}

/// The process whose threads have the gates. A forked child has none of them but its own, and a
/// gate that was held at the fork is held for ever there.
static PROCESS: OnceLock<u32> = OnceLock::new();

struct OwnGate {
    gate: Gate,
    inside: Cell<bool>,
}

impl OwnGate {
    fn register() -> Self {
        PROCESS.get_or_init(std::process::id);
        let gate = Gate::default();
        GATES.lock().push(gate.clone());
        Self { gate, inside: Cell::new(false) }
    }

    fn enter<R>(&self, call: impl FnOnce() -> R) -> R {
        let _inside = self.gate.lock();
        self.inside.set(true);
        let result = call();
        self.inside.set(false);
        result
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
    let mut call = Some(call);
    let entered = OWN.try_with(|own| call.take().map(|call| own.enter(call)));
    match (entered, call) {
        (Ok(Some(result)), _) => result,
        // The thread is on its way out, and its gate is gone: one for this call.
        (_, Some(call)) => OwnGate::register().enter(call),
        (_, None) => unreachable!("a call that was taken was made"),
    }
}

/// Returns when no call is under way that did not see what was forbidden before this one. Must not
/// be called inside [`enter`].
pub(crate) fn quiesce() {
    let is_inside = OWN.try_with(|own| own.inside.get()).unwrap_or(false);
    debug_assert!(!is_inside, "quiesce inside a passage waits for itself");
    if PROCESS.get().is_some_and(|process| *process != std::process::id()) {
        return;
    }
    // A thread that registers after this copy was taken sees the mark: it was set before the list
    // was locked here.
    let gates = GATES.lock().clone();
    for gate in gates {
        drop(gate.lock());
    }
    let flights = FLIGHTS.lock().clone();
    // One is kept no longer than it is waited for: others' engines may be about to give theirs back.
    for flight in flights.iter().filter_map(Weak::upgrade) {
        flight.settle();
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
