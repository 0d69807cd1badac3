//! Long lists of memory ranges by address, made and used without a Python object for each.

use kvferry_engine::{Peer, Region};
use parking_lot::Mutex;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::lookup::with_region;
use crate::peer::PyPeer;
use crate::registry::PyRegistry;

/// The most that one row of a strided list may stand for, and all of them.
const MOST: usize = 1 << 26;

/// A range of memory of some process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Descriptor {
    pub(crate) address: u64,
    pub(crate) length: u64,
    device: u64,
}

/// Address, length and device of each range, in order.
#[pyclass(frozen, module = "kvferry")]
#[derive(Default)]
pub(crate) struct Descriptors(Mutex<Vec<Descriptor>>);

impl Descriptors {
    fn of(list: Vec<Descriptor>) -> Self {
        Self(Mutex::new(list))
    }

    pub(crate) fn list(&self) -> Vec<Descriptor> {
        self.0.lock().clone()
    }

    pub(crate) fn ranges(&self) -> Vec<(u64, u64)> {
        self.0.lock().iter().map(|one| (one.address, one.length)).collect()
    }

    /// Those with these indices.
    pub(crate) fn select(&self, indices: &[u32]) -> PyResult<Vec<(u64, u64)>> {
        let list = self.0.lock();
        let select = |index: &u32| {
            let one = list.get(*index as usize).ok_or_else(|| {
                PyIndexError::new_err(format!(
                    "there is no descriptor {index}: there are {}",
                    list.len()
                ))
            })?;
            Ok((one.address, one.length))
        };
        indices.iter().map(select).collect()
    }
}

/// The rows of an array of unsigned or signed 64-bit integers with `width` columns; `None` where it is
/// something else.
fn rows(object: &Bound<'_, PyAny>, width: usize) -> PyResult<Option<Vec<u64>>> {
    let py = object.py();
    let (shape, values) = if let Ok(buffer) = PyBuffer::<u64>::get(object) {
        (buffer.shape().to_vec(), buffer.to_vec(py)?)
    } else if let Ok(buffer) = PyBuffer::<i64>::get(object) {
        let unsigned = buffer.to_vec(py)?.into_iter().map(|value| {
            u64::try_from(value).map_err(|_| PyValueError::new_err(format!("{value} is negative")))
        });
        (buffer.shape().to_vec(), unsigned.collect::<PyResult<_>>()?)
    } else {
        return Ok(None);
    };
    if shape.len() != 2 || shape[1] != width {
        return Err(PyValueError::new_err(format!(
            "an array of {width} columns is needed, this one's shape is {shape:?}"
        )));
    }
    Ok(Some(values))
}

#[pymethods]
impl Descriptors {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// From an array of 64-bit integers with the columns address, length and device, or from a
    /// sequence of tuples that begin so.
    #[staticmethod]
    fn from_rows(rows: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Some(values) = self::rows(rows, 3)? {
            let each = values.chunks_exact(3);
            let of = |row: &[u64]| Descriptor { address: row[0], length: row[1], device: row[2] };
            return Ok(Self::of(each.map(of).collect()));
        }
        let of = |row: PyResult<Bound<'_, PyAny>>| {
            let row = row?;
            let wrong =
                |_| PyTypeError::new_err("each row is a tuple of address, length and device");
            Ok(Descriptor {
                address: row.get_item(0).and_then(|value| value.extract()).map_err(wrong)?,
                length: row.get_item(1).and_then(|value| value.extract()).map_err(wrong)?,
                device: row.get_item(2).and_then(|value| value.extract()).map_err(wrong)?,
            })
        };
        Ok(Self::of(rows.try_iter()?.map(of).collect::<PyResult<_>>()?))
    }

    /// From an array with the columns address, length, device, stride and count: each row stands for
    /// `count` ranges, `stride` bytes apart.
    #[staticmethod]
    fn from_strided(rows: &Bound<'_, PyAny>) -> PyResult<Self> {
        let values = self::rows(rows, 5)?
            .ok_or_else(|| PyTypeError::new_err("an array of 64-bit integers is needed"))?;
        let mut list = Vec::new();
        for row in values.chunks_exact(5) {
            let [address, length, device, stride, count] = *row else { continue };
            let wrong = || {
                PyValueError::new_err(format!(
                    "{count} ranges of {length} bytes, {stride} apart from {address:#x} on, do not fit"
                ))
            };
            let room = usize::try_from(count).ok().filter(|count| *count <= MOST - list.len());
            let last = count.checked_sub(1).and_then(|last| stride.checked_mul(last));
            let end = last.and_then(|last| address.checked_add(last)?.checked_add(length));
            list.reserve(room.filter(|_| end.is_some() || count == 0).ok_or_else(wrong)?);
            // Checked: none of them overflows.
            let of = |index| Descriptor { address: address + index * stride, length, device };
            list.extend((0..count).map(of));
        }
        Ok(Self::of(list))
    }

    #[staticmethod]
    fn from_bytes(bytes: &[u8]) -> PyResult<Self> {
        if !bytes.len().is_multiple_of(24) {
            return Err(PyValueError::new_err(
                "these are no descriptors: 24 bytes each are needed",
            ));
        }
        let word = |part: &[u8]| {
            let mut word = [0; 8];
            word.copy_from_slice(part);
            u64::from_le_bytes(word)
        };
        let of = |one: &[u8]| Descriptor {
            address: word(&one[..8]),
            length: word(&one[8..16]),
            device: word(&one[16..]),
        };
        Ok(Self::of(bytes.chunks_exact(24).map(of).collect()))
    }

    fn to_bytes(&self, py: Python<'_>) -> Py<PyBytes> {
        let words = |one: &Descriptor| [one.address, one.length, one.device].map(u64::to_le_bytes);
        let bytes: Vec<u8> = self.0.lock().iter().flat_map(words).flatten().collect();
        PyBytes::new(py, &bytes).unbind()
    }

    fn __len__(&self) -> usize {
        self.0.lock().len()
    }

    fn __getitem__(&self, index: usize) -> PyResult<(u64, u64, u64)> {
        let list = self.0.lock();
        let one = list.get(index).ok_or_else(|| PyIndexError::new_err("no such descriptor"))?;
        Ok((one.address, one.length, one.device))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| {
            let theirs = other.get().list();
            *self.0.lock() == theirs
        })
    }

    fn append(&self, address: u64, length: u64, device: u64) {
        self.0.lock().push(Descriptor { address, length, device });
    }

    fn remove(&self, index: usize) -> PyResult<()> {
        let mut list = self.0.lock();
        if index >= list.len() {
            return Err(PyIndexError::new_err("no such descriptor"));
        }
        list.remove(index);
        Ok(())
    }

    fn clear(&self) {
        self.0.lock().clear();
    }

    /// Where this one is; `None` where it is not.
    fn index(&self, address: u64, length: u64, device: u64) -> Option<usize> {
        let wanted = Descriptor { address, length, device };
        self.0.lock().iter().position(|one| *one == wanted)
    }

    fn total_bytes(&self) -> u64 {
        self.0.lock().iter().fold(0, |sum, one| sum.saturating_add(one.length))
    }

    /// The first that no one range of `other` covers.
    fn first_outside(&self, other: &Bound<'_, Self>) -> Option<usize> {
        let mut ranges: Vec<(u64, u64)> = other.get().ranges();
        ranges.sort_unstable();
        // Each to the furthest end that one of those before it has: the longest that starts early enough.
        let mut furthest = 0;
        let ends: Vec<u64> = ranges
            .iter()
            .map(|(address, length)| {
                furthest = furthest.max(address.saturating_add(*length));
                furthest
            })
            .collect();
        self.0.lock().iter().position(|one| {
            let behind = ranges.partition_point(|(address, _)| *address <= one.address);
            let end = behind.checked_sub(1).and_then(|at| ends.get(at));
            one.address
                .checked_add(one.length)
                .is_none_or(|wanted| end.is_none_or(|end| wanted > *end))
        })
    }

    /// The first that no registered region covers.
    fn first_unregistered(
        &self,
        py: Python<'_>,
        registry: &Bound<'_, PyRegistry>,
    ) -> Option<usize> {
        let registry = &registry.get().0;
        py.detach(|| {
            let find = |one: &Descriptor| {
                let bounds = |region: &Region| Ok((region.base(), region.length()));
                with_region(registry, one.address, one.length, bounds).ok()
            };
            first_uncovered(&self.list(), find)
        })
    }

    /// The first that no region covers which a peer shares.
    fn first_unshared(&self, py: Python<'_>, peer: &Bound<'_, PyPeer>) -> Option<usize> {
        let peer: &Peer = &peer.get().0;
        py.detach(|| {
            let find = |one: &Descriptor| {
                let region = peer.find(one.address, one.length).ok()?;
                Some((region.base(), region.length()))
            };
            first_uncovered(&self.list(), find)
        })
    }
}

/// The first that nothing covers which `find` finds. Descriptors tend to lie where the one before does.
fn first_uncovered(
    list: &[Descriptor],
    find: impl Fn(&Descriptor) -> Option<(u64, u64)>,
) -> Option<usize> {
    let mut last: Option<(u64, u64)> = None;
    list.iter().position(|one| {
        let within = |(base, length): (u64, u64)| {
            one.address
                .checked_sub(base)
                .and_then(|offset| offset.checked_add(one.length))
                .is_some_and(|end| end <= length)
        };
        if one.length > 0 && last.is_some_and(within) {
            return false;
        }
        last = find(one);
        last.is_none()
    })
}
