//! What is decided without I/O: given the time and an event, these say what to do.
//!
//! | file | decides |
//! |---|---|
//! | `membership` | when to join the master, and whether it still counts this client in |
//! | `inventory` | what is in the segments that this client lends |
//! | `load` | which copies go into one transfer |
//! | `choice` | which replica is read first |
//! | `put`, `get` | what a batch does next, and how each object of it ends |
//! | `room` | how much memory can be lent |
//!
//! `world` runs them and a real master in virtual time.

pub(crate) mod choice;
pub(crate) mod get;
pub(crate) mod inventory;
pub(crate) mod load;
pub(crate) mod membership;
pub(crate) mod put;
pub(crate) mod room;

#[cfg(test)]
mod world;

use crate::error::Error;

/// What the master answered. Where it did not, each of those that were asked about fails.
fn answered<Answer>(
    answer: Result<Answer, Error>,
    items: &[usize],
    mut fail: impl FnMut(usize, Error),
) -> Option<Answer> {
    match answer {
        Ok(answer) => Some(answer),
        Err(error) => {
            for index in items {
                fail(*index, error.clone());
            }
            None
        }
    }
}
