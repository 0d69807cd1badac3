//! Waiting in an event loop: a future of the engine, and a descriptor that tells when to look at it.

use std::future::Future;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Makes a Python value of what a future came to, once there is an interpreter at hand.
type Outcome = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

type Work = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Writes a byte when woken, unless one is in the pipe already.
struct Bell {
    rung: AtomicBool,
    writer: PipeWriter,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // The pipe is empty, so this does not block; whoever listened may be gone.
            let _ = (&self.writer).write(&[1]);
        }
    }
}

/// Something under way that a task can await. Dropping it gives it up, without loss: what has not
/// been taken is still there for the next.
#[pyclass(frozen, module = "kvferry")]
pub(crate) struct Pending {
    /// `None` once it is over.
    work: Mutex<Option<Work>>,
    bell: Arc<Bell>,
    reader: PipeReader,
}

impl Pending {
    pub(crate) fn new<T: Send + 'static>(
        future: impl Future<Output = T> + Send + 'static,
        into_python: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Self> {
        let (reader, writer) = io::pipe().map_err(PyOSError::new_err)?;
        let work = async move {
            let value = future.await;
            Box::new(move |py: Python<'_>| into_python(py, value)) as Outcome
        };
        let bell = Arc::new(Bell { rung: AtomicBool::new(false), writer });
        Ok(Self { work: Mutex::new(Some(Box::pin(work))), bell, reader })
    }
}

#[pymethods]
impl Pending {
    /// What came of it in a tuple, or `None` while it is under way: look again when the descriptor
    /// is readable.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<Py<PyTuple>>> {
        let outcome = py.detach(|| -> PyResult<Option<Outcome>> {
            if self.bell.rung.load(Ordering::Acquire) {
                (&self.reader).read_exact(&mut [0]).map_err(PyOSError::new_err)?;
                self.bell.rung.store(false, Ordering::Release);
            }
            let mut work = self.work.lock();
            let over = || PyRuntimeError::new_err("it was awaited already");
            let future = work.as_mut().ok_or_else(over)?;
            let waker = Waker::from(self.bell.clone());
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Pending => Ok(None),
                Poll::Ready(outcome) => {
                    *work = None;
                    Ok(Some(outcome))
                }
            }
        })?;
        let Some(outcome) = outcome else { return Ok(None) };
        Ok(Some(PyTuple::new(py, [outcome(py)?])?.unbind()))
    }

    /// The descriptor. It belongs to this.
    fn fileno(&self) -> i32 {
        self.reader.as_raw_fd()
    }

    fn __await__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        let drive = slf.py().import("kvferry._asyncio")?.getattr("complete")?;
        drive.call1((slf,))?.call_method0("__await__")
    }
}
