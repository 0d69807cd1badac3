//! Engines over RDMA, on a library with the interface of libibverbs that does what it is told, both in
//! one process. On adapters whose packets travel the same is tested by `make test-rdma`.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod adverse;
mod dma_buf;
mod events;
mod fence;
mod hostile;
mod idle;
mod library;
mod nothing_held;
mod rails;
mod renewed;
mod replaced;
mod several;

use kvferry_engine::{EngineBuilder, Transport};

const OVER: Transport = Transport::Rdma;

/// Gives an engine the adapters that all engines of these tests share.
fn set_up(builder: EngineBuilder) -> EngineBuilder {
    builder.rdma(library::shared().rdma())
}

/// A directory of this user's that nobody else can enter.
fn private_directory() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let private = std::fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().permissions(private).tempdir().unwrap()
}

/// What the public API promises in the good case, over each transport.
#[path = "../../../engine/tests/two_engines/promises.rs"]
mod promises;
