//! What initiator and target say to each other, and how they find each other.
//!
//! One JSON value a line, over a socket: the one that a child process is given as its standard
//! input, or a TCP connection to `kvbench serve`. Lines are bounded in length, and every wait in
//! time: the other end may be stopped, cut off, or another program altogether.
//!
//! | module | what stands there |
//! |---|---|
//! | `channel` | lines over a socket, bounded |
//! | `orders` | what is said |
//! | `link` | the target as the initiator sees it: a child, or a process on another host |

mod channel;
mod link;
mod orders;

pub(crate) use channel::{Channel, ChannelError};
pub(crate) use link::{Link, SUBCOMMAND, Whereabouts, unexpected};
pub(crate) use orders::{Answer, Cell, Hello, Order, hello};
