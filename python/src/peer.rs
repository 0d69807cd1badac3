//! Remote engines, and what they share.

use kvferry_engine::metrics::Direction;
use kvferry_engine::{Peer, RemoteRegion, RemoteSpan, Request};
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{raise, raise_transfer};
use crate::grant::PyRemoteGrant;
use crate::layout::PyRemoteLayout;
use crate::pending::Pending;
use crate::sides;
use crate::transfer::PyTransfer;
use crate::wait::{block_on, optional_seconds};

#[pyclass(frozen, name = "Peer", module = "kvferry")]
pub(crate) struct PyPeer(pub(crate) Peer);

/// What every transfer can be told.
struct Options<'a> {
    notify: Option<&'a [u8]>,
    deadline: Option<f64>,
    checksum: bool,
}

fn submit(
    py: Python<'_>,
    request: Request,
    options: &Options<'_>,
    refused: impl FnOnce() + Send,
) -> PyResult<PyTransfer> {
    let mut request = request.checksum(options.checksum);
    if let Some(bytes) = options.notify {
        request = request.notify(bytes);
    }
    if let Some(deadline) = optional_seconds(options.deadline)? {
        request = request.deadline(deadline);
    }
    let submitted = py.detach(|| request.submit().inspect_err(|_| refused()));
    submitted.map(PyTransfer::new).map_err(|error| raise_transfer(py, &error))
}

/// Blocks until a peer is connected.
pub(crate) fn make_ready(py: Python<'_>, peer: &Peer, timeout: Option<f64>) -> PyResult<()> {
    match block_on(py, optional_seconds(timeout)?, peer.ready())? {
        Some(ready) => ready.map_err(|error| raise(py, &error)),
        None => Err(PyTimeoutError::new_err(format!("{} did not answer in time", peer.endpoint()))),
    }
}

#[pymethods]
impl PyPeer {
    #[getter]
    fn address(&self) -> String {
        self.0.endpoint().to_string()
    }

    #[getter]
    fn incarnation(&self) -> Option<u64> {
        self.0.incarnation().map(|incarnation| incarnation.0)
    }

    #[pyo3(signature = (timeout=None))]
    fn ready(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        make_ready(py, &self.0, timeout)
    }

    fn ready_async(&self) -> PyResult<Pending> {
        let peer = self.0.clone();
        let ready = async move { peer.ready().await };
        Pending::new(ready, |py, ready| match ready {
            Ok(()) => Ok(py.None()),
            Err(error) => Err(raise(py, &error)),
        })
    }

    fn layout(&self, py: Python<'_>, name: &str) -> PyResult<PyRemoteLayout> {
        self.0.layout(name).map(PyRemoteLayout).map_err(|error| raise(py, &error))
    }

    fn layout_names(&self) -> Vec<String> {
        self.0.layout_names()
    }

    fn regions(&self) -> Vec<PyRemoteRegion> {
        self.0.regions().into_iter().map(PyRemoteRegion).collect()
    }

    fn find(&self, py: Python<'_>, address: u64, length: u64) -> PyResult<PyRemoteRegion> {
        self.0.find(address, length).map(PyRemoteRegion).map_err(|error| raise(py, &error))
    }

    #[pyo3(signature = (local, remote, *, notify=None, deadline=None, checksum=false, grant=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn write(
        &self,
        py: Python<'_>,
        local: &Bound<'_, PyAny>,
        remote: &Bound<'_, PyAny>,
        notify: Option<&[u8]>,
        deadline: Option<f64>,
        checksum: bool,
        grant: Option<&Bound<'_, PyRemoteGrant>>,
    ) -> PyResult<PyTransfer> {
        let remote = sides::remote(remote, grant.map(|grant| &grant.get().0))?;
        let request = self.0.write(sides::local(local)?, remote);
        submit(py, request, &Options { notify, deadline, checksum }, || {
            self.0.count_unbegun(Direction::Sent);
        })
    }

    #[pyo3(signature = (remote, local, *, notify=None, deadline=None, checksum=false, grant=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn read(
        &self,
        py: Python<'_>,
        remote: &Bound<'_, PyAny>,
        local: &Bound<'_, PyAny>,
        notify: Option<&[u8]>,
        deadline: Option<f64>,
        checksum: bool,
        grant: Option<&Bound<'_, PyRemoteGrant>>,
    ) -> PyResult<PyTransfer> {
        let remote = sides::remote(remote, grant.map(|grant| &grant.get().0))?;
        let request = self.0.read(remote, sides::local(local)?);
        submit(py, request, &Options { notify, deadline, checksum }, || {
            self.0.count_unbegun(Direction::Received);
        })
    }

    #[pyo3(signature = (message, *, deadline=None))]
    fn notify(
        &self,
        py: Python<'_>,
        message: &[u8],
        deadline: Option<f64>,
    ) -> PyResult<PyTransfer> {
        let options = Options { notify: None, deadline, checksum: false };
        submit(py, self.0.notify(message), &options, || {})
    }

    #[getter]
    fn not_local(&self) -> Option<String> {
        self.0.not_local().map(|why| why.to_string())
    }

    #[getter]
    fn not_rdma(&self) -> Option<String> {
        self.0.not_rdma().map(|why| why.to_string())
    }

    fn status(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        let status = self.0.status();
        let fields = PyDict::new(py);
        fields.set_item("incarnation", status.incarnation.map(|incarnation| incarnation.0))?;
        fields.set_item("transport", status.transport.map(|transport| transport.name()))?;
        fields.set_item("open_transfers", status.open_transfers)?;
        fields.set_item("open_lanes", status.open_lanes)?;
        fields.set_item("stale_answers", status.stale_answers)?;
        Ok(fields.unbind())
    }

    fn __repr__(&self) -> String {
        format!("<kvferry.Peer {}>", self.0.endpoint())
    }
}

#[pyclass(frozen, name = "RemoteRegion", module = "kvferry")]
pub(crate) struct PyRemoteRegion(pub(crate) RemoteRegion);

#[pymethods]
impl PyRemoteRegion {
    #[getter]
    fn id(&self) -> String {
        self.0.id().to_string()
    }

    /// Its place in its owner's table: the lower, the longer it has been there, places that became
    /// free and were taken again apart.
    #[getter]
    fn slot(&self) -> u32 {
        self.0.id().slot
    }

    #[getter]
    fn address(&self) -> u64 {
        self.0.base()
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.0.length())?)
    }

    fn span(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<PyRemoteSpan> {
        self.0.span(offset, length).map(PyRemoteSpan).map_err(|error| raise(py, &error))
    }

    fn whole(&self) -> PyRemoteSpan {
        PyRemoteSpan(self.0.whole())
    }
}

#[pyclass(frozen, name = "RemoteSpan", module = "kvferry")]
pub(crate) struct PyRemoteSpan(pub(crate) RemoteSpan);

#[pymethods]
impl PyRemoteSpan {
    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.0.length())?)
    }

    fn part(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<Self> {
        self.0.part(offset, length).map(Self).map_err(|error| raise(py, &error))
    }
}
