//! The other end of a benchmark: it holds memory, fills and checks it on request, and takes part in
//! the floor's runs.
//!
//! As `kvbench serve` it stays and serves one client after the other; as a child of the initiator it
//! serves that one. Whatever a client does or leaves undone, what it held here is given back.
//!
//! | module | what stands there |
//! |---|---|
//! | `listener` | clients of other hosts: one at a time, the others are told so |
//! | `session` | one client's orders |
//! | `rank` | orders of a traffic pattern: one of many processes that write to each other |

mod listener;
mod rank;
mod session;

use std::io::stdin;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::Socket;

use crate::control::Channel;
pub(crate) use listener::run;

/// How long an initiator may give no order before it counts as gone. Its end of the socket closes
/// with it, so this is for one that is stopped.
const SILENCE: Duration = Duration::from_secs(300);

/// Serves the initiator that started this process, over its standard input.
pub(crate) fn serve_parent() -> anyhow::Result<()> {
    let socket = Socket::from(stdin().as_fd().try_clone_to_owned()?);
    let limits = session::Limits { memory_bytes: None, silence: SILENCE };
    session::serve(Channel::new(socket), IpAddr::V4(Ipv4Addr::LOCALHOST), limits)
}
