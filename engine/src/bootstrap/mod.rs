//! The bootstrap server: where the workers of a prefill deployment say that they are there, and
//! others find them.
//!
//! It speaks HTTP as the server in vLLM's Mooncake connector does, so that both sides may be
//! vLLM's own or ours:
//!
//! | request | answer |
//! |---|---|
//! | `POST /register` `{"engine_id", "dp_rank", "tp_rank", "pp_rank", "addr": "tcp://HOST:PORT"}` | `{"status": "ok"}` |
//! | `GET /query` | `{"<dp>": {"engine_id", "worker_addr": {"<tp>": {"<pp>": "tcp://HOST:PORT"}}}}` |
//! | `GET /health` | `{"status": "ok"}` |
//!
//! An answer that is no success is `{"error": "..."}`. Beyond that server's, a registration may
//! have these fields, all of them optional:
//!
//! | field | what it changes |
//! |---|---|
//! | `incarnation` | a random number, 1 to 2^64 - 1: a worker that starts again takes its rank at once, and a late repeat of the one before is refused (409). `/query` tells it, as `incarnation` beside `worker_addr` |
//! | `dp_size`, `tp_size`, `pp_size` | `/query` answers 503 while a rank is missing; sizes that contradict each other are refused (400) |
//! | `lease_ms` | the worker is forgotten unless it registers again in time. Without, when its address has refused connections for a while |
//!
//! A worker without an incarnation is refused (400) where another has its rank, or another engine
//! its `dp_rank`, for as long as the other's address accepts connections. With a token, registering
//! needs `Authorization: Bearer TOKEN` (401).
//!
//! [`Bootstrap`] is the server on its own; [`EngineBuilder::bootstrap`] serves one beside an engine;
//! `kvctl bootstrap serve` is a process. [`Client`] registers, renews, and asks:
//!
//! ```no_run
//! use std::time::Duration;
//! use kvferry_engine::bootstrap::{Client, Rank, Registration, WorkerAddress};
//! use kvferry_engine::{Engine, Registry};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::builder(Registry::new()).start().await?;
//! let rank = Rank { dp: 0, tp: 1, pp: 0 };
//! let address = WorkerAddress::new(engine.address().clone())?;
//! let registration = Registration {
//!     incarnation: Some(engine.incarnation()),
//!     lease: Some(Duration::from_secs(15)),
//!     ..Registration::new("prefill-0", rank, address)
//! };
//! let held = Client::new("http://prefill-0:8998")?.hold(registration)?;
//! held.wait(Duration::from_secs(30))?;
//! # Ok(())
//! # }
//! ```
//!
//! | module | what stands there | I/O |
//! |---|---|---|
//! | [`table`] | who has registered, who gives way to whom, who is forgotten | none |
//! | `registration`, `address`, `wire`, `token` | what a worker says of itself, where it is reached, JSON, the secret | none |
//! | `server` | the driver of a table, and HTTP | sockets |
//! | `client` | registering, renewing, asking | sockets |
//!
//! [`EngineBuilder::bootstrap`]: crate::EngineBuilder::bootstrap

mod address;
mod client;
mod registration;
mod server;
pub mod table;
mod token;
mod wire;

pub use address::server_address;
pub use client::{Client, ClientError, Held};
pub use registration::{Rank, Registration, Sizes, WorkerAddress};
pub use server::{Bootstrap, BootstrapBuilder};
pub use token::{Token, TokenError};
pub use wire::BodyError;
