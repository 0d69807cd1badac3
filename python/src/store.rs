//! A process's part in a pool of memory: objects that are put and got, segments that are lent.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kvferry_store::{
    Error, Get, GetOptions, Key, Lent, Matching, Put, PutOptions, SegmentState, Store, Tenant,
};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::engine::PyEngine;
use crate::error::{raise_store, store_error};
use crate::sides;
use crate::wait::{block_on, optional_seconds, seconds};

/// How long the master is waited for, unless the program says otherwise.
const PATIENCE_S: f64 = 10.0;

/// All handles to stores of this process, for its end.
static HANDLES: Mutex<Vec<Weak<dyn Release>>> = Mutex::new(Vec::new());

/// Has every store leave its pool, each in a second at the most.
pub(crate) fn leave_all() {
    let handles = std::mem::take(&mut *HANDLES.lock());
    std::thread::scope(|scope| {
        for handle in handles.iter().filter_map(Weak::upgrade) {
            scope.spawn(move || handle.release());
        }
    });
}

trait Release: Send + Sync {
    /// Gives up what there is. The last of a store's handles has it leave.
    fn release(&self);
}

impl<T: Send> Release for Mutex<Option<T>> {
    fn release(&self) {
        let taken = self.lock().take();
        drop(taken);
    }
}

/// A handle to a store: the store itself, or memory that it lends. Empty once that was given up.
struct Handle<T: Send + 'static>(Arc<Mutex<Option<T>>>);

impl<T: Send + 'static> Handle<T> {
    fn new(value: T) -> Self {
        let handle = Arc::new(Mutex::new(Some(value)));
        let mut handles = HANDLES.lock();
        handles.retain(|one| one.strong_count() > 0);
        let weak = Arc::downgrade(&handle);
        handles.push(weak);
        Self(handle)
    }

    fn take(&self) -> Option<T> {
        self.0.lock().take()
    }

    fn get(&self) -> Option<T>
    where
        T: Clone,
    {
        self.0.lock().clone()
    }
}

impl<T: Send + 'static> Drop for Handle<T> {
    /// Leaving takes a while, in which other threads run.
    fn drop(&mut self) {
        if self.0.lock().is_some() {
            Python::attach(|py| py.detach(|| self.0.release()));
        }
    }
}

#[pyclass(frozen, name = "Store", module = "kvferry")]
pub(crate) struct PyStore(Handle<Store>);

impl PyStore {
    fn get(&self, py: Python<'_>) -> PyResult<Store> {
        self.0.get().ok_or_else(|| raise_store(py, &Error::Closed))
    }
}

/// Waits for a future of a store, without an end of its own: all of them have one.
fn wait<T: Send>(py: Python<'_>, future: impl Future<Output = T> + Send) -> PyResult<T> {
    let done = block_on(py, None, future)?;
    done.ok_or_else(|| PyValueError::new_err("a wait without an end has ended"))
}

fn keys(py: Python<'_>, names: Vec<String>) -> PyResult<Vec<Key>> {
    let key = |name: String| Key::new(name).map_err(Error::from);
    names.into_iter().map(key).collect::<Result<_, _>>().map_err(|error| raise_store(py, &error))
}

fn tenant_of(py: Python<'_>, name: &str) -> PyResult<Tenant> {
    Tenant::new(name).map_err(|error| raise_store(py, &error.into()))
}

/// As many of one as of the other, or an exception.
fn same_length(one: usize, other: usize, what: &str) -> PyResult<()> {
    if one == other {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("{one} keys, and {other} {what}: one is needed for each")))
}

/// A list with a value or an exception for each; the exceptions are not raised.
fn list<'py, T>(
    py: Python<'py>,
    results: Vec<Result<T, Error>>,
    value: impl Fn(T) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let each = results.into_iter().map(|result| match result {
        Ok(done) => value(done),
        Err(error) => Ok(store_error(py, &error)?.into_value(py).into_bound(py).into_any()),
    });
    PyList::new(py, each.collect::<PyResult<Vec<_>>>()?)
}

#[pymethods]
impl PyStore {
    #[new]
    #[pyo3(signature = (engine, master, *, host=None, tenant="", patience=PATIENCE_S),
           text_signature = "(engine, master, *, host=None, tenant='', patience=10.0)")]
    fn new(
        py: Python<'_>,
        engine: &Bound<'_, PyEngine>,
        master: &str,
        host: Option<String>,
        tenant: &str,
        patience: f64,
    ) -> PyResult<Self> {
        let mut builder = Store::builder(engine.get().get(py)?, master)
            .tenant(tenant_of(py, tenant)?)
            .patience(seconds(patience)?);
        if let Some(host) = host {
            builder = builder.host(host);
        }
        let store = wait(py, builder.start())?.map_err(|error| raise_store(py, &error))?;
        Ok(Self(Handle::new(store)))
    }

    #[getter]
    fn host(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.get(py)?.host().to_owned())
    }

    fn for_tenant(&self, py: Python<'_>, tenant: &str) -> PyResult<Self> {
        Ok(Self(Handle::new(self.get(py)?.for_tenant(tenant_of(py, tenant)?))))
    }

    #[pyo3(signature = (keys, sources, *, replicas=1, preferred=Vec::new(), pinned=false,
                        soft_pin=0.0, groups=None, checksum=false),
           text_signature = "($self, keys, sources, *, replicas=1, preferred=[], pinned=False, \
                             soft_pin=0.0, groups=None, checksum=False)")]
    #[allow(clippy::too_many_arguments)] // by name in Python
    fn put_all<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<String>,
        sources: Vec<Bound<'py, PyAny>>,
        replicas: usize,
        preferred: Vec<String>,
        pinned: bool,
        soft_pin: f64,
        groups: Option<Vec<String>>,
        checksum: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let store = self.get(py)?;
        same_length(keys.len(), sources.len(), "sources")?;
        let groups = groups.unwrap_or_else(|| vec![String::new(); keys.len()]);
        same_length(keys.len(), groups.len(), "groups")?;
        let registry = store.engine().registry();
        let mut puts = Vec::with_capacity(keys.len());
        for ((key, source), group) in self::keys(py, keys)?.into_iter().zip(sources).zip(groups) {
            puts.push(Put::new(key, sides::spans(&source, registry)?).group(group));
        }
        let soft_pin = seconds(soft_pin)?;
        let options = PutOptions { replicas, preferred, is_pinned: pinned, soft_pin, checksum };
        let results = wait(py, store.put_all(puts, &options))?;
        list(py, results, |_| Ok(py.None().into_bound(py)))
    }

    #[pyo3(signature = (keys, targets, *, verify=false))]
    fn get_all<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<String>,
        targets: Vec<Bound<'py, PyAny>>,
        verify: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let store = self.get(py)?;
        same_length(keys.len(), targets.len(), "targets")?;
        let registry = store.engine().registry();
        let mut gets = Vec::with_capacity(keys.len());
        for (key, target) in self::keys(py, keys)?.into_iter().zip(targets) {
            gets.push(Get::new(key, sides::spans(&target, registry)?));
        }
        let results = wait(py, store.get_all(gets, GetOptions { verify }))?;
        list(py, results, |bytes| Ok(bytes.into_pyobject(py)?.into_any()))
    }

    fn exist<'py>(&self, py: Python<'py>, keys: Vec<String>) -> PyResult<Bound<'py, PyList>> {
        let results = wait(py, self.get(py)?.exist(self::keys(py, keys)?))?;
        list(py, results, |found| Ok(found.into_pyobject(py)?.to_owned().into_any()))
    }

    fn size(&self, py: Python<'_>, key: &str) -> PyResult<u64> {
        let key = Key::try_from(key).map_err(|error| raise_store(py, &error.into()))?;
        wait(py, self.get(py)?.size(key))?.map_err(|error| raise_store(py, &error))
    }

    #[pyo3(signature = (keys, *, force=false))]
    fn remove<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<String>,
        force: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let results = wait(py, self.get(py)?.remove(self::keys(py, keys)?, force))?;
        list(py, results, |_| Ok(py.None().into_bound(py)))
    }

    #[pyo3(signature = (*, prefix=None, regex=None, force=false))]
    fn remove_matching(
        &self,
        py: Python<'_>,
        prefix: Option<String>,
        regex: Option<String>,
        force: bool,
    ) -> PyResult<u64> {
        let matching = match (prefix, regex) {
            (Some(prefix), None) => Matching::Prefix(prefix),
            (None, Some(regex)) => Matching::Regex(regex),
            (None, None) => Matching::All,
            (Some(_), Some(_)) => {
                return Err(PyValueError::new_err(
                    "give a prefix or a regular expression, not both",
                ));
            }
        };
        let answer = wait(py, self.get(py)?.remove_matching(matching, force))?;
        Ok(answer.map_err(|error| raise_store(py, &error))?.removed)
    }

    fn lend(&self, py: Python<'_>, bytes: u64, name: String) -> PyResult<PyLent> {
        let store = self.get(py)?;
        let lent =
            py.detach(|| store.lend(bytes, name)).map_err(|error| raise_store(py, &error))?;
        Ok(PyLent(Handle::new(lent)))
    }

    fn status(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        let status = self.get(py)?.status();
        let fields = PyDict::new(py);
        fields.set_item("joined", status.is_joined)?;
        fields.set_item("recovering", status.is_recovering)?;
        fields.set_item("lent_bytes", status.lent_bytes)?;
        fields.set_item("objects", status.objects)?;
        fields.set_item("used_bytes", status.used_bytes)?;
        Ok(fields.unbind())
    }

    #[pyo3(signature = (grace=0.0))]
    fn close(&self, py: Python<'_>, grace: f64) -> PyResult<()> {
        let grace = seconds(grace)?;
        let Some(store) = self.0.take() else { return Ok(()) };
        match wait(py, store.close(grace))? {
            // It was closed by another handle.
            Ok(_) | Err(Error::Closed) => Ok(()),
            Err(error) => Err(raise_store(py, &error)),
        }
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py, 0.0)
    }
}

/// Memory that is lent. It stays lent without this.
#[pyclass(frozen, name = "Lent", module = "kvferry")]
pub(crate) struct PyLent(Handle<Lent>);

impl PyLent {
    fn get(&self, py: Python<'_>) -> PyResult<Lent> {
        self.0.get().ok_or_else(|| raise_store(py, &Error::TakenBack))
    }
}

#[pymethods]
impl PyLent {
    #[getter]
    fn state(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(match self.get(py)?.state() {
            SegmentState::Populating(_) => "populating",
            SegmentState::Mounting => "mounting",
            SegmentState::Mounted => "mounted",
            SegmentState::NotMounted(_) => "not mounted",
            SegmentState::Unmounted => "unmounted",
        })
    }

    /// False where it has taken longer than `timeout`.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let mut lent = self.get(py)?;
        let mounted = async move { lent.mounted().await };
        match block_on(py, optional_seconds(timeout)?, mounted)? {
            Some(mounted) => mounted.map(|()| true).map_err(|error| raise_store(py, &error)),
            None => Ok(false),
        }
    }

    #[pyo3(signature = (grace=0.0))]
    fn unmount(&self, py: Python<'_>, grace: f64) -> PyResult<()> {
        let grace: Duration = seconds(grace)?;
        let lent = self.0.take().ok_or_else(|| raise_store(py, &Error::TakenBack))?;
        let left = wait(py, lent.unmount(grace))?;
        left.map(drop).map_err(|error| raise_store(py, &error))
    }
}
