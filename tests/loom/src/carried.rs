//! What is brought to a baton is done.

use std::ops::ControlFlow;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use crate::baton::Baton;
use crate::sync::Mutex;

/// As lanes and sessions have it: what is brought lies behind a lock of its own.
#[derive(Default)]
struct Carried {
    brought: Mutex<Vec<u32>>,
    done: Baton<Vec<u32>>,
}

impl Carried {
    fn bring(&self, work: u32) {
        self.brought.lock().push(work);
        self.run();
    }

    fn run(&self) {
        let lap = |done: &mut Vec<u32>| {
            done.append(&mut self.brought.lock());
            ControlFlow::Continue(())
        };
        self.done.run(lap, || !self.brought.lock().is_empty());
    }
}

/// Two threads bring one each: with a third there are more interleavings than can be tried.
fn each_brings_one(bring: impl Fn(u32) + Send + Sync + 'static) {
    let bring = Arc::new(bring);
    let brings = bring.clone();
    let other = thread::spawn(move || brings(1));
    bring(0);
    other.join().expect("no thread panics");
}

#[test]
fn what_is_brought_while_another_is_at_it_is_done_by_the_time_both_are_through() {
    loom::model(|| {
        let carried = Arc::new(Carried::default());
        let bring = carried.clone();
        each_brings_one(move |work| bring.bring(work));
        let mut done = carried.done.take().clone();
        done.sort_unstable();
        assert_eq!(done, [0, 1]);
        assert!(carried.brought.lock().is_empty());
    });
}

#[test]
fn who_takes_the_baton_and_looks_after_putting_it_down_leaves_nothing_either() {
    loom::model(|| {
        let carried = Arc::new(Carried::default());
        let brings = carried.clone();
        let other = thread::spawn(move || brings.bring(1));
        let mut held = carried.done.take();
        held.append(&mut carried.brought.lock());
        drop(held);
        if !carried.brought.lock().is_empty() {
            carried.run();
        }
        other.join().expect("no thread panics");
        assert_eq!(*carried.done.take(), [1]);
    });
}

#[test]
#[should_panic(expected = "was brought and is not done")]
fn loom_finds_out_who_looks_before_putting_the_baton_down() {
    loom::model(|| {
        let carried = Arc::new((Mutex::new(0), Mutex::new(0)));
        let brings = carried.clone();
        each_brings_one(move |_| {
            let (brought, done) = &*brings;
            *brought.lock() += 1;
            let Some(mut done) = done.try_lock() else { return };
            loop {
                let found = std::mem::take(&mut *brought.lock());
                *done += found;
                if found == 0 {
                    return;
                }
            }
        });
        let (brought, _) = &*carried;
        assert_eq!(*brought.lock(), 0, "what was brought and is not done");
    });
}

#[test]
#[should_panic(expected = "was brought and is not done")]
fn loom_finds_out_that_a_flag_is_not_enough_to_look_at() {
    loom::model(|| {
        let carried = Arc::new((AtomicBool::new(false), Baton::new(0_u32)));
        let brings = carried.clone();
        each_brings_one(move |_| {
            let (brought, done) = &*brings;
            brought.store(true, Ordering::Release);
            let lap = |done: &mut u32| {
                *done += u32::from(brought.swap(false, Ordering::AcqRel));
                ControlFlow::Continue(())
            };
            done.run(lap, || brought.load(Ordering::Acquire));
        });
        let (brought, _) = &*carried;
        assert!(!brought.load(Ordering::Relaxed), "what was brought and is not done");
    });
}
