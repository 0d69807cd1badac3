//! The owner's side: what peers do to this process's memory, checked slice by slice.
//!
//! | file | what stands there |
//! |---|---|
//! | [`inbound`] | what is remembered about one initiator, as a state machine without I/O |
//! | `initiators` | all initiators, their lanes, and forgetting those that are gone |
//! | `authority` | from a request to memory: grants, bounds, and whether they still hold |
//! | `requests` | the lane's handler: what each request comes to |
//! | `write` | a payload on its way into this process's memory |
//! | `read` | a payload on its way out of it |
//! | `lent` | slices without a payload, between processes of one host |
//! | `fetched` | slices without a payload, on lanes with a queue pair |

mod authority;
mod fetched;
pub mod inbound;
mod initiators;
mod lent;
mod read;
mod requests;
mod write;

pub(crate) use initiators::{Initiator, Initiators};
pub(crate) use requests::RequestHandler;
