//! A process's end of everything.
//!
//! | module | what stands there |
//! |---|---|
//! | [`topology`] | which RDMA devices are used, with whom, and why the others are not |
#![forbid(unsafe_code)]

pub mod topology;
