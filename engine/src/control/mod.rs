//! The control path: gRPC between engines, and how lanes come about.
//!
//! | file | what stands there |
//! |---|---|
//! | `server` | the service `Peer`, for engines that want to reach this one |
//! | `accept` | lanes that others open |
//! | `client` | the handshake with a peer, and its table |
//! | `offer` | what engines tell each other in it |
//! | `lane` | lanes to a peer |

pub(crate) mod accept;
pub(crate) mod client;
pub(crate) mod lane;
pub(crate) mod offer;
pub(crate) mod server;
