//! What carries decisions out: calls to the master, transfers, threads.
//!
//! | file | what stands there |
//! |---|---|
//! | `shared` | what all parts of a store know |
//! | `master` | calls to the master |
//! | `gather`, `together` | small calls at the same time, which go to it as one |
//! | `session` | joining, mounting, following what changes |
//! | `beat` | signs of life, on a thread and a connection of their own |
//! | `kernel` | how much memory there is |
//! | `lend` | memory that is populated, mounted, taken back |
//! | `owners` | the engines that own segments |
//! | `put`, `get` | batches of objects |
//! | `threads` | the threads that all of this runs on |

pub(crate) mod beat;
pub(crate) mod gather;
pub(crate) mod get;
pub(crate) mod kernel;
pub(crate) mod lend;
pub(crate) mod master;
pub(crate) mod owners;
pub(crate) mod put;
pub(crate) mod session;
pub(crate) mod shared;
pub(crate) mod threads;
pub(crate) mod together;
