//! Descriptors that are no lanes, and that a reactor looks at beside them.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use parking_lot::Mutex;

use super::reactor::Handle;

/// Something beside lanes that a reactor thread deals with: called on that thread, so it must not
/// block.
pub trait Watched: Send + Sync {
    /// Deals with a part of what there is.
    fn look(&self) -> Look;

    /// Has the descriptor become readable with what comes from now on, and deals with what came until
    /// then. Whether there was anything.
    fn rest(&self) -> bool;
}

/// What [`Watched::look`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Something was dealt with, and more is likely to follow.
    Worked,
    /// Nothing, and something is to come.
    Waiting,
    /// Nothing, and nothing is to come before somebody wakes it ([`Watch::wake`]).
    Idle,
}

/// All that one reactor watches, by token.
pub(super) type Watching = Mutex<BTreeMap<usize, Arc<dyn Watched>>>;

/// A descriptor that is watched for as long as this lives: it has to be dropped before the descriptor
/// is closed.
pub struct Watch {
    reactor: Handle,
    token: usize,
    descriptor: RawFd,
}

impl Watch {
    pub(super) fn new(
        reactor: Handle,
        registry: &Registry,
        token: usize,
        descriptor: BorrowedFd<'_>,
        watched: Arc<dyn Watched>,
    ) -> io::Result<Self> {
        let descriptor = descriptor.as_raw_fd();
        reactor.watching().lock().insert(token, watched);
        let made = Self { reactor, token, descriptor };
        registry.register(&mut SourceFd(&descriptor), Token(token), Interest::READABLE)?;
        Ok(made)
    }

    /// Has the reactor look, though no event says so.
    pub fn wake(&self) {
        self.reactor.kick(self.token);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let watched = self.reactor.watching().lock().remove(&self.token);
        self.reactor.unregister(self.descriptor);
        drop(watched);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("token", &self.token).finish_non_exhaustive()
    }
}
