//! The registry and its regions.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::time::Duration;

use kvferry_engine::{Access, Error, Layout, Location, Memory, Region, Registry, Span};
use parking_lot::Mutex;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::raise;
use crate::foreign::{Owner, duplicate, memory_at, memory_of};
use crate::layout::PyLayout;
use crate::lookup::{self, with_region};
use crate::wait::seconds;

/// How long an unregistering waits for transfers, unless its caller says otherwise.
const PATIENCE_S: f64 = 1.0;

/// What a program calls an access.
pub(crate) fn access(name: &str) -> PyResult<Access> {
    match name {
        "read" => Ok(Access::Read),
        "write" => Ok(Access::Write),
        "read_write" => Ok(Access::ReadWrite),
        other => Err(PyValueError::new_err(format!(
            "{other:?} is no access: \"read\", \"write\" or \"read_write\""
        ))),
    }
}

/// The registry of this process, made on first use.
pub(crate) fn shared() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(Registry::new)
}

/// The registry of this process: what engines serve that were not given another.
#[pyfunction]
pub(crate) fn process_registry() -> PyRegistry {
    PyRegistry(shared().clone())
}

#[pyclass(frozen, name = "Registry", module = "kvferry")]
pub(crate) struct PyRegistry(pub(crate) Registry);

#[pymethods]
impl PyRegistry {
    #[new]
    fn new() -> Self {
        Self(Registry::new())
    }

    fn allocate(&self, py: Python<'_>, length: u64) -> PyResult<PyRegion> {
        let region = py.detach(|| self.0.allocate(length)).map_err(|error| raise(py, &error))?;
        let memory = region.memory().map_err(|error| raise(py, &error))?;
        Ok(PyRegion::new(self.0.clone(), region, None, Some(memory)))
    }

    #[pyo3(signature = (memory, *, access="read_write"))]
    fn register(&self, memory: &Bound<'_, PyAny>, access: &str) -> PyResult<PyRegion> {
        let (given, owner) = memory_of(memory)?;
        self.register_memory(memory.py(), Some(owner), given, access)
    }

    #[pyo3(signature = (address, length, *, owner=None, access="read_write"))]
    fn register_address(
        &self,
        py: Python<'_>,
        address: u64,
        length: u64,
        owner: Option<Py<PyAny>>,
        access: &str,
    ) -> PyResult<PyRegion> {
        let memory = memory_at(py, address, length)?;
        self.register_memory(py, owner.map(Owner::Object), memory, access)
    }

    #[pyo3(signature = (fd, address, length, *, offset=0, access="read_write"))]
    fn register_dmabuf(
        &self,
        py: Python<'_>,
        fd: i32,
        address: u64,
        length: u64,
        offset: u64,
        access: &str,
    ) -> PyResult<PyRegion> {
        let memory = Memory::dma_buf(duplicate(fd)?, offset, address, length);
        let memory = memory.map_err(|error| raise(py, &error.into()))?;
        self.register_memory(py, None, memory, access)
    }

    /// Copies bytes out of whichever region covers them.
    fn read_at(&self, py: Python<'_>, address: u64, length: u64) -> PyResult<Py<PyBytes>> {
        let bytes = py.detach(|| {
            with_region(&self.0, address, length, |region| {
                // It is registered, so it is in memory and fits its addresses.
                let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
                region.read_at(address - region.base(), &mut bytes).map(|()| bytes)
            })
        });
        let bytes = bytes.map_err(|error| raise(py, &error))?;
        Ok(PyBytes::new(py, &bytes).unbind())
    }

    /// Copies bytes into whichever region covers the place.
    fn write_at(&self, py: Python<'_>, address: u64, bytes: &[u8]) -> PyResult<()> {
        let written = py.detach(|| {
            with_region(&self.0, address, bytes.len() as u64, |region| {
                region.write_at(address - region.base(), bytes)
            })
        });
        written.map_err(|error| raise(py, &error))
    }

    fn withdraw(&self, name: &str) -> bool {
        self.0.withdraw(name)
    }

    #[getter]
    fn region_count(&self) -> u64 {
        self.0.region_count()
    }

    #[getter]
    fn grant_count(&self) -> usize {
        self.0.grant_count()
    }
}

impl PyRegistry {
    fn register_memory(
        &self,
        py: Python<'_>,
        owner: Option<Owner>,
        memory: Memory,
        wanted: &str,
    ) -> PyResult<PyRegion> {
        let wanted = access(wanted)?;
        let region = self.0.register(memory, wanted).map_err(|error| raise(py, &error))?;
        Ok(PyRegion::new(self.0.clone(), region, owner, None))
    }
}

#[pyclass(frozen, name = "Region", module = "kvferry")]
pub(crate) struct PyRegion {
    registry: Registry,
    /// `None` once it was unregistered.
    region: Mutex<Option<Region>>,
    owner: Mutex<Option<Owner>>,
    /// Memory of ours, which stays mapped for views that are still there.
    memory: Option<Memory>,
    id: String,
    base: u64,
    length: u64,
}

impl PyRegion {
    fn new(
        registry: Registry,
        region: Region,
        owner: Option<Owner>,
        memory: Option<Memory>,
    ) -> Self {
        Self {
            registry,
            id: region.id().to_string(),
            base: region.base(),
            length: region.length(),
            region: Mutex::new(Some(region)),
            owner: Mutex::new(owner),
            memory,
        }
    }

    /// Gives its reference back; the ids of transfers that were cut.
    fn give_back(&self, py: Python<'_>, patience: Duration) -> Vec<u64> {
        let (released, owners) = py.detach(|| {
            let Some(region) = self.region.lock().take() else { return (None, Vec::new()) };
            let owner = self.owner.lock().take();
            let (released, owners) = lookup::unregister(&self.registry, region, owner, patience);
            (Some(released), owners)
        });
        drop(owners);
        let cut = released.map(|released| released.cut).unwrap_or_default();
        cut.into_iter().map(|transfer| transfer.0).collect()
    }

    fn with<T>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Region) -> Result<T, Error> + Send,
    ) -> PyResult<T>
    where
        T: Send,
    {
        let done = py.detach(|| self.region.lock().as_ref().map(call));
        match done {
            Some(done) => done.map_err(|error| raise(py, &error)),
            None => Err(PyValueError::new_err(format!("region {} was unregistered", self.id))),
        }
    }
}

impl Drop for PyRegion {
    /// Cuts what uses it: whoever wants to wait for that unregisters it.
    fn drop(&mut self) {
        if self.region.get_mut().is_some() {
            Python::attach(|py| self.give_back(py, Duration::ZERO));
        }
    }
}

#[pymethods]
impl PyRegion {
    #[getter]
    fn id(&self) -> &str {
        &self.id
    }

    #[getter]
    fn address(&self) -> u64 {
        self.base
    }

    #[getter]
    fn page_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |region| Ok(region.page_bytes()))
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.length)?)
    }

    fn read(&self, py: Python<'_>, offset: u64, length: usize) -> PyResult<Py<PyBytes>> {
        let fits = offset.checked_add(length as u64).is_some_and(|end| end <= self.length);
        if !fits {
            return Err(PyValueError::new_err(format!(
                "{length} bytes at offset {offset} reach outside a region of {} bytes",
                self.length
            )));
        }
        let mut bytes = vec![0; length];
        self.with(py, |region| region.read_at(offset, &mut bytes))?;
        Ok(PyBytes::new(py, &bytes).unbind())
    }

    fn write(&self, py: Python<'_>, offset: u64, bytes: &[u8]) -> PyResult<()> {
        self.with(py, |region| region.write_at(offset, bytes))
    }

    fn share(&self, py: Python<'_>, access: &str) -> PyResult<()> {
        let wanted = crate::registry::access(access)?;
        self.with(py, |region| region.share(wanted).map(drop))
    }

    fn span(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<PySpan> {
        self.with(py, |region| region.span(offset, length)).map(PySpan)
    }

    fn whole(&self, py: Python<'_>) -> PyResult<PySpan> {
        self.with(py, |region| Ok(region.whole())).map(PySpan)
    }

    #[pyo3(signature = (block_bytes, count=None, *, stride=None, offset=0))]
    fn layout(
        &self,
        py: Python<'_>,
        block_bytes: u64,
        count: Option<u64>,
        stride: Option<u64>,
        offset: u64,
    ) -> PyResult<PyLayout> {
        let stride = stride.unwrap_or(block_bytes);
        // As many as there is room for.
        let room = self.length.saturating_sub(offset);
        let fitting = || match room.checked_sub(block_bytes) {
            Some(rest) => rest.checked_div(stride).map_or(1, |more| more + 1),
            None => 0,
        };
        let count = count.unwrap_or_else(fitting);
        let layout = Layout { offset, block_bytes, stride, count };
        self.with(py, |region| region.layout(layout)).map(PyLayout)
    }

    #[pyo3(signature = (patience=PATIENCE_S), text_signature = "($self, patience=1.0)")]
    fn unregister(&self, py: Python<'_>, patience: f64) -> PyResult<Vec<u64>> {
        Ok(self.give_back(py, seconds(patience)?))
    }

    #[getter]
    fn registered(&self) -> bool {
        self.region.lock().is_some()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.unregister(py, PATIENCE_S).map(drop)
    }

    /// A view for `memoryview` and `numpy.frombuffer`.
    #[allow(unsafe_code)]
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let region = slf.get();
        let memory = region.memory.as_ref().filter(|memory| memory.location() != Location::File);
        if memory.is_none() {
            return Err(PyBufferError::new_err(
                "the region is of memory that has an owner: look at it there",
            ));
        }
        let base = std::ptr::with_exposed_provenance_mut(usize::try_from(region.base)?);
        let length = isize::try_from(region.length)?;
        // SAFETY: `view` is what the interpreter gave. The memory is mapped, readable and writable, for
        // as long as this object lives, since it holds the memory; the view holds this object. Peers
        // may write it at any time they were granted that, as with any shared memory.
        let failed = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), base, length, 0, flags) };
        if failed != 0 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }

    fn __repr__(&self) -> String {
        format!("<kvferry.Region {} at {:#x}, {} bytes>", self.id, self.base, self.length)
    }
}

#[pyclass(frozen, name = "Span", module = "kvferry")]
pub(crate) struct PySpan(pub(crate) Span);

#[pymethods]
impl PySpan {
    #[getter]
    fn offset(&self) -> u64 {
        self.0.offset()
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.0.length())?)
    }

    fn part(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<Self> {
        self.0.part(offset, length).map(Self).map_err(|error| raise(py, &error))
    }
}
