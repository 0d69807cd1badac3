//! What threads of kvferry share without waiting for each other, run by loom under every
//! interleaving that the memory model allows: `make loom`.
//!
//! The sources are those of the crates, compiled against locks and atomics of loom's (`sync`). They
//! are taken in here because the libraries that the crates stand on cannot be compiled with
//! `--cfg loom`.
//!
//! | model | what holds |
//! |---|---|
//! | `carried` | what is brought to a `baton` is done, whoever does it |
//! | `rung` | who stops looking at shared memory has seen what was published there, or is woken by the `doorbell` |
//! | `ended` | whoever waits for an `ending` is told of it, however it waits |
//!
//! Each model is also run on a copy of the rule with its order reversed, which loom has to find out.
#![cfg(loom)]
#![forbid(unsafe_code)]

#[path = "../../../transport/src/baton.rs"]
pub mod baton;
#[path = "../../../transport/src/doorbell.rs"]
#[cfg_attr(not(test), expect(dead_code, reason = "what calls it is tried on real memory"))]
pub(crate) mod doorbell;
#[path = "../../../engine/src/ending.rs"]
#[expect(dead_code, reason = "waiting with a deadline, and pipes, are not tried")]
pub(crate) mod ending;
mod sync;

#[cfg(test)]
mod carried;
#[cfg(test)]
mod ended;
#[cfg(test)]
mod rung;
