//! The promises of `docs/design.md`, each on real processes.
#![allow(clippy::unwrap_used, reason = "tests")]

mod done;
mod ending;
mod failover;
mod fence;
mod hostile;
mod nothing_held;
mod order;
mod ownership;
mod restart;
mod time;
