//! The bootstrap server: where the workers of a prefill deployment say that they are there, and
//! others find them.
//!
//! | module | what stands there | I/O |
//! |---|---|---|
//! | [`table`] | who has registered, who gives way to whom, who is forgotten | none |
//! | `registration`, `address` | what a worker says of itself, and where it is reached | none |

mod address;
mod registration;
pub mod table;

pub use address::server_address;
pub use registration::{Rank, Registration, Sizes, WorkerAddress};
