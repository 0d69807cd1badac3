//! From a request to memory: grants, bounds, and whether they still hold.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvferry_proto::frame::{Descriptor, FrameError, SliceRequest, Status};
use kvferry_proto::{Access, LaneId, RegionId, TransferId};
use kvferry_transport::memory::SpanList;

use super::Initiator;
use crate::registry::{GrantInner, RegionInner, Registry};
use crate::time;

/// Everything that must hold while a slice is stored or sent.
pub(super) struct Authority {
    initiator: Arc<Initiator>,
    lane: LaneId,
    transfer: TransferId,
    deadline: Instant,
    grants: Vec<Arc<GrantInner>>,
    /// The regions that the slice touches.
    pub(super) regions: Vec<Arc<RegionInner>>,
}

impl Authority {
    /// Finds the memory that a slice names, if all of it may be touched.
    pub(super) fn establish(
        registry: &Registry,
        initiator: &Arc<Initiator>,
        lane: LaneId,
        request: &SliceRequest<'_>,
        wanted: Access,
    ) -> Result<(Self, SpanList), Status> {
        let now = time::now();
        initiator.inbound.lock().check(lane, request.head.transfer)?;
        let remaining = Duration::from_micros(request.head.remaining_us);
        let mut authority = Self {
            initiator: initiator.clone(),
            lane,
            transfer: request.head.transfer,
            deadline: time::after(now, remaining),
            grants: Vec::new(),
            regions: Vec::new(),
        };
        let mut spans = SpanList::new();
        spans.reserve(request.total.spans as usize);
        let mut sections = request.sections;
        loop {
            let mut current: Option<Arc<GrantInner>> = None;
            let section = sections.next_section::<Refused>(|section, descriptor| {
                let grant = match &current {
                    Some(grant) => grant,
                    None => {
                        let grant = registry.grants().get(section.grant)?;
                        grant.check(initiator.incarnation, wanted, now)?;
                        let region = grant.region(section.region)?;
                        let memory = region.memory();
                        spans.attach(&memory.map_err(|_| Status::RegionGone)?);
                        authority.regions.push(region.clone());
                        current.insert(grant)
                    }
                };
                push(&mut spans, grant, section.region, &descriptor)?;
                Ok(())
            });
            authority.grants.extend(current);
            match section {
                Ok(Some(_)) => {}
                Ok(None) => return Ok((authority, spans)),
                Err(Refused(status)) => return Err(status),
            }
        }
    }

    /// Whether any of the memory is a device's: then its bytes go by an adapter or not at all.
    pub(super) fn is_on_device(&self) -> bool {
        self.regions.iter().any(|region| region.is_on_device())
    }

    /// Whether all of it still holds. To be asked inside a passage.
    pub(super) fn check(&self) -> Result<(), Status> {
        let now = time::now();
        if now >= self.deadline {
            return Err(Status::DeadlinePassed);
        }
        self.initiator.inbound.lock().check(self.lane, self.transfer)?;
        self.grants.iter().try_for_each(|grant| grant.check_alive(now))
    }
}

/// A status on its way out of the walk over sections.
pub(super) struct Refused(pub(super) Status);

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        Self(status)
    }
}

impl From<FrameError> for Refused {
    /// The list was walked before, when the request was decoded: this does not happen.
    fn from(_: FrameError) -> Self {
        Self(Status::OutOfBounds)
    }
}

fn push(
    spans: &mut SpanList,
    grant: &GrantInner,
    region: RegionId,
    descriptor: &Descriptor,
) -> Result<(), Status> {
    let end = descriptor.end().ok_or(Status::OutOfBounds)?;
    let all_covered = grant.covers(region, descriptor.offset, end);
    let mut offset = descriptor.offset;
    for _ in 0..descriptor.count {
        // The end of the last span does not overflow, so no other does.
        if !all_covered && !grant.covers(region, offset, offset + u64::from(descriptor.bytes)) {
            return Err(Status::OutOfBounds);
        }
        spans.push(offset, descriptor.bytes).map_err(|_| Status::OutOfBounds)?;
        offset = offset.wrapping_add(descriptor.stride);
    }
    Ok(())
}
