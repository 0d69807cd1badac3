//! When a session wants to be called.

use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::PeerInner;

/// When the timer task of a peer wakes next, and how to wake it earlier.
#[derive(Default)]
pub(super) struct Alarm {
    pub(super) armed: Mutex<Option<Instant>>,
    pub(super) rearm: Notify,
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
