//! What comes back on the lanes that this engine opened.

use std::sync::{Arc, Weak};

use kvferry_proto::frame::{Prefix, Reply, Status};
use kvferry_proto::{LaneId, RegionId, TransferId};
use kvferry_transport::lanes::{
    CloseReason, Incoming, Landed, Landing, Lane, LaneHandler, Store, Storer,
};
use kvferry_transport::memory::SpanList;

use super::PeerInner;
use super::fetched;
use super::lent::{LentRead, SliceOf};
use super::way::unregistered;
use crate::error::Error;
use crate::lanes::Tie;
use crate::loan::{BUSY_BYTES, Borrowings, NOT_LENT_HERE};
use crate::passage;
use crate::rdma::LaneEnd;
use crate::transfer::cargo::{Cargo, Permit};
use crate::transports::Transport;

/// Handles one lane's replies. It does not keep the peer alive.
pub(crate) struct ReplyHandler {
    peer: Weak<PeerInner>,
    lane: LaneId,
    tie: Tie,
    /// Told when the lane is gone.
    on_gone: Option<OnGone>,
}

/// What is to be done when a lane is gone.
pub(crate) type OnGone = Box<dyn Fn(LaneEnd) + Send + Sync>;

impl ReplyHandler {
    pub(crate) fn new(
        peer: Weak<PeerInner>,
        lane: LaneId,
        tie: Tie,
        on_gone: Option<OnGone>,
    ) -> Self {
        Self { peer, lane, tie, on_gone }
    }

    /// What the other end has lent, or how it breaks the protocol by lending.
    fn borrowings(&self) -> Result<&Borrowings, String> {
        match &self.tie {
            Tie::Host(lending) => Ok(&lending.borrowings),
            Tie::Nothing | Tie::Pair(_) => Err(NOT_LENT_HERE.into()),
        }
    }

    /// Whether the other end has so much to copy by now that nothing comes of it soon.
    fn is_copied_from(&self, peer: &PeerInner) -> bool {
        matches!(self.tie, Tie::Host(_)) && peer.out_bytes(self.lane) >= BUSY_BYTES
    }

    /// How the queue pair of the lane has failed, here or at the other end, where it has.
    fn failure(&self, peer: &PeerInner, reason: &CloseReason) -> Option<Error> {
        let Tie::Pair(link) = &self.tie else { return None };
        let reason = match (link.failure(), reason) {
            (Some(why), _) => why,
            (None, CloseReason::Failed(error)) => {
                format!("the other end broke off: {error}").into()
            }
            _ => return None,
        };
        Some(Error::RdmaFailed { peer: peer.endpoint.clone(), reason })
    }

    /// The other end wants a region back.
    fn give_back(&self, region: RegionId) -> Result<(), String> {
        match &self.tie {
            Tie::Pair(link) => link.keys.give_back(region),
            Tie::Nothing | Tie::Host(_) => self.borrowings()?.give_back(region),
        }
        Ok(())
    }

    /// The source of a read slice is held until it has landed: for this end to copy it, or since what
    /// came before this were its pages.
    fn lent(
        &self,
        peer: &Arc<PeerInner>,
        lane: &Lane,
        transfer: TransferId,
        slice: u32,
    ) -> Incoming {
        match peer.awaits(self.lane, transfer, slice) {
            Some(cargo) => {
                if let Tie::Pair(link) = &self.tie {
                    let peer = self.peer.clone();
                    let slice = SliceOf { peer, lane: self.lane, transfer, slice };
                    return fetched::begin(slice, cargo, link, lane);
                }
                let borrowings = match self.borrowings() {
                    Ok(borrowings) => borrowings,
                    Err(what) => return Incoming::Violation(what),
                };
                let slice = SliceOf { peer: self.peer.clone(), lane: self.lane, transfer, slice };
                LentRead::begin(slice, cargo, borrowings)
            }
            None => {
                // Its pages have landed; or it has ended meanwhile, which the session counts.
                let status = Status::HeldUntilLanded;
                peer.reply(self.lane, Reply::Held { transfer, slice, status });
                Incoming::Done
            }
        }
    }

    fn data(
        &self,
        peer: &Arc<PeerInner>,
        prefix: &Prefix,
        transfer: TransferId,
        slice: u32,
        crc32c: u32,
    ) -> Incoming {
        let mut cargo = peer.awaits(self.lane, transfer, slice);
        // The peer's memory is none that it lends. What comes of it is dropped.
        if let Some(cargo) = cargo.take_if(|cargo| cargo.terms().rdma_only) {
            cargo.fail(unregistered());
        }
        if let (Some(cargo), Tie::Pair(_)) = (&cargo, &self.tie) {
            cargo.carried_by(Transport::Tcp);
        }
        let landing = DataLanding {
            peer: self.peer.clone(),
            lane: self.lane,
            cargo,
            transfer,
            slice,
            crc32c: prefix.checksum.then_some(crc32c),
            spans: SpanList::new(),
        };
        match landing.with_spans(prefix.payload_bytes) {
            Ok(landing) => Incoming::Payload(Box::new(landing)),
            Err(what) => Incoming::Violation(what),
        }
    }
}

impl LaneHandler for ReplyHandler {
    fn on_frame(&self, lane: &Lane, prefix: &[u8; Prefix::BYTES], head: &[u8]) -> Incoming {
        let Some(peer) = self.peer.upgrade() else {
            return Incoming::Violation("nobody waits for replies any more".into());
        };
        let decoded = Prefix::decode(prefix)
            .and_then(|prefix| Reply::decode(&prefix, head).map(|reply| (prefix, reply)));
        match decoded {
            Ok((prefix, Reply::Data { transfer, slice, crc32c })) => {
                self.data(&peer, &prefix, transfer, slice, crc32c)
            }
            Ok((_, Reply::Held { transfer, slice, status: Status::HeldUntilLanded })) => {
                self.lent(&peer, lane, transfer, slice)
            }
            Ok((_, Reply::Lent(loan))) => {
                let taken = self.borrowings().and_then(|borrowings| borrowings.take(lane, loan));
                taken.map_or_else(Incoming::Violation, |()| Incoming::Done)
            }
            Ok((_, Reply::LentKey(loan))) => {
                let taken = match &self.tie {
                    Tie::Pair(link) => link.keys.take(loan),
                    Tie::Nothing | Tie::Host(_) => Err(NOT_LENT_HERE.into()),
                };
                taken.map_or_else(Incoming::Violation, |()| Incoming::Done)
            }
            Ok((_, Reply::Recalled(region))) => {
                let given_back = self.give_back(region);
                given_back.map_or_else(Incoming::Violation, |()| Incoming::Done)
            }
            Ok((_, reply)) => {
                match (&self.tie, reply) {
                    (Tie::Pair(link), Reply::Ack { transfer, status: Status::Done, .. }) => {
                        if peer.acknowledged(self.lane, transfer, reply) {
                            link.note_carried();
                        }
                    }
                    _ => peer.reply(self.lane, reply),
                }
                let is_quiet = match reply {
                    Reply::Pong { .. } => true,
                    Reply::Ack { .. } => self.is_copied_from(&peer),
                    _ => false,
                };
                if is_quiet { Incoming::Quiet } else { Incoming::Done }
            }
            Err(error) => Incoming::Violation(error.to_string()),
        }
    }

    fn on_idle(&self, _lane: &Lane) {
        if let Some(peer) = self.peer.upgrade() {
            peer.lane_idle(self.lane);
        }
    }

    fn on_closed(&self, _lane: &Lane, reason: &CloseReason) {
        let has_failed =
            self.tie.has_failed() || !matches!(reason, CloseReason::Local | CloseReason::Reset);
        self.tie.close();
        if let Some(on_gone) = &self.on_gone {
            let has_carried = matches!(&self.tie, Tie::Pair(link) if link.has_carried());
            on_gone(LaneEnd { has_failed, has_carried });
        }
        if let Some(peer) = self.peer.upgrade() {
            tracing::debug!(peer = %peer.endpoint, lane = %self.lane, %reason, "lane closed");
            peer.lane_closed(self.lane, self.failure(&peer, reason));
        }
    }
}

/// The payload of a read slice on its way into this process's memory.
struct DataLanding {
    peer: Weak<PeerInner>,
    lane: LaneId,
    /// `None` when nobody waits for it any more: it is read and dropped.
    cargo: Option<Arc<Cargo>>,
    transfer: TransferId,
    slice: u32,
    crc32c: Option<u32>,
    spans: SpanList,
}

impl DataLanding {
    fn with_spans(mut self, payload_bytes: u32) -> Result<Self, String> {
        let Some(cargo) = &self.cargo else { return Ok(self) };
        let slice = cargo.plan().slices().get(self.slice as usize);
        let Some(slice) = slice.filter(|slice| slice.bytes == payload_bytes) else {
            return Err(format!("{payload_bytes} bytes for slice {}", self.slice));
        };
        match cargo.local_spans(slice) {
            Ok(spans) => self.spans = spans,
            // It has ended meanwhile.
            Err(_) if cargo.permit() != Permit::Open => self.cargo = None,
            Err(error) => return Err(error.to_string()),
        }
        Ok(self)
    }

    /// Whether the bytes in place are those that were sent.
    fn check(&mut self, cargo: &Cargo) -> Result<(), Error> {
        let Some(expected) = self.crc32c else { return Ok(()) };
        let spans = &mut self.spans;
        let found = passage::enter(|| match cargo.permit() {
            Permit::Open => spans.crc32c(),
            _ => Ok(expected),
        });
        match found {
            Ok(found) if found == expected => Ok(()),
            Ok(_) => Err(Error::ChecksumMismatch { slice: self.slice }),
            Err(_) => Err(Error::MemoryFault),
        }
    }
}

impl Landing for DataLanding {
    fn store(&mut self, storer: &mut Storer<'_>) -> Store {
        let Some(cargo) = &self.cargo else { return Store::Refused };
        let spans = &mut self.spans;
        passage::enter(|| match cargo.permit() {
            Permit::Open => Store::Stored(storer.store(spans)),
            _ => Store::Refused,
        })
    }

    fn finish(mut self: Box<Self>, _lane: &Lane, landed: Landed) {
        let Some(cargo) = self.cargo.take() else { return };
        let landed = match landed {
            Landed::Whole => self.check(&cargo),
            Landed::Refused => return,
            Landed::Fault => Err(Error::MemoryFault),
        };
        if let Some(peer) = self.peer.upgrade() {
            let (lane, transfer, slice) = (self.lane, self.transfer, self.slice);
            peer.event(|session, now| session.on_landed(now, lane, transfer, slice, landed));
        }
    }
}
