//! The master of a pool: which memory engines lend to it, what is in it, and for how long it is kept.
//!
//! | module | what stands there | I/O |
//! |---|---|---|
//! | [`state`] | segments, objects and leases on both: what becomes of every command | none |
#![forbid(unsafe_code)]

pub mod state;
