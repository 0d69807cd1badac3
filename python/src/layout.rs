//! Regions as blocks, here and at a peer.

use kvferry_engine::{BlockList, LayoutView, RemoteBlocks, RemoteLayout};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::error::raise;

/// Indices of blocks: an array of integers of any width from 32 bits on, taken as it is, or anything
/// that yields integers.
pub(crate) fn indices(object: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let py = object.py();
    let outside = |index: &dyn std::fmt::Display| {
        PyValueError::new_err(format!("{index} is no index of a block: it must fit 32 bits"))
    };
    if let Ok(buffer) = PyBuffer::<u32>::get(object) {
        return buffer.to_vec(py);
    }
    if let Ok(buffer) = PyBuffer::<i32>::get(object) {
        let narrow = |index: i32| u32::try_from(index).map_err(|_| outside(&index));
        return buffer.to_vec(py)?.into_iter().map(narrow).collect();
    }
    if let Ok(buffer) = PyBuffer::<i64>::get(object) {
        let narrow = |index: i64| u32::try_from(index).map_err(|_| outside(&index));
        return buffer.to_vec(py)?.into_iter().map(narrow).collect();
    }
    if let Ok(buffer) = PyBuffer::<u64>::get(object) {
        let narrow = |index: u64| u32::try_from(index).map_err(|_| outside(&index));
        return buffer.to_vec(py)?.into_iter().map(narrow).collect();
    }
    let each = object.try_iter().map_err(|_| {
        PyTypeError::new_err("indices are integers in a sequence or an array of 32 or 64 bits each")
    })?;
    each.map(|index| {
        let index = index?;
        let wrong = |error: PyErr| {
            if error.is_instance_of::<PyOverflowError>(py) { outside(&index) } else { error }
        };
        index.extract::<u32>().map_err(wrong)
    })
    .collect()
}

#[pyclass(frozen, name = "Layout", module = "kvferry")]
pub(crate) struct PyLayout(pub(crate) LayoutView);

#[pymethods]
impl PyLayout {
    #[getter]
    fn block_bytes(&self) -> u64 {
        self.0.block_bytes()
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.0.count())?)
    }

    fn blocks(&self, indices: &Bound<'_, PyAny>) -> PyResult<PyBlocks> {
        Ok(PyBlocks(self.0.blocks(self::indices(indices)?)))
    }

    fn narrow(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<Self> {
        self.0.narrow(offset, length).map(Self).map_err(|error| raise(py, &error))
    }

    fn publish(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.0.publish(name).map_err(|error| raise(py, &error))
    }
}

#[pyclass(frozen, name = "Blocks", module = "kvferry")]
pub(crate) struct PyBlocks(pub(crate) BlockList);

#[pyclass(frozen, name = "RemoteLayout", module = "kvferry")]
pub(crate) struct PyRemoteLayout(pub(crate) RemoteLayout);

#[pymethods]
impl PyRemoteLayout {
    #[getter]
    fn block_bytes(&self) -> u64 {
        self.0.block_bytes()
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.0.count())?)
    }

    fn blocks(&self, indices: &Bound<'_, PyAny>) -> PyResult<PyRemoteBlocks> {
        Ok(PyRemoteBlocks(self.0.blocks(self::indices(indices)?)))
    }

    fn narrow(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<Self> {
        self.0.narrow(offset, length).map(Self).map_err(|error| raise(py, &error))
    }
}

#[pyclass(frozen, name = "RemoteBlocks", module = "kvferry")]
pub(crate) struct PyRemoteBlocks(pub(crate) RemoteBlocks);
