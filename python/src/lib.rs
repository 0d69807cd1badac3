//! kvferry's Python module, `kvferry._native`: the engine's types, and what the interfaces of other
//! engines (`kvferry.compat`) need so that nothing is done in Python for each descriptor.
//!
//! Whatever waits does so without the interpreter's lock, looks for signals every
//! `wait::LOOK`, and no thread of the engine ever takes that lock: a task of `asyncio` is woken
//! by a descriptor.
//!
//! | module | what stands there |
//! |---|---|
//! | `registry` | `Registry`, `Region`, `Span` |
//! | `layout` | `Layout`, `RemoteLayout`, `Blocks`, `RemoteBlocks` |
//! | `engine` | `Engine`, and the end of all of them when the interpreter ends |
//! | `peer` | `Peer`, `RemoteRegion`, `RemoteSpan` |
//! | `metrics` | what engines count |
//! | `sides` | what may be given as a side of a transfer |
//! | `transfer` | `Transfer`, `Report` |
//! | `grant` | `Grant`, `RemoteGrant` |
//! | `store` | `Store`, `Lent`: a pool's objects, and memory for them |
//! | `bootstrap` | the bootstrap server, registering with one, asking one |
//! | `descriptors` | `Descriptors`: long lists of addresses and lengths |
//! | `post`, `posting` | a transfer of addresses that follows what its peer shares |
//! | `foreign` | memory that belongs to Python: the only unsafe code, beside the export of buffers |
//! | `wait`, `pending` | waiting: a thread, a task |
//! | `error` | from the engine's errors to exceptions |
#![deny(unsafe_code)]

mod bootstrap;
mod descriptors;
mod engine;
mod error;
mod foreign;
mod grant;
mod layout;
mod lookup;
mod metrics;
mod peer;
mod pending;
mod post;
mod posting;
mod registry;
mod sides;
mod store;
mod transfer;
mod wait;

use pyo3::prelude::*;

/// The module as Python sees it. What is in it is described in `_native.pyi`.
#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<registry::PyRegistry>()?;
    module.add_class::<registry::PyRegion>()?;
    module.add_class::<registry::PySpan>()?;
    module.add_class::<layout::PyLayout>()?;
    module.add_class::<layout::PyBlocks>()?;
    module.add_class::<layout::PyRemoteLayout>()?;
    module.add_class::<layout::PyRemoteBlocks>()?;
    module.add_class::<engine::PyEngine>()?;
    module.add_class::<engine::PyNotification>()?;
    module.add_class::<metrics::PyMetricFamily>()?;
    module.add_class::<peer::PyPeer>()?;
    module.add_class::<peer::PyRemoteRegion>()?;
    module.add_class::<peer::PyRemoteSpan>()?;
    module.add_class::<transfer::PyTransfer>()?;
    module.add_class::<transfer::PyReport>()?;
    module.add_class::<bootstrap::PyBootstrapServer>()?;
    module.add_class::<bootstrap::PyRegistration>()?;
    module.add_class::<grant::PyGrant>()?;
    module.add_class::<grant::PyRemoteGrant>()?;
    module.add_class::<store::PyStore>()?;
    module.add_class::<store::PyLent>()?;
    module.add_class::<descriptors::Descriptors>()?;
    module.add_class::<posting::PyPairs>()?;
    module.add_class::<posting::PyPost>()?;
    module.add_class::<pending::Pending>()?;
    module.add_function(wrap_pyfunction!(bootstrap::bootstrap_query, module)?)?;
    module.add_function(wrap_pyfunction!(registry::process_registry, module)?)?;
    module.add_function(wrap_pyfunction!(engine::shut_down_all, module)?)?;
    module.add_function(wrap_pyfunction!(metrics::metric_families, module)?)?;
    module.add_function(wrap_pyfunction!(engine::log_to_stderr, module)?)?;
    Ok(())
}
