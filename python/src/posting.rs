//! Transfers of addresses, for the interfaces of other engines.

use std::sync::Arc;
use std::time::Instant;

use kvferry_engine::{Ended, Incarnation};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;

use crate::descriptors::Descriptors;
use crate::engine::PyEngine;
use crate::error::raise_transfer;
use crate::grant::PyRemoteGrant;
use crate::layout::indices;
use crate::peer::PyPeer;
use crate::post::{Order, Pairs, Post, Way};
use crate::transfer::PyReport;
use crate::wait::{by_turns, optional_seconds};

/// Ranges of this process and of a peer's, pair by pair.
#[pyclass(frozen, name = "Pairs", module = "kvferry")]
pub(crate) struct PyPairs {
    pairs: Arc<Pairs>,
    bytes: u64,
}

/// Numbers that are addresses or lengths: an array of 64-bit integers, or a sequence.
fn numbers(object: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    if let Ok(buffer) = PyBuffer::<u64>::get(object) {
        return buffer.to_vec(object.py());
    }
    if let Ok(buffer) = PyBuffer::<i64>::get(object) {
        let negative = |value| PyValueError::new_err(format!("{value} is negative"));
        let unsigned = |value: i64| u64::try_from(value).map_err(|_| negative(value));
        return buffer.to_vec(object.py())?.into_iter().map(unsigned).collect();
    }
    object.extract()
}

fn selected(
    list: &Bound<'_, Descriptors>,
    which: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<(u64, u64)>> {
    match which {
        Some(which) => list.get().select(&indices(which)?),
        None => Ok(list.get().ranges()),
    }
}

impl PyPairs {
    fn of(local: Vec<(u64, u64)>, remote: Vec<(u64, u64)>) -> PyResult<Self> {
        if local.len() != remote.len() {
            let (here, there) = (local.len(), remote.len());
            return Err(PyValueError::new_err(format!(
                "{here} local ranges cannot be paired with {there} remote ones"
            )));
        }
        let mut bytes = 0_u64;
        for (index, ((_, here), (_, there))) in local.iter().zip(&remote).enumerate() {
            if here != there {
                return Err(PyValueError::new_err(format!(
                    "pair {index} has {here} bytes here and {there} there"
                )));
            }
            bytes = bytes.saturating_add(*here);
        }
        Ok(Self { pairs: Arc::new(Pairs { local, remote }), bytes })
    }
}

#[pymethods]
impl PyPairs {
    /// From three lists of the same length.
    #[staticmethod]
    fn of_addresses(
        local: &Bound<'_, PyAny>,
        remote: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let (local, remote, lengths) = (numbers(local)?, numbers(remote)?, numbers(lengths)?);
        if local.len() != lengths.len() || remote.len() != lengths.len() {
            return Err(PyValueError::new_err(format!(
                "there are {} local and {} remote addresses and {} lengths: as many of each are needed",
                local.len(),
                remote.len(),
                lengths.len()
            )));
        }
        let with_length =
            |addresses: Vec<u64>| addresses.into_iter().zip(lengths.iter().copied()).collect();
        Self::of(with_length(local), with_length(remote))
    }

    /// From two lists of descriptors, whole or those with some indices.
    #[staticmethod]
    #[pyo3(signature = (local, remote, local_indices=None, remote_indices=None))]
    fn of_descriptors(
        local: &Bound<'_, Descriptors>,
        remote: &Bound<'_, Descriptors>,
        local_indices: Option<&Bound<'_, PyAny>>,
        remote_indices: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        Self::of(selected(local, local_indices)?, selected(remote, remote_indices)?)
    }

    fn __len__(&self) -> usize {
        self.pairs.local.len()
    }

    #[getter]
    fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Starts a transfer: `way` is "write" or "read", `owner` the incarnation whose addresses they are.
    #[pyo3(signature = (engine, peer, way, *, notify=None, owner=None, deadline=None, grant=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn post(
        &self,
        py: Python<'_>,
        engine: &Bound<'_, PyEngine>,
        peer: &Bound<'_, PyPeer>,
        way: &str,
        notify: Option<&[u8]>,
        owner: Option<u64>,
        deadline: Option<f64>,
        grant: Option<&Bound<'_, PyRemoteGrant>>,
    ) -> PyResult<PyPost> {
        let order = Order {
            peer: peer.get().0.clone(),
            way: match way {
                "write" => Way::Push,
                "read" => Way::Pull,
                other => {
                    return Err(PyValueError::new_err(format!(
                        "{other:?} is neither \"write\" nor \"read\""
                    )));
                }
            },
            pairs: self.pairs.clone(),
            owner: owner.map(Incarnation),
            grant: grant.map(|grant| grant.get().0.clone()),
            notification: notify.map(Into::into),
            deadline: optional_seconds(deadline)?,
        };
        let tasks = engine.get().tasks(py)?;
        let begun = Instant::now();
        let post = py.detach(|| Post::submit(order, tasks));
        Ok(PyPost { post, bytes: self.bytes, posting: begun.elapsed().as_secs_f64() })
    }
}

/// A transfer of addresses under way. Dropping it does not end it.
#[pyclass(frozen, name = "Post", module = "kvferry")]
pub(crate) struct PyPost {
    post: Arc<Post>,
    bytes: u64,
    posting: f64,
}

fn report(py: Python<'_>, ended: Ended) -> PyResult<PyReport> {
    ended.map(PyReport::new).map_err(|error| raise_transfer(py, &error))
}

#[pymethods]
impl PyPost {
    fn poll(&self, py: Python<'_>) -> PyResult<Option<PyReport>> {
        self.post.poll().map(|ended| report(py, ended)).transpose()
    }

    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<PyReport> {
        match by_turns(py, optional_seconds(timeout)?, |patience| self.post.wait(patience))? {
            Some(ended) => report(py, ended),
            None => Err(PyTimeoutError::new_err("the transfer has not ended yet: it goes on")),
        }
    }

    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.post.cancel());
    }

    #[getter]
    fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How long submitting it took, in seconds.
    #[getter]
    fn posting(&self) -> f64 {
        self.posting
    }
}
