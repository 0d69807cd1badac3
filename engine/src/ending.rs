//! An end that comes once, for whoever waits for it: a task, a thread, a poll loop, a descriptor.

use std::io::PipeWriter;
use std::task::Waker;
use std::time::Instant;

use crate::sync::{AtomicBool, Condvar, Mutex, Ordering};

struct State<E> {
    ended: Option<E>,
    /// Of all tasks that wait, each once.
    wakers: Vec<Waker>,
    /// Dropped at the end: the reading end then reports end of file.
    pipe: Option<PipeWriter>,
}

/// See the [module](self).
pub(crate) struct Ending<E> {
    /// Set after the end was written, so that whoever sees it finds the end.
    is_over: AtomicBool,
    state: Mutex<State<E>>,
    over: Condvar,
}

impl<E: Clone> Ending<E> {
    pub(crate) fn new() -> Self {
        let state = State { ended: None, wakers: Vec::new(), pipe: None };
        Self { is_over: AtomicBool::new(false), state: Mutex::new(state), over: Condvar::new() }
    }

    /// Ends it.
    ///
    /// # Errors
    /// Returns the first end where it has ended before; this one is ignored.
    pub(crate) fn end(&self, ended: E) -> Result<(), E> {
        let mut state = self.state.lock();
        if let Some(first) = &state.ended {
            return Err(first.clone());
        }
        state.ended = Some(ended);
        self.is_over.store(true, Ordering::Release);
        let wakers = std::mem::take(&mut state.wakers);
        let pipe = state.pipe.take();
        drop(state);
        self.over.notify_all();
        drop(pipe);
        for waker in wakers {
            waker.wake();
        }
        Ok(())
    }

    /// Whether it has ended: one load.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// How it ended; `None`, for the price of a load, while it has not.
    pub(crate) fn poll(&self) -> Option<E> {
        if self.is_over() { self.state.lock().ended.clone() } else { None }
    }

    /// How it ended; while it has not, `waker` is woken when it does.
    pub(crate) fn poll_or_wake(&self, waker: &Waker) -> Option<E> {
        let mut state = self.state.lock();
        if state.ended.is_none() && !state.wakers.iter().any(|other| other.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
        state.ended.clone()
    }

    /// Blocks this thread until it has ended.
    pub(crate) fn wait(&self) -> E {
        let mut state = self.state.lock();
        loop {
            match &state.ended {
                Some(ended) => return ended.clone(),
                None => self.over.wait(&mut state),
            }
        }
    }

    /// Blocks this thread until it has ended, or for as long as there is time: `None` then.
    pub(crate) fn wait_until(&self, deadline: Instant) -> Option<E> {
        let mut state = self.state.lock();
        while state.ended.is_none() {
            if self.over.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.ended.clone()
    }

    /// Keeps a pipe open until it has ended: no longer, where it has. A former one is closed early,
    /// and its reader finds by polling that it has not ended.
    pub(crate) fn keep_open(&self, pipe: PipeWriter) {
        let mut state = self.state.lock();
        if state.ended.is_none() {
            state.pipe = Some(pipe);
        }
    }
}
