//! The operator's tool: what `kvctl` does, apart from reading arguments and printing.
//!
//! | module | what stands there |
//! |---|---|
//! | [`cli`] | commands and their arguments |
//! | [`topology`] | `kvctl topology`: which RDMA devices are used, with whom, and why not |
//! | [`doctor`] | `kvctl doctor`: what would break or slow transfers on this host |
//! | `bootstrap` | `kvctl bootstrap`: serve a bootstrap server, and ask one |
//! | `store` | `kvctl store`: lend memory of this host to a pool |
//! | `service` | what commands have in common that run until a signal ends them |
//!
//! Commands take the root of the file system and the environment as parameters, so that what they
//! say of any machine can be tested.
#![forbid(unsafe_code)]

mod bootstrap;
pub mod cli;
pub mod doctor;
mod page;
mod service;
mod store;
pub mod topology;

pub use cli::{Arguments, Environment, Outcome};
