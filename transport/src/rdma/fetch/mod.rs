//! Bringing lists of spans of a peer's memory here, by reads on one queue pair.
//!
//! ```text
//!  Fetch: spans there -> spans here        Registered: what of this process the adapter reaches
//!             |  cut where either ends, at most so many bytes and spans a request
//!             v
//!  Fetcher:  chain | chain | chain -> queue pair     posted while there is room, one doorbell each
//!             ^      one completion a chain  <------ completion queue
//! ```
//!
//! Nothing is decided here about permission: whoever posts a piece of a [`Fetch`] has looked whether
//! its destination may be written to, and no byte of it lands after [`Fetcher::end`], which is what
//! fences rest on. Little is under way at a time ([`BYTES_OUT`]), so that what may not go on is
//! over soon.
//!
//! | module | what stands there |
//! |---|---|
//! | `registered` | memory that is registered with one adapter, found by address |
//! | `cut` | from two lists of spans to requests |
//! | `fetcher` | requests on a queue pair: posted, counted, ended |

mod cut;
mod fetcher;
mod registered;

pub use cut::{Fetch, RemoteSpan, Unfetchable};
pub use fetcher::{BYTES_OUT, Fetched, Fetcher};
pub use registered::{Part, Registered};
