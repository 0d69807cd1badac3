//! Read slices that this process copies by itself, from memory that the peer has lent.

use std::sync::{Arc, Weak};

use kvferry_proto::frame::{Reply, Status};
use kvferry_proto::{LaneId, TransferId};
use kvferry_transport::lanes::{Incoming, Lane, Line, Progress, Work};
use kvferry_transport::local::PeerSpans;
use kvferry_transport::memory::SpanList;

use super::PeerInner;
use crate::error::Error;
use crate::loan::{Borrowings, PIECE_BYTES, Uncopied};
use crate::passage;
use crate::transfer::cargo::{Cargo, Permit};

/// A slice of a peer's, on a lane.
pub(super) struct SliceOf {
    pub(super) peer: Weak<PeerInner>,
    pub(super) lane: LaneId,
    pub(super) transfer: TransferId,
    pub(super) slice: u32,
}

/// A read slice on its way from the peer's memory into this process's. Its source is held until it
/// is said to have landed.
pub(super) struct LentRead {
    of: SliceOf,
    cargo: Arc<Cargo>,
    to: SpanList,
    from: PeerSpans,
    /// Why nothing more is copied, once that is so.
    stopped: Option<Stop>,
}

enum Stop {
    /// The slice has failed.
    Failed(Error),
    /// The source is not there.
    NoSource,
    /// Nobody waits for it any more.
    Unwanted,
    /// The peer's memory is out of reach: the slice is to be asked for again, on another lane.
    OutOfReach,
}

impl LentRead {
    pub(super) fn begin(of: SliceOf, cargo: Arc<Cargo>, borrowings: &Borrowings) -> Incoming {
        let plan = cargo.plan();
        let Some(slice) = plan.slices().get(of.slice as usize) else {
            return Incoming::Violation(format!("there is no slice {}", of.slice));
        };
        let (to, from) = (cargo.local_spans(slice), cargo.lent_spans(slice, borrowings));
        let (to, from, stopped) = match (to, from) {
            (Ok(to), Ok(Some(from))) => {
                cargo.referred_to();
                (to, from, None)
            }
            // It has ended meanwhile.
            _ if cargo.permit() != Permit::Open => return Incoming::Done,
            // There was no room to map it; or it is shorter than the peer's table says.
            _ => (SpanList::new(), PeerSpans::new(), Some(Stop::Failed(Error::MemoryFault))),
        };
        Incoming::Work(Box::new(Self { of, cargo, to, from, stopped }))
    }
}

impl Work for LentRead {
    fn step(&mut self, _line: Line) -> Progress {
        if self.stopped.is_some() {
            return Progress::Over;
        }
        let (cargo, to, from) = (&self.cargo, &mut self.to, &mut self.from);
        let copied = passage::enter(|| match cargo.permit() {
            Permit::Open => Some(to.copy_from(from, PIECE_BYTES)),
            _ => None,
        });
        self.stopped = match copied.map(|copied| copied.map_err(Uncopied::from)) {
            Some(Ok(1..)) if self.to.remaining() == 0 => None,
            Some(Ok(copied @ 1..)) => return Progress::More(copied),
            // Both sides are as long as each other, so neither ends first.
            Some(Ok(0) | Err(Uncopied::Fault)) => Some(Stop::Failed(Error::MemoryFault)),
            Some(Err(Uncopied::PeerFault)) => Some(Stop::NoSource),
            Some(Err(Uncopied::OutOfReach)) => Some(Stop::OutOfReach),
            None => Some(Stop::Unwanted),
        };
        Progress::Over
    }

    fn finish(self: Box<Self>, lane: &Lane) {
        let Some(peer) = self.of.peer.upgrade() else { return };
        let SliceOf { lane: on, transfer, slice, .. } = self.of;
        let landed = match self.stopped {
            None => Ok(()),
            Some(Stop::Failed(error)) => Err(error),
            Some(Stop::NoSource) => {
                // As its owner would have said that had found out.
                let status = Status::MemoryFault;
                return peer.reply(on, Reply::Held { transfer, slice, status });
            }
            Some(Stop::Unwanted) => return,
            Some(Stop::OutOfReach) => return lane.reset(),
        };
        peer.event(|session, now| {
            let is_there = landed.is_ok();
            session.on_landed(now, on, transfer, slice, landed);
            if is_there {
                let status = Status::HeldUntilLanded;
                session.on_reply(now, on, Reply::Held { transfer, slice, status });
            }
        });
    }
}
