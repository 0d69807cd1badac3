//! Waiting without the interpreter's lock.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// How often a waiting thread looks for signals: Python's handlers only run when asked to.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// Waits by turns of at most [`LOOK`] until `turn` returns something, or for `timeout`: `None`
/// then. A signal's handler may raise, as that of an interrupt does.
pub(crate) fn by_turns<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    mut turn: impl FnMut(Duration) -> Option<T> + Send,
) -> PyResult<Option<T>> {
    // A time too long for the clock is for ever.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left =
            deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        if let Some(done) = py.detach(|| turn(left.min(LOOK))) {
            return Ok(Some(done));
        }
        py.check_signals()?;
        if left.is_zero() {
            return Ok(None);
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks this thread until the future is ready, or for `timeout`: `None` then, and the future is
/// dropped.
pub(crate) fn block_on<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    future: impl Future<Output = T> + Send,
) -> PyResult<Option<T>> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    by_turns(py, timeout, |patience| {
        let mut poll = || match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        };
        // The second look is for what came while it was parked, in the last turn.
        poll().or_else(|| {
            thread::park_timeout(patience);
            poll()
        })
    })
}

/// A time in seconds, as Python gives it.
pub(crate) fn seconds(value: f64) -> PyResult<Duration> {
    if value == f64::INFINITY {
        return Ok(Duration::MAX);
    }
    Duration::try_from_secs_f64(value).map_err(|_| {
        PyValueError::new_err(format!("{value} is no time in seconds: it must be 0 or more"))
    })
}

/// A time in seconds, or none.
pub(crate) fn optional_seconds(value: Option<f64>) -> PyResult<Option<Duration>> {
    value.map(seconds).transpose()
}
