//! The control path: gRPC between engines, and how lanes come about.
//!
//! | file | what stands there |
//! |---|---|
//! | `server` | the service `Peer`, for engines that want to reach this one |
//! | `admit` | who may use the control port: so many, and those that speak HTTP/2 |
//! | `accept` | lanes that others open |
//! | `client` | the handshake with a peer, and its table |
//! | `choice` | which transport a peer is reached by |
//! | `offer` | what engines tell each other in it |
//! | `lane` | lanes to a peer |
//! | `pair` | lanes with a queue pair |
//! | `local` | whether a peer is on this host, and how both make sure |

pub(crate) mod accept;
mod admit;
mod choice;
pub(crate) mod client;
pub(crate) mod lane;
pub(crate) mod local;
pub(crate) mod offer;
mod pair;
pub(crate) mod server;
