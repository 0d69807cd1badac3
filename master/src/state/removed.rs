//! Objects that were removed while somebody wrote them. Their room can be used again when nothing that
//! was allowed can land in it any more: by time, or earlier, when the writer says that it is done.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvferry_proto::Incarnation;
use kvferry_proto::pool::{SegmentId, Version};

use super::extents::Extent;
use super::moment::Moment;
use super::object::Object;
use super::segment::{Segment, Segments};

/// How many are remembered. Those beyond it wait for their time.
const MOST: usize = 65_536;

/// A copy that somebody may still be writing.
#[derive(Debug)]
struct Left {
    /// This one, and not one that has its number later.
    segment: Arc<Segment>,
    extent: Extent,
}

/// What one writer had begun.
#[derive(Debug)]
struct Begun {
    writer: Incarnation,
    copies: Vec<Left>,
    /// When its room can be used again anyway.
    quiet: Moment,
}

/// All of them, by their versions.
#[derive(Debug, Default)]
pub(super) struct Removed {
    begun: BTreeMap<Version, Begun>,
}

impl Removed {
    /// This was taken out while it was written; its room waits until then.
    pub(super) fn add(&mut self, segments: &Segments, object: &Object, quiet: Moment) {
        let Some(writer) = object.writer.map(super::object::Writer::client) else { return };
        if self.begun.len() >= MOST {
            return;
        }
        let left = |copy: super::object::Copy| {
            let extent = Extent::holding(copy.offset, object.length)?;
            Some(Left { segment: segments.get(copy.slot)?.clone(), extent })
        };
        let copies = object.copies.iter().filter_map(left).collect();
        self.begun.insert(object.version, Begun { writer, copies, quiet });
    }

    /// Its writer says that it is done, but for copies in segments that are `lost`: the others can be
    /// given out again.
    pub(super) fn done(
        &mut self,
        now: Moment,
        writer: Incarnation,
        version: Version,
        lost: &[SegmentId],
    ) {
        if self.begun.get(&version).is_none_or(|begun| begun.writer != writer) {
            return;
        }
        let Some(begun) = self.begun.remove(&version) else { return };
        for copy in begun.copies {
            if !lost.contains(&copy.segment.placed.lent.segment) {
                copy.segment.hasten(now, begun.quiet, copy.extent);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.begun.is_empty()
    }

    /// Forgets those whose time is over.
    pub(super) fn tend(&mut self, now: Moment) {
        self.begun.retain(|_, begun| begun.quiet > now);
    }
}
