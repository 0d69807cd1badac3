//! Stores with engines of their own in this process, and a master that does as it is told. What
//! needs a master that is one, and processes that die, is in the tests of the whole.
#![allow(clippy::unwrap_used, reason = "tests")]

mod batch;
mod lend;
mod master;
mod reborn;
mod setting;
