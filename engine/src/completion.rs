//! The end of a transfer, for whoever waits for it: a task, a thread, a poll loop.

use std::future::Future;
use std::io::{self, PipeReader};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use kvferry_proto::TransferId;

use crate::ending::Ending;
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
    /// Of that, until it was resolved, checked and planned.
    pub planning: Duration,
    /// What it took to write the requests for its slices, beside other work.
    pub encoding: Duration,
}

/// How a transfer ended.
pub type Ended = Result<Report, TransferError>;

/// The end of one transfer.
pub(crate) struct Completion(Ending<Ended>);

impl Default for Completion {
    fn default() -> Self {
        Self(Ending::new())
    }
}

impl Completion {
    /// Ends it. A second end, which there must not be, is ignored.
    pub(crate) fn end(&self, ended: Ended) {
        let kept = cfg!(any(debug_assertions, feature = "simulation")).then(|| ended.clone());
        if let (Err(first), Some(ended)) = (self.0.end(ended), kept) {
            panic!("a transfer that has ended with {first:?} ends with {ended:?}");
        }
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
        self.ending().poll()
    }

    /// Blocks this thread until it has ended, at its deadline at the latest.
    ///
    /// # Errors
    /// How it failed.
    pub fn wait(&self) -> Ended {
        self.look(Duration::MAX);
        self.ending().wait()
    }

    /// Blocks this thread until it has ended, or for `patience`: `None` then.
    #[must_use]
    pub fn wait_for(&self, patience: Duration) -> Option<Ended> {
        let deadline = time::after(Instant::now(), patience);
        self.look(patience);
        self.ending().wait_until(deadline)
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
        // One descriptor a transfer is meant.
        self.ending().keep_open(writer);
        Ok(reader)
    }

    /// Looks for answers for a short while: to be woken takes longer than a small transfer does.
    fn look(&self, patience: Duration) {
        let began = Instant::now();
        let driver = self.cargo.driver();
        let patience = driver.spin().min(patience);
        driver.look(self.id(), &|| self.ending().is_over() || began.elapsed() >= patience);
    }

    fn ending(&self) -> &Ending<Ended> {
        &self.cargo.completion().0
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
        self.ending().poll_or_wake(context.waker()).map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if !self.detached && !self.ending().is_over() {
            self.cargo.cancel();
        }
    }
}
