//! When a session wants to be called.

use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::PeerInner;

/// When the timer task of a peer wakes next, and how to wake it earlier.
#[derive(Default)]
pub(super) struct Alarm {
    armed: Mutex<Option<Instant>>,
    rearm: Notify,
}

impl Alarm {
    /// Has it wake at `next`, if that is earlier than it would.
    pub(super) fn arm(&self, next: Option<Instant>) {
        let Some(next) = next else { return };
        let mut armed = self.armed.lock();
        if armed.is_none_or(|armed| next < armed) {
            *armed = Some(next);
            self.rearm.notify_one();
        }
    }

    /// Wakes it now, for it to find that there is nobody left.
    pub(super) fn dismiss(&self) {
        self.rearm.notify_one();
    }
}

/// Calls the session when its time has come, for as long as the peer is held.
pub(super) async fn keep_time(peer: Weak<PeerInner>, alarm: Arc<Alarm>) {
    while peer.strong_count() > 0 {
        let armed = *alarm.armed.lock();
        let rearmed = alarm.rearm.notified();
        match armed {
            None => rearmed.await,
            Some(at) => {
                if tokio::time::timeout_at(at.into(), rearmed).await.is_err() {
                    let Some(peer) = peer.upgrade() else { return };
                    *alarm.armed.lock() = None;
                    peer.event(|session, now| session.on_timeout(now));
                }
            }
        }
    }
}
