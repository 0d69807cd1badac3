//! What a program may give as a side of a transfer.

use std::sync::Arc;

use kvferry_engine::{LocalSpans, Registry, RemoteGrant, RemoteSpans, Span};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::descriptors::Descriptors;
use crate::error::raise;
use crate::grant::PyRemoteGrant;
use crate::layout::{PyBlocks, PyRemoteBlocks};
use crate::lookup::with_region;
use crate::peer::PyRemoteSpan;
use crate::registry::PySpan;

/// A span, blocks, descriptors, or several of them in a sequence.
pub(crate) fn local(side: &Bound<'_, PyAny>) -> PyResult<LocalSpans> {
    if let Ok(span) = side.cast::<PySpan>() {
        return Ok(span.get().0.clone().into());
    }
    if let Ok(blocks) = side.cast::<PyBlocks>() {
        return Ok(blocks.get().0.clone().into());
    }
    if let Ok(descriptors) = side.cast::<Descriptors>() {
        return Ok(LocalSpans::addresses(descriptors.get().ranges()));
    }
    let mut all = LocalSpans::default();
    for part in parts(side, "Span, Blocks or Descriptors")? {
        all = all.and(local(&part?)?);
    }
    Ok(all)
}

/// A remote span, blocks, descriptors, a grant for all that it covers, or several of them in a
/// sequence.
pub(crate) fn remote(
    side: &Bound<'_, PyAny>,
    grant: Option<&Arc<RemoteGrant>>,
) -> PyResult<RemoteSpans> {
    let spans = ungranted(side)?;
    Ok(match grant {
        Some(grant) => spans.under(grant),
        None => spans,
    })
}

fn ungranted(side: &Bound<'_, PyAny>) -> PyResult<RemoteSpans> {
    if let Ok(span) = side.cast::<PyRemoteSpan>() {
        return Ok(span.get().0.into());
    }
    if let Ok(blocks) = side.cast::<PyRemoteBlocks>() {
        return Ok(blocks.get().0.clone().into());
    }
    if let Ok(descriptors) = side.cast::<Descriptors>() {
        return Ok(RemoteSpans::addresses(descriptors.get().ranges()));
    }
    if let Ok(grant) = side.cast::<PyRemoteGrant>() {
        return Ok((&grant.get().0).into());
    }
    let mut all = RemoteSpans::default();
    for part in parts(side, "RemoteSpan, RemoteBlocks, Descriptors or RemoteGrant")? {
        all = all.and(ungranted(&part?)?);
    }
    Ok(all)
}

/// Spans of this process, for a grant: descriptors are looked up in the registry.
pub(crate) fn spans(side: &Bound<'_, PyAny>, registry: &Registry) -> PyResult<Vec<Span>> {
    if let Ok(span) = side.cast::<PySpan>() {
        return Ok(vec![span.get().0.clone()]);
    }
    if let Ok(descriptors) = side.cast::<Descriptors>() {
        let span = |(address, length): (u64, u64)| {
            with_region(registry, address, length, |region| {
                region.span(address - region.base(), length)
            })
        };
        let spans = descriptors.get().ranges().into_iter().map(span);
        return spans.collect::<Result<_, _>>().map_err(|error| raise(side.py(), &error));
    }
    let mut all = Vec::new();
    for part in parts(side, "Span or Descriptors")? {
        all.extend(spans(&part?, registry)?);
    }
    Ok(all)
}

fn parts<'py>(
    side: &Bound<'py, PyAny>,
    what: &str,
) -> PyResult<impl Iterator<Item = PyResult<Bound<'py, PyAny>>>> {
    // Anything else that is iterable would be gone through for nothing, a buffer byte by byte.
    let is_list = side.is_instance_of::<pyo3::types::PyList>()
        || side.is_instance_of::<pyo3::types::PyTuple>();
    if !is_list {
        let kind = side.get_type();
        return Err(PyTypeError::new_err(format!(
            "{kind} is no side of a transfer: {what}, or a list of them"
        )));
    }
    side.try_iter()
}
