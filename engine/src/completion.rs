//! The end of a transfer, for whoever waits for it: a task, a thread, a poll loop.

use std::future::Future;
use std::io::{self, PipeReader, PipeWriter};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use kvferry_proto::TransferId;
use parking_lot::{Condvar, Mutex};

use crate::error::TransferError;
use crate::time;
use crate::transfer::cargo::Cargo;

/// What a transfer that ended `Done` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its number with this peer.
    pub transfer: TransferId,
    /// Bytes moved.
    pub bytes: u64,
    /// Pairs of spans that were asked for.
    pub pairs: u64,
    /// Descriptors left after coalescing.
    pub descriptors: u64,
    /// Frames that carried it.
    pub slices: u64,
    /// How many of them were sent again on another lane.
    pub repeated_slices: u32,
    /// What carried it.
    pub transport: &'static str,
    /// Whether any of it was copied by its receiver from where it was, and did not go through a
    /// connection.
    pub by_reference: bool,
    /// From submission to its end.
    pub elapsed: Duration,
}

/// How a transfer ended.
pub type Ended = Result<Report, TransferError>;

#[derive(Default)]
struct State {
    ended: Option<Ended>,
    /// Of all tasks that wait, each once.
    wakers: Vec<Waker>,
    /// Dropped at the end: the reading end then reports end of file.
    pipe: Option<PipeWriter>,
}

#[derive(Default)]
pub(crate) struct Completion {
    is_over: AtomicBool,
    state: Mutex<State>,
    over: Condvar,
}

impl Completion {
    /// Ends it. A second end, which there must not be, is ignored.
    pub(crate) fn end(&self, ended: Ended) {
        let mut state = self.state.lock();
        if let Some(first) = &state.ended {
            if cfg!(any(debug_assertions, feature = "simulation")) {
                panic!("a transfer that has ended with {first:?} ends with {ended:?}");
            }
            return;
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
    }

    fn poll_ended(&self) -> Option<Ended> {
        if self.is_over.load(Ordering::Acquire) { self.state.lock().ended.clone() } else { None }
    }
}

/// A transfer under way. It can be awaited, polled, or waited for on a plain thread.
///
/// Dropping the handle before the end cancels the transfer without waiting;
/// [`Transfer::detach`] lets it go on.
#[derive(Debug)]
#[must_use = "dropping the handle cancels the transfer"]
pub struct Transfer {
    cargo: Arc<Cargo>,
    detached: bool,
}

impl Transfer {
    pub(crate) fn new(cargo: Arc<Cargo>) -> Self {
        Self { cargo, detached: false }
    }

    /// Its number with this peer.
    #[must_use]
    pub fn id(&self) -> TransferId {
        self.cargo.id()
    }

    /// How it ended; `None` while it has not. Costs one load.
    #[must_use]
    pub fn poll(&self) -> Option<Ended> {
        self.completion().poll_ended()
    }

    /// Blocks this thread until it has ended, at its deadline at the latest.
    ///
    /// # Errors
    /// How it failed.
    pub fn wait(&self) -> Ended {
        self.look(Duration::MAX);
        let completion = self.completion();
        let mut state = completion.state.lock();
        loop {
            match &state.ended {
                Some(ended) => return ended.clone(),
                None => completion.over.wait(&mut state),
            }
        }
    }

    /// Blocks this thread until it has ended, or for `patience`: `None` then.
    #[must_use]
    pub fn wait_for(&self, patience: Duration) -> Option<Ended> {
        let deadline = time::after(Instant::now(), patience);
        self.look(patience);
        let completion = self.completion();
        let mut state = completion.state.lock();
        while state.ended.is_none() {
            if completion.over.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.ended.clone()
    }

    /// Asks for it to end. It ends [`Error::Cancelled`](crate::Error::Cancelled) once its target
    /// has confirmed that nothing more lands, or its deadline has passed; the error says which. It
    /// may also end `Done`, if it was.
    pub fn cancel(&self) {
        self.cargo.cancel();
    }

    /// Lets it go on without this handle.
    pub fn detach(mut self) {
        self.detached = true;
    }

    /// A descriptor that becomes readable (end of file) when the transfer has ended, for poll
    /// loops. It belongs to the caller.
    ///
    /// # Errors
    /// What the system says when it has no descriptor left.
    pub fn completion_fd(&self) -> io::Result<PipeReader> {
        let (reader, writer) = io::pipe()?;
        let mut state = self.completion().state.lock();
        if state.ended.is_none() {
            // A former descriptor's reader is told early that there is none any more, and finds
            // by polling that the transfer has not ended; one descriptor a transfer is meant.
            state.pipe = Some(writer);
        }
        Ok(reader)
    }

    /// Looks for answers for a short while: to be woken takes longer than a small transfer does.
    fn look(&self, patience: Duration) {
        let began = Instant::now();
        let driver = self.cargo.driver();
        let patience = driver.spin().min(patience);
        while !self.completion().is_over.load(Ordering::Acquire) && began.elapsed() < patience {
            driver.look();
        }
    }

    fn completion(&self) -> &Completion {
        self.cargo.completion()
    }
}

impl Future for Transfer {
    type Output = Ended;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended> {
        Pin::new(&mut &*self).poll(context)
    }
}

/// For tasks that share the handle: each of them is woken.
impl Future for &Transfer {
    type Output = Ended;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended> {
        let mut state = self.completion().state.lock();
        match &state.ended {
            Some(ended) => Poll::Ready(ended.clone()),
            None => {
                if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                    state.wakers.push(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if !self.detached && !self.completion().is_over.load(Ordering::Acquire) {
            self.cargo.cancel();
        }
    }
}
