//! A way back to the peer for whoever only knows a transfer.

use std::sync::{Arc, Weak};
use std::time::Duration;

use kvferry_proto::TransferId;
use kvferry_transport::lanes::look_until;

use super::PeerInner;
use crate::error::Error;
use crate::metrics::Carriers;
use crate::transfer::Op;
use crate::transfer::cargo::Driver;

/// See the [module](self).
pub(crate) struct PeerDriver(pub(crate) Weak<PeerInner>);

impl PeerDriver {
    /// The peer, unless this is a forked child: its sockets are its parent's.
    fn peer(&self) -> Option<Arc<PeerInner>> {
        self.0.upgrade().filter(|peer| peer.core.is_own_process())
    }
}

impl Driver for PeerDriver {
    fn cancel(&self, transfer: TransferId) {
        if let Some(peer) = self.peer() {
            peer.event(|session, now| session.fail(now, transfer, Error::Cancelled));
        }
    }

    fn cut(&self, transfer: TransferId) {
        if let Some(peer) = self.peer() {
            peer.event(|session, now| session.give_up(now, transfer, Error::RegionWithdrawn));
        }
    }

    fn fail(&self, transfer: TransferId, cause: Error) {
        if let Some(peer) = self.peer() {
            peer.event(|session, now| session.fail(now, transfer, cause));
        }
    }

    fn look(&self, transfer: TransferId, is_over: &dyn Fn() -> bool) {
        let Some(peer) = self.peer() else { return };
        let awaited = peer.session.lock().lanes_of(transfer);
        let lanes: Vec<_> =
            awaited.into_iter().filter_map(|lane| Some(peer.lanes.get(lane)?.lane)).collect();
        if !lanes.is_empty() {
            look_until(&lanes, is_over);
        }
    }

    fn count(&self, op: Op, carriers: Carriers, done: Option<u64>) {
        if let Some(peer) = self.0.upgrade() {
            peer.core.counts.ended(op.into(), carriers, done);
        }
    }

    fn spin(&self) -> Duration {
        self.0.upgrade().map_or(Duration::ZERO, |peer| peer.core.settings.spin)
    }
}
