//! Memory that belongs to Python: buffers, tensors, bare addresses, and devices' by descriptors.
#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, OwnedFd};

use kvferry_engine::Memory;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::error::raise;

/// What keeps foreign memory alive: it is held for as long as the region is registered.
pub(crate) enum Owner {
    /// A buffer: its exporter can neither free nor move it meanwhile.
    Buffer(#[expect(dead_code, reason = "held, not looked at")] PyUntypedBuffer),
    /// An object that the caller named, or a tensor.
    Object(#[expect(dead_code, reason = "held, not looked at")] Py<PyAny>),
}

/// The memory behind an object: a writable contiguous buffer (`bytearray`, `numpy.ndarray`, `mmap`), or a
/// contiguous tensor in host memory (`data_ptr`, `numel`, `element_size`).
pub(crate) fn memory_of(object: &Bound<'_, PyAny>) -> PyResult<(Memory, Owner)> {
    let py = object.py();
    if object.hasattr("data_ptr")? {
        let device: String = object.getattr("device")?.str()?.extract()?;
        if device != "cpu" {
            return Err(PyValueError::new_err(format!(
                "the tensor lives on {device}: memory of a device is registered by a dma-buf of it \
                 (Registry.register_dmabuf)"
            )));
        }
        if !object.call_method0("is_contiguous")?.extract::<bool>()? {
            return Err(PyValueError::new_err("the tensor is not contiguous"));
        }
        let address: u64 = object.call_method0("data_ptr")?.extract()?;
        let count: u64 = object.call_method0("numel")?.extract()?;
        let each: u64 = object.call_method0("element_size")?.extract()?;
        let memory = memory_at(py, address, count * each)?;
        // A tensor may be given other memory in place; what it has now is kept by one of our own.
        let own = match object.getattr_opt("detach")? {
            Some(detach) => detach.call0()?,
            None => object.clone(),
        };
        return Ok((memory, Owner::Object(own.unbind())));
    }
    let buffer = PyUntypedBuffer::get(object).map_err(|error| {
        let kind = object.get_type();
        let wrapped = PyTypeError::new_err(format!(
            "{kind} is no memory: a writable buffer, a tensor or Registry.register_address is needed"
        ));
        wrapped.set_cause(py, Some(error));
        wrapped
    })?;
    if buffer.readonly() {
        return Err(PyBufferError::new_err(
            "the buffer is read-only: what is registered must be writable",
        ));
    }
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the buffer is not contiguous"));
    }
    let memory = memory_at(py, buffer.buf_ptr() as u64, buffer.len_bytes() as u64)?;
    Ok((memory, Owner::Buffer(buffer)))
}

/// The memory at an address.
pub(crate) fn memory_at(py: Python<'_>, address: u64, length: u64) -> PyResult<Memory> {
    let too_long =
        |_| PyValueError::new_err(format!("{length} bytes do not fit the address space"));
    let length = usize::try_from(length).map_err(too_long)?;
    let base = std::ptr::with_exposed_provenance_mut(usize::try_from(address).map_err(too_long)?);
    // SAFETY: the range stays mapped, readable and writable until its region is unregistered: a
    // buffer's exporter and a tensor are held that long, and of a bare address
    // `Registry.register_address` demands it from its caller, as every interface that takes addresses
    // does. No Rust reference into it exists.
    let memory = unsafe { Memory::foreign(base, length) };
    memory.map_err(|error| raise(py, &error.into()))
}

/// A descriptor of our own for what the program has one of.
pub(crate) fn duplicate(fd: i32) -> PyResult<OwnedFd> {
    if fd < 0 {
        return Err(PyValueError::new_err(format!("{fd} is no descriptor")));
    }
    // SAFETY: it is used for the duplication alone, which the kernel refuses where it is not open.
    let given = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(given.try_clone_to_owned()?)
}
