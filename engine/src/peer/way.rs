//! How a slice goes by a lane: as a payload, by reference, or not at all.

use kvferry_proto::LaneId;

use super::PeerInner;
use crate::error::Error;
use crate::lanes::{Open, Tie};
use crate::session::Means;
use crate::transfer::Op;
use crate::transfer::cargo::Cargo;
use crate::transports::Transport;

/// How a slice goes.
#[derive(Debug)]
pub(super) enum Way {
    /// Its bytes follow the request, or the answer.
    Payload,
    /// Whoever it is for reads it where it lies.
    Reference,
    /// The lane is about to be reported closed: its slices are queued again then.
    Nowhere,
    /// Not by this lane, nor by any that is like it: the transfer fails.
    Impossible(Error),
}

impl PeerInner {
    /// How a slice goes by a lane. Regions that the peer needs for it, and has not been lent yet on this
    /// lane, are lent before it.
    pub(super) fn way(&self, lane: LaneId, cargo: &Cargo, slice: u32) -> Way {
        let Some(Open { lane, tie }) = self.lanes.get(lane) else { return Way::Nowhere };
        let is_pair = matches!(tie, Tie::Pair(_));
        if cargo.terms().rdma_only && !is_pair {
            return Way::Impossible(self.not_by(tie.transport()));
        }
        if !is_pair {
            cargo.carried_by(tie.transport());
        }
        let loans = tie.loans().filter(|_| cargo.terms().by_reference);
        if let (Op::Read, Some(_)) = (cargo.terms().op, loans) {
            // Of a lane with a queue pair the answer says what carries it.
            return Way::Reference;
        }
        let is_lent = loans.is_some_and(|loans| {
            let slice = cargo.plan().slices().get(slice as usize);
            let span_bytes = slice.map_or(0, |slice| slice.bytes / slice.spans.max(1));
            loans.lend_all(&lane, cargo.regions(), span_bytes)
        });
        if !is_lent && is_pair && tie.has_failed() {
            return Way::Nowhere;
        }
        if !is_lent && cargo.terms().rdma_only {
            let is_going = cargo.regions().iter().any(|region| region.is_closing());
            return Way::Impossible(if is_going { Error::RegionWithdrawn } else { unregistered() });
        }
        if is_lent {
            cargo.referred_to();
        }
        if is_pair {
            cargo.carried_by(if is_lent { Transport::Rdma } else { Transport::Tcp });
        }
        if is_lent { Way::Reference } else { Way::Payload }
    }

    /// Why memory of a device does not go by a lane that has no queue pair.
    fn not_by(&self, transport: Transport) -> Error {
        // Only where it is the best has it failed; it may be back soon.
        let best = self.transport(Means::Best);
        let failure = self.session.lock().not_best().filter(|_| best == Some(Transport::Rdma));
        match failure {
            Some(reason) => Error::RdmaFailed { peer: self.endpoint.clone(), reason },
            None => Error::RdmaOnly { reason: self.carried_by(transport).into() },
        }
    }

    /// That this transport carries transfers to the peer, and why it is not RDMA.
    pub(crate) fn carried_by(&self, transport: Transport) -> String {
        let why = self.offer().and_then(|offer| offer.why.not_rdma);
        let why = why.map_or_else(String::new, |why| format!(", and not RDMA ({why})"));
        format!("{transport} carries transfers to {}{why}", self.endpoint)
    }
}

/// Why memory of a device does not go by a lane that has a queue pair.
pub(super) fn unregistered() -> Error {
    let reason = "the adapter of the lane does not reach what is moved, or not all of it: it is a file, was \
                  not registered, for which the log has the reason, or is one of too many regions";
    Error::RdmaOnly { reason: reason.into() }
}
