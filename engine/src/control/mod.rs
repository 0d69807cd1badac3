//! The control path: gRPC between engines, and how lanes come about.
//!
//! | file | what stands there |
//! |---|---|
//! | `server` | the service `Peer`, for engines that want to reach this one |
//! | `accept` | lanes that others open |
//! | `client` | the handshake with a peer, its table, and lanes to it |

pub(crate) mod accept;
pub(crate) mod client;
pub(crate) mod server;
