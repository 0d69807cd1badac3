//! The handler of a lane that an initiator opened: what each request comes to.

use std::sync::Arc;

use kvferry_proto::frame::{Control, Prefix, Reply, Request, SliceRequest, Status};
use kvferry_proto::{Access, LaneId, TransferId};
use kvferry_transport::lanes::{CloseReason, Incoming, Lane, LaneHandler};

use super::Initiator;
use super::authority::Authority;
use super::fetched;
use super::lent::{self, Holds, LentTarget, LentWrite};
use super::read::DataFrame;
use super::write::{SliceOf, WriteLanding};
use crate::core::Core;
use crate::inbox::Notification;
use crate::lanes::Tie;
use crate::loan::{BUSY_BYTES, NOT_LENT_HERE};
use crate::passage;

pub(crate) struct RequestHandler {
    core: Arc<Core>,
    initiator: Arc<Initiator>,
    lane: LaneId,
    tie: Tie,
    holds: Arc<Holds>,
}

impl RequestHandler {
    pub(crate) fn new(core: Arc<Core>, initiator: Arc<Initiator>, lane: LaneId, tie: Tie) -> Self {
        Self { core, initiator, lane, tie, holds: Arc::default() }
    }

    fn handle(&self, lane: &Lane, prefix: &Prefix, head: &[u8]) -> Result<Incoming, String> {
        let request = Request::decode(prefix, head).map_err(|error| error.to_string())?;
        match request {
            Request::Write(slice) => self.write(lane, prefix, &slice),
            Request::Read(slice) => self.read(lane, prefix, &slice),
            Request::Notify { transfer, floor, notification } => {
                self.observe(transfer, floor)?;
                let announced = Announced { lane: self.lane, transfer, rides_with: None };
                let status = deliver(&self.core, &self.initiator, announced, notification.into());
                self.core.initiators.count(status);
                reply(lane, Reply::Notified { transfer, status });
                Ok(Incoming::Done)
            }
            Request::Control(control) => self.control(lane, control),
            Request::Lend(loan) => match &self.tie {
                Tie::Host(lending) => {
                    lending.borrowings.take(lane, loan)?;
                    Ok(Incoming::Done)
                }
                Tie::Nothing | Tie::Pair(_) => Err(NOT_LENT_HERE.into()),
            },
            Request::LendKey(loan) => match &self.tie {
                Tie::Pair(link) => {
                    link.keys.take(loan)?;
                    Ok(Incoming::Done)
                }
                Tie::Nothing | Tie::Host(_) => Err(NOT_LENT_HERE.into()),
            },
            Request::Recall(region) => {
                match &self.tie {
                    Tie::Host(lending) => lending.borrowings.give_back(region),
                    Tie::Pair(link) => link.keys.give_back(region),
                    Tie::Nothing => return Err(NOT_LENT_HERE.into()),
                }
                Ok(Incoming::Done)
            }
        }
    }

    fn observe(&self, transfer: TransferId, floor: TransferId) -> Result<(), String> {
        let mut inbound = self.initiator.inbound.lock();
        inbound.observe(transfer, floor).map_err(|violation| violation.to_string())
    }

    fn establish(
        &self,
        request: &SliceRequest<'_>,
        wanted: Access,
    ) -> Result<(Authority, kvferry_transport::memory::SpanList), Status> {
        Authority::establish(&self.core.registry, &self.initiator, self.lane, request, wanted)
    }

    fn write(
        &self,
        lane: &Lane,
        prefix: &Prefix,
        request: &SliceRequest<'_>,
    ) -> Result<Incoming, String> {
        let head = request.head;
        self.observe(head.transfer, head.floor)?;
        // Looked at first: a frame that breaks the protocol begins nothing.
        if request.sources.is_some() && matches!(self.tie, Tie::Nothing) {
            return Err(NOT_LENT_HERE.into());
        }
        let begun = {
            let mut inbound = self.initiator.inbound.lock();
            // A repeat of what was announced: its memory may be somebody else's by now.
            if inbound.is_delivered(head.transfer) {
                Err(Status::Done)
            } else {
                inbound.begin_landing(self.lane, head.transfer, head.slice)
            }
        };
        let is_fetched = request.sources.is_some() && matches!(self.tie, Tie::Pair(_));
        let target = begun.and_then(|()| self.establish(request, Access::Write));
        let target = match target {
            Ok((authority, _)) if authority.is_on_device() && !is_fetched => Err(Status::RdmaOnly),
            target => target,
        };
        let slice = SliceOf {
            core: self.core.clone(),
            initiator: self.initiator.clone(),
            lane: self.lane,
            transfer: head.transfer,
            slice: head.slice,
            answer_now: prefix.answer_now,
        };
        match (request.sources, &self.tie) {
            (Some(named), Tie::Host(lending)) => {
                let target = target.and_then(|(authority, to)| {
                    let from = lent::sources(named, &lending.borrowings)?;
                    Ok(LentTarget { authority, to, from })
                });
                return Ok(Incoming::Work(Box::new(LentWrite::new(slice, target))));
            }
            (Some(named), Tie::Pair(link)) => {
                fetched::write(slice, named, target, link, lane);
                return Ok(Incoming::Done);
            }
            (None, _) | (Some(_), Tie::Nothing) => {}
        }
        Ok(Incoming::Payload(Box::new(WriteLanding {
            slice,
            crc32c: prefix.checksum.then_some(head.crc32c),
            notification: request.notification.map(Into::into),
            target,
        })))
    }

    fn read(
        &self,
        lane: &Lane,
        prefix: &Prefix,
        request: &SliceRequest<'_>,
    ) -> Result<Incoming, String> {
        let (transfer, slice) = (request.head.transfer, request.head.slice);
        self.observe(transfer, request.head.floor)?;
        let loans =
            if prefix.by_reference { Some(self.tie.loans().ok_or(NOT_LENT_HERE)?) } else { None };
        match self.establish(request, Access::Read) {
            Ok((authority, _))
                if loans.is_some_and(|loans| {
                    self.holds.has_room(request.head.floor)
                        && loans.lend_all(
                            lane,
                            &authority.regions,
                            request.total.bytes / request.total.spans.max(1),
                        )
                }) =>
            {
                self.holds.hold(transfer, slice, authority, request.total.bytes);
                let status = Status::HeldUntilLanded;
                reply_later(lane, Reply::Held { transfer, slice, status });
                return Ok(self.unless_copied_from());
            }
            // A lane whose queue pair has failed goes, and who asked asks again on another.
            Ok((authority, _)) if authority.is_on_device() && self.tie.has_failed() => {}
            Ok((authority, _)) if authority.is_on_device() => {
                let status = Status::RdmaOnly;
                self.core.initiators.count(status);
                reply(lane, Reply::Held { transfer, slice, status });
            }
            Ok((authority, spans)) => lane.send_bulk(Box::new(DataFrame {
                core: self.core.clone(),
                authority,
                spans,
                transfer,
                slice,
                payload_bytes: request.total.bytes,
                checksum: prefix.checksum,
                holds: self.holds.has_room(request.head.floor).then(|| self.holds.clone()),
                lent: false,
                refused: None,
            })),
            Err(status) => {
                self.core.initiators.count(status);
                reply(lane, Reply::Held { transfer, slice, status });
            }
        }
        Ok(Incoming::Done)
    }

    fn control(&self, lane: &Lane, control: Control) -> Result<Incoming, String> {
        let inbound = &self.initiator.inbound;
        match control {
            Control::Cancel { transfer, floor } => {
                self.observe(transfer, floor)?;
                if !planted!(FalseFence) {
                    inbound.lock().cancel(transfer);
                }
                passage::quiesce();
                reply(lane, Reply::Cancelled { transfer });
            }
            Control::FenceLane { lane: lost } => {
                inbound.lock().fence_lane(lost);
                passage::quiesce();
                if let Some(lost) = self.initiator.lanes.get(lost) {
                    lost.lane.reset();
                }
                reply(lane, Reply::LaneFenced { lane: lost });
            }
            Control::Ping { nonce, floor } => {
                self.observe(floor, floor)?;
                reply(lane, Reply::Pong { nonce });
                return Ok(Incoming::Quiet);
            }
            Control::Landed { transfer, slice } => {
                let status = self.holds.landed(transfer, slice);
                self.core.initiators.count(status);
                reply_later(lane, Reply::Held { transfer, slice, status });
                return Ok(self.unless_copied_from());
            }
        }
        Ok(Incoming::Done)
    }

    /// A frame is dealt with. Nothing more comes soon where the initiator has much to copy.
    fn unless_copied_from(&self) -> Incoming {
        let is_copied_from = matches!(self.tie, Tie::Host(_)) && self.holds.bytes() >= BUSY_BYTES;
        if is_copied_from { Incoming::Quiet } else { Incoming::Done }
    }
}

impl LaneHandler for RequestHandler {
    fn on_frame(&self, lane: &Lane, prefix: &[u8; Prefix::BYTES], head: &[u8]) -> Incoming {
        self.initiator.hear();
        let handled = Prefix::decode(prefix)
            .map_err(|error| error.to_string())
            .and_then(|prefix| self.handle(lane, &prefix, head));
        handled.unwrap_or_else(Incoming::Violation)
    }

    fn on_closed(&self, _lane: &Lane, reason: &CloseReason) {
        self.holds.clear();
        self.tie.close();
        let from = self.initiator.incarnation;
        match reason {
            CloseReason::Violation(what) => {
                tracing::warn!(%from, lane = %self.lane, what, "a peer broke the protocol");
            }
            reason => tracing::debug!(%from, lane = %self.lane, %reason, "lane closed"),
        }
        self.initiator.remove_lane(self.lane);
    }
}

fn reply(lane: &Lane, reply: Reply) {
    lane.send(&encoded(reply));
}

/// Replies once nothing more of what the initiator has sent can be dealt with.
fn reply_later(lane: &Lane, reply: Reply) {
    lane.send_later(&encoded(reply));
}

fn encoded(reply: Reply) -> Vec<u8> {
    let mut frame = Vec::new();
    reply.encode_plain(&mut frame);
    frame
}

/// A notification, as it came.
#[derive(Clone, Copy)]
pub(super) struct Announced {
    pub(super) lane: LaneId,
    pub(super) transfer: TransferId,
    /// The slice that it came with, if it did.
    pub(super) rides_with: Option<u32>,
}

/// Delivers a transfer's notification that came on a lane to the program, once.
pub(super) fn deliver(
    core: &Core,
    initiator: &Initiator,
    Announced { lane, transfer, rides_with }: Announced,
    bytes: Arc<[u8]>,
) -> Status {
    if planted!(LostNotification) {
        return Status::Done;
    }
    {
        let mut inbound = initiator.inbound.lock();
        if inbound.is_delivered(transfer) && !planted!(RepeatedNotification) {
            return Status::Done;
        }
        // A lane that is fenced announces nothing: the repeat that follows the fence does.
        if let Err(status) = inbound.check_notification(lane, transfer, rides_with) {
            return status;
        }
        let from = initiator.incarnation;
        if !core.inbox.insert(Notification { from, transfer, bytes }) {
            return Status::Backpressure;
        }
        inbound.delivered(transfer);
    }
    // Whoever is woken runs code of the program: under no lock.
    core.inbox.announce();
    Status::Done
}
