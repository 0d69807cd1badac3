//! The master as a server: clients over gRPC, people and probes over HTTP, signals.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod client;
mod hostile;
mod http;
mod life;
mod pool;
mod process;
