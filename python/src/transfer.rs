//! Transfers under way, and what they did.

use std::sync::Arc;

use kvferry_engine::{Ended, Report, Transfer};
use parking_lot::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;

use crate::error::raise_transfer;
use crate::pending::Pending;
use crate::wait::{by_turns, optional_seconds};

#[pyclass(frozen, name = "Transfer", module = "kvferry")]
pub(crate) struct PyTransfer {
    /// Shared with tasks that await it; `None` once it was let go on by itself.
    transfer: Mutex<Option<Arc<Transfer>>>,
    id: u64,
}

impl PyTransfer {
    pub(crate) fn new(transfer: Transfer) -> Self {
        let id = transfer.id().0;
        Self { transfer: Mutex::new(Some(Arc::new(transfer))), id }
    }

    fn get(&self) -> PyResult<Arc<Transfer>> {
        let detached = || PyRuntimeError::new_err("the transfer was detached");
        self.transfer.lock().clone().ok_or_else(detached)
    }
}

async fn end_of(transfer: Arc<Transfer>) -> Ended {
    (&*transfer).await
}

fn report(py: Python<'_>, ended: Ended) -> PyResult<PyReport> {
    ended.map(PyReport).map_err(|error| raise_transfer(py, &error))
}

#[pymethods]
impl PyTransfer {
    #[getter]
    fn id(&self) -> u64 {
        self.id
    }

    fn poll(&self, py: Python<'_>) -> PyResult<Option<PyReport>> {
        self.get()?.poll().map(|ended| report(py, ended)).transpose()
    }

    #[getter]
    fn done(&self) -> PyResult<bool> {
        Ok(self.get()?.poll().is_some())
    }

    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<PyReport> {
        let transfer = self.get()?;
        match by_turns(py, optional_seconds(timeout)?, |patience| transfer.wait_for(patience))? {
            Some(ended) => report(py, ended),
            None => Err(PyTimeoutError::new_err("the transfer has not ended yet: it goes on")),
        }
    }

    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let transfer = self.get()?;
        py.detach(|| transfer.cancel());
        Ok(())
    }

    fn detach(&self) -> PyResult<()> {
        let mut held = self.transfer.lock();
        let Some(transfer) = held.take() else { return Ok(()) };
        match Arc::try_unwrap(transfer) {
            Ok(transfer) => {
                transfer.detach();
                Ok(())
            }
            Err(shared) => {
                *held = Some(shared);
                Err(PyRuntimeError::new_err(
                    "the transfer is being waited for: it cannot be detached",
                ))
            }
        }
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let pending = Pending::new(end_of(slf.get().get()?), |py, ended| {
            Ok(Py::new(py, report(py, ended)?)?.into_any())
        })?;
        Bound::new(slf.py(), pending)?.into_any().call_method0("__await__")
    }
}

#[pyclass(frozen, name = "Report", module = "kvferry")]
pub(crate) struct PyReport(Report);

impl PyReport {
    pub(crate) fn new(report: Report) -> Self {
        Self(report)
    }
}

#[pymethods]
impl PyReport {
    #[getter]
    fn transfer(&self) -> u64 {
        self.0.transfer.0
    }

    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes
    }

    #[getter]
    fn pairs(&self) -> u64 {
        self.0.pairs
    }

    #[getter]
    fn descriptors(&self) -> u64 {
        self.0.descriptors
    }

    #[getter]
    fn slices(&self) -> u64 {
        self.0.slices
    }

    #[getter]
    fn repeated_slices(&self) -> u32 {
        self.0.repeated_slices
    }

    #[getter]
    fn transport(&self) -> &'static str {
        self.0.transport
    }

    #[getter]
    fn elapsed(&self) -> f64 {
        self.0.elapsed.as_secs_f64()
    }

    fn __repr__(&self) -> String {
        let Report { bytes, slices, transport, elapsed, .. } = self.0;
        format!("<kvferry.Report {bytes} bytes in {slices} slices by {transport}, {elapsed:?}>")
    }
}
