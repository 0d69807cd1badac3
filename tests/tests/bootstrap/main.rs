//! The bootstrap server beside an engine, and the client.
#![allow(clippy::unwrap_used, reason = "tests")]

mod client;
mod embedded;
mod ending;
mod processes;
