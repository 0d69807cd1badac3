//! Whoever waits for an end is told of it.

use std::sync::Arc as StdArc;
use std::task::{Wake, Waker};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;

use crate::ending::Ending;

const END: u32 = 7;

/// Ends it on another thread while `wait` waits for it on this one.
fn while_it_ends(wait: impl Fn(&Ending<u32>) + Send + Sync + 'static) {
    loom::model(move || {
        let ending = Arc::new(Ending::new());
        let ends = ending.clone();
        let other = thread::spawn(move || assert_eq!(ends.end(END), Ok(())));
        wait(&ending);
        other.join().expect("no thread panics");
        assert_eq!(ending.end(END + 1), Err(END), "it ends once");
        assert_eq!(ending.poll(), Some(END));
    });
}

#[test]
fn a_thread_that_waits_is_woken() {
    while_it_ends(|ending| assert_eq!(ending.wait(), END));
}

#[test]
fn whoever_sees_that_it_is_over_finds_how() {
    while_it_ends(|ending| {
        if ending.is_over() {
            assert_eq!(ending.poll(), Some(END));
        }
    });
}

/// Counts how often it is woken.
struct Bell(AtomicU32);

impl Wake for Bell {
    fn wake(self: StdArc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_task_finds_the_end_or_is_woken() {
    loom::model(|| {
        let ending = Arc::new(Ending::new());
        let ends = ending.clone();
        let bell = StdArc::new(Bell(AtomicU32::new(0)));
        let waker = Waker::from(bell.clone());
        let other = thread::spawn(move || assert_eq!(ends.end(END), Ok(())));
        let found = ending.poll_or_wake(&waker);
        other.join().expect("no thread panics");
        let rung = bell.0.load(Ordering::Relaxed);
        assert!(found == Some(END) || rung == 1, "{found:?}, woken {rung} times");
    });
}

#[test]
#[should_panic(expected = "it is over and nobody knows how")]
fn loom_finds_out_an_end_that_is_told_before_it_is_written() {
    loom::model(|| {
        let ending = Arc::new((AtomicBool::new(false), AtomicU32::new(0)));
        let ends = ending.clone();
        thread::spawn(move || {
            ends.0.store(true, Ordering::Release);
            ends.1.store(END, Ordering::Relaxed);
        });
        let (is_over, end) = &*ending;
        if is_over.load(Ordering::Acquire) {
            assert_eq!(end.load(Ordering::Relaxed), END, "it is over and nobody knows how");
        }
    });
}
