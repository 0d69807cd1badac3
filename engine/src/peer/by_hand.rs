//! What a peer shows to whoever drives it by hand.

use std::sync::Arc;
use std::time::Instant;

use super::PeerInner;

impl PeerInner {
    /// Wants it reachable, without waiting for it.
    pub(crate) fn want(self: &Arc<Self>) {
        // Whether it is already, or what would tell: nobody listens.
        drop(self.begin_connecting());
    }

    /// Whether somebody wants it reachable and has not been answered yet.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.waiting.lock().is_empty()
    }

    /// When its session wants to be told that time has passed.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.session.lock().next_timeout()
    }
}
