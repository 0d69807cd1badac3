//! Registered memory, and the lanes that carry it between processes.
//!
//! This crate knows bytes and sockets and nothing of peers, grants or transfers: what a frame means
//! and whether it may touch memory is decided by whoever implements
//! [`lanes::LaneHandler`], [`lanes::Landing`] and [`lanes::Outgoing`].
//!
//! ```text
//!  region memory                     one lane                       region memory
//!  +---+---+---+   gather: sendmsg   ==========   scatter: recvmsg   +---+---+---+
//!  | 7 | 2 | 9 | ------------------> --- stream ------------------>  | 1 | 5 | 3 |
//!  +---+---+---+   no copy of ours   ==========   no copy of ours    +---+---+---+
//! ```
//!
//! | module | what stands there |
//! |---|---|
//! | [`memory`] | memory that others may touch: allocated, foreign, a mapped file, or a device's; lists of spans of it |
//! | [`baton`] | work that any thread may bring, and that one at a time does |
//! | [`lanes`] | lanes over TCP and Unix connections, and the threads that drive them |
//! | [`local`] | two processes of one host: how they know that they are, and how one reads the other's memory |
//! | [`rdma`] | which RDMA adapters this host has, and what they do |
//!
//! Memory that a peer may write is never a `&[u8]` here: it is a [`memory::Memory`], copied from
//! and into by system calls and raw pointers. All `unsafe` of the project stands in
//! `memory`, `lanes`, `local` and `rdma::verbs`.
//!
//! ```
//! use kvferry_transport::memory::{Memory, SpanList};
//!
//! let memory = Memory::allocate(1 << 20)?;
//! memory.copy_in(4096, b"a block")?;
//! let mut spans = SpanList::new();
//! spans.attach(&memory);
//! spans.push(4096, 7)?;
//! assert!(spans.push(1 << 20, 1).is_err(), "outside the memory");
//! assert_eq!(spans.bytes(), 7);
//! # Ok::<(), kvferry_transport::memory::MemoryError>(())
//! ```

pub mod baton;
mod descriptor;
mod doorbell;
pub mod lanes;
pub mod local;
pub mod memory;
pub mod rdma;
mod sync;
