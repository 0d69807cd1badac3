//! Engines, what comes to them, and their end.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kvferry_engine::{Engine, EngineBuilder, Error, Incarnation, Notification, Peer, Rdma, Tasks};
use parking_lot::Mutex;
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::error::raise;
use crate::grant::PyGrant;
use crate::metrics;
use crate::peer::{PyPeer, make_ready};
use crate::pending::Pending;
use crate::registry::{PyRegistry, access, shared};
use crate::sides;
use crate::store;
use crate::wait::{by_turns, optional_seconds, seconds};

/// How long a shutdown waits for transfers to be fenced, unless its caller says otherwise.
const DRAIN_S: f64 = 0.5;

/// All engines of this process, for its end.
static ENGINES: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// An engine that can be shut down while others wait on it.
struct Shared {
    /// `None` once it was shut down.
    engine: Mutex<Option<Arc<Engine>>>,
}

impl Shared {
    fn shut_down(&self, patience: Duration) {
        let engine = self.engine.lock().take();
        if let Some(engine) = engine {
            engine.shutdown(patience);
        }
    }
}

/// Ends every store and every engine: nothing touches memory of the interpreter any more when it goes.
#[pyfunction]
pub(crate) fn shut_down_all(py: Python<'_>) {
    py.detach(|| {
        store::leave_all();
        let engines = std::mem::take(&mut *ENGINES.lock());
        std::thread::scope(|scope| {
            for engine in engines.iter().filter_map(Weak::upgrade) {
                scope.spawn(move || engine.shut_down(Duration::from_secs_f64(DRAIN_S)));
            }
        });
    });
}

/// Writes what the engine logs to standard error, as far as the filter says (`info`,
/// `kvferry_engine=debug`). False when somebody has set a log up before.
#[pyfunction]
pub(crate) fn log_to_stderr(filter: &str) -> PyResult<bool> {
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .map_err(|error| PyValueError::new_err(format!("{filter:?} is no filter: {error}")))?;
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    Ok(subscriber.try_init().is_ok())
}

#[pyclass(frozen, name = "Engine", module = "kvferry")]
pub(crate) struct PyEngine(Arc<Shared>);

impl Drop for PyEngine {
    /// An engine's end takes a while, in which other threads run.
    fn drop(&mut self) {
        if self.0.engine.lock().is_some() {
            Python::attach(|py| py.detach(|| drop(self.0.engine.lock().take())));
        }
    }
}

impl PyEngine {
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<Arc<Engine>> {
        self.0.engine.lock().clone().ok_or_else(|| raise(py, &Error::Shutdown))
    }

    pub(crate) fn peer_at(&self, py: Python<'_>, address: &str) -> PyResult<Peer> {
        self.get(py)?.peer(address).map_err(|error| raise(py, &error))
    }

    pub(crate) fn tasks(&self, py: Python<'_>) -> PyResult<Tasks> {
        Ok(self.get(py)?.tasks().clone())
    }
}

/// The setting by its name in Python.
fn set(builder: EngineBuilder, name: &str, value: &Bound<'_, PyAny>) -> PyResult<EngineBuilder> {
    Ok(match name {
        "listen" => builder.listen(value.extract::<String>()?),
        "lane_listen" => builder.lane_listen(value.extract::<String>()?),
        "advertise" => builder.advertise(value.extract::<String>()?),
        "lane_advertise" => builder.lane_advertise(value.extract::<String>()?),
        "run_directory" => builder.run_directory(value.extract::<std::path::PathBuf>()?),
        "transport" => {
            let transports = value.extract::<String>()?.parse();
            builder.transports(transports.map_err(|error| raise(value.py(), &error))?)
        }
        "rdma_devices" => {
            let named = Rdma::default().devices(&value.extract::<String>()?);
            builder.rdma(named.map_err(|error| raise(value.py(), &error.into()))?)
        }
        "io_threads" => builder.io_threads(value.extract()?),
        "bulk_lanes" => builder.bulk_lanes(value.extract()?),
        "small_bytes" => builder.small_bytes(value.extract()?),
        "slice_bytes" => builder.slice_bytes(value.extract()?),
        "open_transfers" => builder.open_transfers(value.extract()?),
        "notifications" => builder.notifications(value.extract()?),
        "spin" => builder.spin(seconds(value.extract()?)?),
        "connect_timeout" => builder.connect_timeout(seconds(value.extract()?)?),
        "idle_after" => builder.idle_after(seconds(value.extract()?)?),
        "liveness" => {
            let (ping, dead): (f64, f64) = value.extract()?;
            builder.liveness(seconds(ping)?, seconds(dead)?)
        }
        unknown => {
            return Err(PyValueError::new_err(format!(
                "an engine has no setting {unknown:?}: `kvferry/_native.pyi` lists them"
            )));
        }
    })
}

#[pymethods]
impl PyEngine {
    #[new]
    #[pyo3(signature = (registry=None, **settings))]
    fn new(
        py: Python<'_>,
        registry: Option<&Bound<'_, PyRegistry>>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let registry = registry.map_or_else(|| shared().clone(), |given| given.get().0.clone());
        let mut builder = Engine::builder(registry);
        for (name, value) in settings.into_iter().flatten() {
            if !value.is_none() {
                builder = set(builder, &name.extract::<String>()?, &value)?;
            }
        }
        let engine = py.detach(|| builder.start_blocking()).map_err(|error| raise(py, &error))?;
        let shared = Arc::new(Shared { engine: Mutex::new(Some(Arc::new(engine))) });
        let mut engines = ENGINES.lock();
        engines.retain(|one| one.strong_count() > 0);
        engines.push(Arc::downgrade(&shared));
        Ok(Self(shared))
    }

    #[getter]
    fn incarnation(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.get(py)?.incarnation().0)
    }

    #[getter]
    fn address(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.get(py)?.address().to_string())
    }

    #[getter]
    fn port(&self, py: Python<'_>) -> PyResult<u16> {
        Ok(self.get(py)?.address().port())
    }

    #[getter]
    fn registry(&self, py: Python<'_>) -> PyResult<PyRegistry> {
        Ok(PyRegistry(self.get(py)?.registry().clone()))
    }

    /// The peer at an address, without connecting to it.
    fn peer(&self, py: Python<'_>, address: &str) -> PyResult<PyPeer> {
        self.peer_at(py, address).map(PyPeer)
    }

    #[pyo3(signature = (address, timeout=None))]
    fn connect(&self, py: Python<'_>, address: &str, timeout: Option<f64>) -> PyResult<PyPeer> {
        let peer = self.peer_at(py, address)?;
        make_ready(py, &peer, timeout)?;
        Ok(PyPeer(peer))
    }

    fn connect_async(&self, py: Python<'_>, address: &str) -> PyResult<Pending> {
        let peer = self.peer_at(py, address)?;
        let connected = async move { peer.ready().await.map(|()| peer) };
        Pending::new(connected, |py, connected| match connected {
            Ok(peer) => Ok(Py::new(py, PyPeer(peer))?.into_any()),
            Err(error) => Err(raise(py, &error)),
        })
    }

    #[pyo3(signature = (spans, peer, access, ttl))]
    fn grant(
        &self,
        py: Python<'_>,
        spans: &Bound<'_, PyAny>,
        peer: u64,
        access: &str,
        ttl: f64,
    ) -> PyResult<PyGrant> {
        let engine = self.get(py)?;
        let access = self::access(access)?;
        let grant = engine
            .grant(
                sides::spans(spans, engine.registry())?,
                Incarnation(peer),
                access,
                seconds(ttl)?,
            )
            .map_err(|error| raise(py, &error))?;
        let ticket = engine.ticket(&grant);
        Ok(PyGrant::new(grant, ticket))
    }

    fn try_notification(&self, py: Python<'_>) -> PyResult<Option<PyNotification>> {
        Ok(self.get(py)?.try_notification().map(PyNotification))
    }

    #[pyo3(signature = (timeout=None))]
    fn next_notification(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<PyNotification> {
        let engine = self.get(py)?;
        let came = by_turns(py, optional_seconds(timeout)?, |patience| {
            let came = engine.wait_notification(patience).map(Ok);
            // Nothing comes any more where another thread has shut the engine down.
            came.or_else(|| self.0.engine.lock().is_none().then_some(Err(Error::Shutdown)))
        })?;
        match came {
            Some(Ok(notification)) => Ok(PyNotification(notification)),
            Some(Err(error)) => Err(raise(py, &error)),
            None => Err(PyTimeoutError::new_err("no notification came")),
        }
    }

    fn next_notification_async(&self, py: Python<'_>) -> PyResult<Pending> {
        let engine = self.get(py)?;
        let next = async move { engine.next_notification().await };
        Pending::new(next, |py, came| Ok(Py::new(py, PyNotification(came))?.into_any()))
    }

    fn status(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        let status = self.get(py)?.status();
        let fields = PyDict::new(py);
        fields.set_item("peers", status.peers)?;
        fields.set_item("open_transfers", status.open_transfers)?;
        fields.set_item("lanes_opened", status.lanes_opened)?;
        fields.set_item("lanes_accepted", status.lanes_accepted)?;
        fields.set_item("refused_requests", status.refused_requests)?;
        Ok(fields.unbind())
    }

    /// Of each series its value: by the family's name and the values of its labels.
    fn metrics(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        metrics::by_series(py, &self.get(py)?.metrics())
    }

    #[pyo3(signature = (direction, transport=None, done=None))]
    fn count(
        &self,
        py: Python<'_>,
        direction: &str,
        transport: Option<&str>,
        done: Option<u64>,
    ) -> PyResult<()> {
        let (direction, transport) =
            (metrics::direction(direction)?, metrics::transport(transport)?);
        self.get(py)?.count(direction, transport, done);
        Ok(())
    }

    fn fallbacks(&self, py: Python<'_>) -> PyResult<BTreeMap<String, String>> {
        let fallbacks = self.get(py)?.fallbacks().into_iter();
        Ok(fallbacks.map(|(peer, why)| (peer.to_string(), why.to_string())).collect())
    }

    #[pyo3(signature = (patience=DRAIN_S), text_signature = "($self, patience=0.5)")]
    fn shutdown(&self, py: Python<'_>, patience: f64) -> PyResult<()> {
        let patience = seconds(patience)?;
        py.detach(|| self.0.shut_down(patience));
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.shutdown(py, DRAIN_S)
    }

    fn __repr__(&self) -> String {
        match &*self.0.engine.lock() {
            Some(engine) => format!("<kvferry.Engine {}>", engine.address()),
            None => "<kvferry.Engine, shut down>".to_owned(),
        }
    }
}

#[pyclass(frozen, name = "Notification", module = "kvferry")]
pub(crate) struct PyNotification(Notification);

#[pymethods]
impl PyNotification {
    #[getter]
    fn sender(&self) -> u64 {
        self.0.from.0
    }

    #[getter]
    fn transfer(&self) -> u64 {
        self.0.transfer.0
    }

    #[getter]
    fn message(&self, py: Python<'_>) -> Py<PyBytes> {
        PyBytes::new(py, &self.0.bytes).unbind()
    }
}
