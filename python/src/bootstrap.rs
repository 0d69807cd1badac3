//! The bootstrap server, registering with one, and asking one.

use kvferry_engine::Incarnation;
use kvferry_engine::bootstrap::{
    Bootstrap, Client, ClientError, Held, Rank, Registration, Sizes, WorkerAddress,
};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::{raise, raise_client};
use crate::wait::{by_turns, seconds};

#[pyclass(frozen, name = "BootstrapServer", module = "kvferry")]
pub(crate) struct PyBootstrapServer {
    /// `None` once it was shut down.
    server: Mutex<Option<Bootstrap>>,
    address: String,
    port: u16,
}

#[pymethods]
impl PyBootstrapServer {
    #[new]
    fn new(py: Python<'_>, listen: &str) -> PyResult<Self> {
        let builder = Bootstrap::builder().listen(listen);
        let server = py.detach(|| builder.start_blocking()).map_err(|error| raise(py, &error))?;
        let (address, port) = (server.address().to_string(), server.address().port());
        Ok(Self { server: Mutex::new(Some(server)), address, port })
    }

    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    #[getter]
    fn port(&self) -> u16 {
        self.port
    }

    fn shutdown(&self, py: Python<'_>) {
        py.detach(|| drop(self.server.lock().take()));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.shutdown(py);
    }

    fn __repr__(&self) -> String {
        format!("<kvferry.BootstrapServer {}>", self.address)
    }
}

#[pyclass(frozen, name = "Registration", module = "kvferry")]
pub(crate) struct PyRegistration(Mutex<Option<Held>>);

#[pymethods]
impl PyRegistration {
    #[new]
    #[pyo3(signature = (server, *, engine_id, rank, address, incarnation, lease, sizes=(None, None, None)))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        py: Python<'_>,
        server: &str,
        engine_id: &str,
        rank: (u32, u32, u32),
        address: &str,
        incarnation: u64,
        lease: f64,
        sizes: (Option<u32>, Option<u32>, Option<u32>),
    ) -> PyResult<Self> {
        let (dp, tp, pp) = rank;
        let address: WorkerAddress = address.parse().map_err(|error| raise(py, &error))?;
        let size = |ranks: Option<u32>| {
            let none = || PyValueError::new_err("0 is no number of ranks: leave it out");
            ranks.map(|ranks| ranks.try_into().map_err(|_| none())).transpose()
        };
        let registration = Registration {
            incarnation: Some(Incarnation(incarnation)),
            sizes: Sizes { dp: size(sizes.0)?, tp: size(sizes.1)?, pp: size(sizes.2)? },
            lease: Some(seconds(lease)?),
            ..Registration::new(engine_id, Rank { dp, tp, pp }, address)
        };
        let client = Client::new(server).map_err(|error| raise(py, &error))?;
        let held = client.hold(registration).map_err(|error| raise_client(py, &error))?;
        Ok(Self(Mutex::new(Some(held))))
    }

    /// Blocks until it is registered, or refused.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let timeout = seconds(timeout)?;
        let mut last = None;
        // Locked for a turn at a time, so that it can be released meanwhile.
        let ended = by_turns(py, Some(timeout), |patience| {
            let held = self.0.lock();
            let Some(held) = held.as_ref() else { return Some(None) };
            match held.wait(patience) {
                Err(ClientError::Slow { .. }) => None,
                Err(error) if error.is_retryable() => {
                    last = Some(error);
                    None
                }
                outcome => Some(Some(outcome)),
            }
        })?;
        let outcome = match ended {
            Some(Some(outcome)) => outcome,
            Some(None) => return Err(PyValueError::new_err("the registration was released")),
            None => Err(last.unwrap_or(ClientError::Slow { limit: timeout })),
        };
        outcome.map_err(|error| raise_client(py, &error))
    }

    fn release(&self, py: Python<'_>) {
        py.detach(|| drop(self.0.lock().take()));
    }
}

/// What `GET /query` of a bootstrap server answers, as JSON.
#[pyfunction]
#[pyo3(signature = (server, timeout=30.0))]
pub(crate) fn bootstrap_query(py: Python<'_>, server: &str, timeout: f64) -> PyResult<String> {
    let client = Client::new(server).map_err(|error| raise(py, &error))?;
    let client = client.patience(seconds(timeout)?);
    let listing =
        py.detach(|| client.query_blocking()).map_err(|error| raise_client(py, &error))?;
    Ok(String::from_utf8_lossy(&listing.to_json()).into_owned())
}
