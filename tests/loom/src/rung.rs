//! Who stops looking has seen what was published, or is woken for it.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;

use crate::doorbell::{publish, reached, settle};

/// What two ends have in common: how far the one has come, whether the other looks, and whether that was
/// woken.
struct Shared {
    sent: AtomicU64,
    watchers: AtomicU32,
    rung: AtomicBool,
}

/// One end publishes while the other, which has looked until now, stops.
fn while_one_stops_looking(
    publishes: impl Fn(&Shared) -> u32 + Send + Sync + Copy + 'static,
    finds: impl Fn(&Shared) -> u64 + Send + Sync + Copy + 'static,
) {
    loom::model(move || {
        let shared = Arc::new(Shared {
            sent: AtomicU64::new(0),
            watchers: AtomicU32::new(1),
            rung: AtomicBool::new(false),
        });
        let other = {
            let shared = shared.clone();
            thread::spawn(move || {
                if publishes(&shared) == 0 {
                    shared.rung.store(true, Ordering::Relaxed);
                }
            })
        };
        let found = finds(&shared);
        other.join().expect("no thread panics");
        let is_woken = shared.rung.load(Ordering::Relaxed);
        assert!(found == 1 || is_woken, "it sleeps while there is something for it");
    });
}

#[test]
fn who_stops_looking_has_seen_it_or_is_woken() {
    while_one_stops_looking(
        |shared| publish(&shared.sent, 1, &shared.watchers),
        |shared| {
            shared.watchers.fetch_sub(1, Ordering::Relaxed);
            settle(&shared.sent)
        },
    );
}

#[test]
#[should_panic(expected = "it sleeps while there is something for it")]
fn loom_finds_out_who_looks_before_it_says_that_it_stops() {
    while_one_stops_looking(
        |shared| publish(&shared.sent, 1, &shared.watchers),
        |shared| {
            let found = reached(&shared.sent);
            shared.watchers.fetch_sub(1, Ordering::Relaxed);
            found
        },
    );
}

#[test]
#[should_panic(expected = "it sleeps while there is something for it")]
fn loom_finds_out_that_both_need_a_fence() {
    while_one_stops_looking(
        |shared| {
            shared.sent.store(1, Ordering::Release);
            shared.watchers.load(Ordering::Relaxed)
        },
        |shared| {
            shared.watchers.fetch_sub(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            reached(&shared.sent)
        },
    );
}
