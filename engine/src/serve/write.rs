//! A payload on its way into this process's memory.

use std::sync::Arc;

use kvferry_proto::frame::{Reply, Status};
use kvferry_proto::{LaneId, TransferId};
use kvferry_transport::lanes::{Landed, Landing, Lane, Store, Storer};
use kvferry_transport::memory::SpanList;

use super::Initiator;
use super::authority::Authority;
use super::requests::{Announced, deliver};
use crate::core::Core;
use crate::passage;

/// A write slice, on the lane that it came on.
pub(super) struct SliceOf {
    pub(super) core: Arc<Core>,
    pub(super) initiator: Arc<Initiator>,
    pub(super) lane: LaneId,
    pub(super) transfer: TransferId,
    pub(super) slice: u32,
    pub(super) answer_now: bool,
}

impl SliceOf {
    /// It is dealt with: the initiator is told how.
    pub(super) fn acknowledge(&self, lane: &Lane, status: Status) {
        // Before the answer: what follows from it may come on another lane.
        self.initiator.inbound.lock().end_landing(self.lane, self.transfer, self.slice);
        self.core.initiators.count(status);
        let mut frame = Vec::new();
        Reply::Ack { transfer: self.transfer, slice: self.slice, status }.encode_plain(&mut frame);
        if self.answer_now || status != Status::Done {
            lane.send(&frame);
        } else {
            lane.send_later(&frame);
        }
    }
}

pub(super) struct WriteLanding {
    pub(super) slice: SliceOf,
    pub(super) crc32c: Option<u32>,
    pub(super) notification: Option<Arc<[u8]>>,
    /// Why not, where the slice is refused.
    pub(super) target: Result<(Authority, SpanList), Status>,
}

impl WriteLanding {
    fn end(&mut self, landed: Landed) -> Status {
        let (authority, spans) = match &mut self.target {
            Ok(target) => target,
            Err(_) if planted!(FalseAck) => return Status::Done,
            Err(status) => return *status,
        };
        match landed {
            Landed::Whole => {}
            Landed::Refused => return Status::Cancelled,
            Landed::Fault => return Status::MemoryFault,
        }
        if let Some(expected) = self.crc32c {
            let found = passage::enter(|| {
                authority.check()?;
                spans.crc32c().map_err(|_| Status::MemoryFault)
            });
            match found {
                Ok(found) if found == expected => {}
                Ok(_) => return Status::ChecksumMismatch,
                Err(status) => return status,
            }
        }
        match self.notification.take() {
            Some(bytes) => {
                let SliceOf { core, initiator, lane, transfer, slice, .. } = &self.slice;
                let rides_with = Some(*slice);
                let announced = Announced { lane: *lane, transfer: *transfer, rides_with };
                deliver(core, initiator, announced, bytes)
            }
            None => Status::Done,
        }
    }
}

impl Landing for WriteLanding {
    fn store(&mut self, storer: &mut Storer<'_>) -> Store {
        let Ok((authority, spans)) = &mut self.target else { return Store::Refused };
        let stored = passage::enter(|| {
            // What is still queued on a broken connection comes from an initiator that has given
            // up on it, and may have told its caller so.
            if storer.is_unhealthy() {
                return Err(Status::Cancelled);
            }
            if !planted!(LateWrite) {
                authority.check()?;
            }
            Ok(storer.store(spans))
        });
        match stored {
            Ok(stored) => Store::Stored(stored),
            Err(status) => {
                self.target = Err(status);
                Store::Refused
            }
        }
    }

    fn finish(mut self: Box<Self>, lane: &Lane, landed: Landed) {
        let status = self.end(landed);
        self.slice.acknowledge(lane, status);
    }
}
