//! Write slices that this process's adapter fetches, from memory that the initiator has lent by key.

use kvferry_proto::frame::{Sections, Status};
use kvferry_transport::lanes::Lane;
use kvferry_transport::memory::SpanList;
use kvferry_transport::rdma::fetch::{Fetch, RemoteSpan};

use super::authority::{Authority, Refused};
use super::write::SliceOf;
use crate::rdma::{BorrowedKeys, End, Errand, LentRegion, Link};

/// A write slice on its way from the initiator's memory into this process's.
struct FetchedWrite {
    slice: SliceOf,
    authority: Authority,
}

/// Has a slice fetched, if it may land and all of its source is lent; the initiator is told how it
/// ended.
pub(super) fn write(
    slice: SliceOf,
    named: Sections<'_>,
    target: Result<(Authority, SpanList), Status>,
    link: &Link,
    lane: &Lane,
) {
    let ready = target.and_then(|(authority, here)| {
        let there = sources(named, &link.keys)?;
        // Both are as long as the slice, as was seen when it was read.
        Ok((authority, Fetch::new(there, &here).ok_or(Status::OutOfBounds)?))
    });
    match ready {
        Ok((authority, fetch)) => {
            let id = (slice.transfer, slice.slice);
            // That it is the only one of its id was seen when its landing began.
            link.fetch(id, fetch, Box::new(FetchedWrite { slice, authority }), lane);
        }
        Err(status) => slice.acknowledge(lane, status),
    }
}

impl Errand for FetchedWrite {
    fn is_allowed(&self) -> bool {
        self.authority.check().is_ok()
    }

    fn finish(self: Box<Self>, lane: &Lane, end: End) {
        let status = match end {
            End::InPlace => Status::Done,
            End::Forbidden => self.authority.check().err().unwrap_or(Status::Cancelled),
            // The adapter of this lane does not have it.
            End::NoTarget if self.authority.is_on_device() => Status::RdmaOnly,
            End::NoSource | End::NoTarget => Status::MemoryFault,
        };
        self.slice.acknowledge(lane, status);
    }
}

/// The spans that an initiator names in what it has lent.
fn sources(mut sections: Sections<'_>, keys: &BorrowedKeys) -> Result<Vec<RemoteSpan>, Status> {
    let mut spans = Vec::new();
    let mut current: Option<(_, LentRegion)> = None;
    loop {
        let section = sections.next_section::<Refused>(|section, descriptor| {
            let region = match &current {
                Some((id, region)) if *id == section.region => region,
                _ => {
                    let region = keys.region(section.region).ok_or(Status::RegionGone)?;
                    &current.insert((section.region, region)).1
                }
            };
            region.push(&descriptor, &mut spans)?;
            Ok(())
        });
        match section {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(spans),
            Err(Refused(status)) => return Err(status),
        }
    }
}
