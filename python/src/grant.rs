//! Permissions, given and got.

use std::sync::Arc;

use kvferry_engine::{Grant, GrantId, Incarnation, RemoteGrant};
use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::raise;

#[pyclass(frozen, name = "Grant", module = "kvferry")]
pub(crate) struct PyGrant {
    /// `None` once it was revoked.
    grant: Mutex<Option<Grant>>,
    id: u64,
    ticket: Vec<u8>,
}

impl PyGrant {
    pub(crate) fn new(grant: Grant, ticket: Vec<u8>) -> Self {
        Self { id: grant.id().0, ticket, grant: Mutex::new(Some(grant)) }
    }
}

#[pymethods]
impl PyGrant {
    #[getter]
    fn id(&self) -> u64 {
        self.id
    }

    #[getter]
    fn ticket(&self, py: Python<'_>) -> Py<PyBytes> {
        PyBytes::new(py, &self.ticket).unbind()
    }

    #[getter]
    fn remaining(&self) -> PyResult<f64> {
        let revoked = || PyRuntimeError::new_err("the grant was revoked");
        Ok(self.grant.lock().as_ref().ok_or_else(revoked)?.remaining().as_secs_f64())
    }

    fn revoke(&self, py: Python<'_>) {
        let grant = self.grant.lock().take();
        py.detach(|| grant.map(Grant::revoke));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.revoke(py);
    }
}

#[pyclass(frozen, name = "RemoteGrant", module = "kvferry")]
pub(crate) struct PyRemoteGrant(pub(crate) Arc<RemoteGrant>);

#[pymethods]
impl PyRemoteGrant {
    #[new]
    fn new(py: Python<'_>, ticket: &[u8]) -> PyResult<Self> {
        let grant = RemoteGrant::from_ticket(ticket).map_err(|error| raise(py, &error))?;
        Ok(Self(Arc::new(grant)))
    }

    #[staticmethod]
    fn named(owner: u64, id: u64, access: &str) -> PyResult<Self> {
        let access = crate::registry::access(access)?;
        Ok(Self(Arc::new(RemoteGrant::named(Incarnation(owner), GrantId(id), access))))
    }

    #[getter]
    fn id(&self) -> u64 {
        self.0.id().0
    }

    #[getter]
    fn owner(&self) -> u64 {
        self.0.owner().0
    }

    #[getter]
    fn remaining(&self) -> f64 {
        self.0.remaining().as_secs_f64()
    }
}
