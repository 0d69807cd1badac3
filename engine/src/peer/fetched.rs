//! Slices that adapters fetch: of reads, by this process's, from memory that the peer has lent by key; and
//! what the peer says of those of writes, which its own fetches.

use std::sync::Arc;

use kvferry_proto::frame::{Reply, Status};
use kvferry_proto::{LaneId, TransferId};
use kvferry_transport::lanes::{Incoming, Lane};
use kvferry_transport::rdma::fetch::Fetch;

use super::PeerInner;
use super::lent::SliceOf;
use super::way::unregistered;
use crate::error::Error;
use crate::rdma::{End, Errand, Link};
use crate::transfer::cargo::{Cargo, Permit};
use crate::transports::Transport;

/// A read slice on its way from the peer's memory into this process's. Its source is held until it
/// is said to have landed.
struct FetchedRead {
    of: SliceOf,
    cargo: Arc<Cargo>,
}

/// Has a slice fetched whose source is held.
pub(super) fn begin(of: SliceOf, cargo: Arc<Cargo>, link: &Link, lane: &Lane) -> Incoming {
    let Some(slice) = cargo.plan().slices().get(of.slice as usize) else {
        return Incoming::Violation(format!("there is no slice {}", of.slice));
    };
    let there = match cargo.keyed_spans(slice, &link.keys) {
        Ok(there) => there,
        Err(status) => {
            return Incoming::Violation(format!("slice {} was not lent: {status}", of.slice));
        }
    };
    let here = cargo.local_spans(slice);
    // Both are as long as the slice.
    let fetch = here.ok().and_then(|here| Fetch::new(there, &here));
    let id = (of.transfer, of.slice);
    let Some(fetch) = fetch else {
        // It has ended meanwhile.
        if cargo.permit() == Permit::Open {
            cargo.fault();
        }
        return Incoming::Done;
    };
    cargo.carried_by(Transport::Rdma);
    cargo.referred_to();
    if link.fetch(id, fetch, Box::new(FetchedRead { of, cargo }), lane) {
        Incoming::Done
    } else {
        Incoming::Violation(format!("slice {} was lent twice", id.1))
    }
}

impl Errand for FetchedRead {
    fn is_allowed(&self) -> bool {
        self.cargo.permit() == Permit::Open
    }

    fn finish(self: Box<Self>, _lane: &Lane, end: End) {
        let Some(peer) = self.of.peer.upgrade() else { return };
        let SliceOf { lane: on, transfer, slice, .. } = self.of;
        let held = |status| Reply::Held { transfer, slice, status };
        match end {
            End::InPlace => peer.event(|session, now| {
                session.on_carried(on);
                session.on_landed(now, on, transfer, slice, Ok(()));
                session.on_reply(now, on, held(Status::HeldUntilLanded));
            }),
            // As its owner would have said that had found out.
            End::NoSource => peer.reply(on, held(Status::MemoryFault)),
            End::NoTarget => {
                let is_on_device = self.cargo.terms().rdma_only;
                let cause = if is_on_device { unregistered() } else { Error::MemoryFault };
                peer.event(|session, now| {
                    session.on_landed(now, on, transfer, slice, Err(cause));
                });
            }
            // Nobody waits for it any more.
            End::Forbidden => {}
        }
    }
}

impl PeerInner {
    /// A slice that was written is in place, by a lane with a queue pair. Whether the peer's adapter has
    /// fetched it, as far as is known of its transfer, and it did not come on the connection.
    pub(super) fn acknowledged(
        self: &Arc<Self>,
        lane: LaneId,
        transfer: TransferId,
        ack: Reply,
    ) -> bool {
        self.event(|session, now| {
            let cargo = session.attachment(transfer);
            let is_fetched = cargo.is_some_and(|cargo| cargo.went_by(Transport::Rdma));
            if is_fetched {
                session.on_carried(lane);
            }
            session.on_reply(now, lane, ack);
            is_fetched
        })
    }
}
