//! Memory that the other end of a lane has lent by key.

use std::collections::HashMap;
use std::sync::Arc;

use kvferry_proto::RegionId;
use kvferry_proto::frame::{Descriptor, KeyLoan, Status};
use kvferry_transport::rdma::fetch::RemoteSpan;
use kvferry_transport::rdma::verbs::RemoteAddress;
use parking_lot::Mutex;

/// How many parts of regions the other end may lend on one lane.
const MOST_PARTS: usize = 65_536;

/// The parts of regions that the other end has lent on one lane. Keys of regions that are gone name
/// nothing any more at their owner's adapter, so nothing depends on what is remembered here.
#[derive(Debug, Default)]
pub(crate) struct BorrowedKeys(Mutex<Borrowed>);

#[derive(Debug, Default)]
struct Borrowed {
    /// The parts of each region, in order and without gaps.
    regions: HashMap<RegionId, Arc<Vec<KeyLoan>>>,
    parts: usize,
}

impl BorrowedKeys {
    /// The other end lends a part.
    ///
    /// # Errors
    /// How that breaks the protocol.
    pub(crate) fn take(&self, loan: KeyLoan) -> Result<(), String> {
        let mut borrowed = self.0.lock();
        if borrowed.parts >= MOST_PARTS {
            return Err(format!("more than {MOST_PARTS} parts were lent on one lane"));
        }
        let parts = borrowed.regions.entry(loan.region).or_default();
        let end = parts.last().map_or(0, |last| last.offset + last.bytes);
        if loan.offset != end {
            return Err(format!("a part was lent at {}, where {end} was due", loan.offset));
        }
        Arc::make_mut(parts).push(loan);
        borrowed.parts += 1;
        Ok(())
    }

    /// The other end wants a region back.
    pub(crate) fn give_back(&self, region: RegionId) {
        let mut borrowed = self.0.lock();
        if let Some(parts) = borrowed.regions.remove(&region) {
            borrowed.parts -= parts.len();
        }
    }

    /// The lane is closed.
    pub(crate) fn clear(&self) {
        *self.0.lock() = Borrowed::default();
    }

    /// What is lent of a region.
    pub(crate) fn region(&self, region: RegionId) -> Option<LentRegion> {
        self.0.lock().regions.get(&region).cloned().map(LentRegion)
    }
}

/// A region that is lent.
#[derive(Debug)]
pub(crate) struct LentRegion(Arc<Vec<KeyLoan>>);

impl LentRegion {
    /// Appends the spans of a descriptor.
    ///
    /// # Errors
    /// [`Status::OutOfBounds`] where one of them reaches outside.
    pub(crate) fn push(
        &self,
        descriptor: &Descriptor,
        spans: &mut Vec<RemoteSpan>,
    ) -> Result<(), Status> {
        // The end of the last does not overflow, so no other does.
        descriptor.end().ok_or(Status::OutOfBounds)?;
        let mut offset = descriptor.offset;
        for _ in 0..descriptor.count {
            self.push_span(offset, descriptor.bytes, spans)?;
            offset = offset.wrapping_add(descriptor.stride);
        }
        Ok(())
    }

    /// Appends a span, cut where parts end.
    pub(crate) fn push_span(
        &self,
        mut offset: u64,
        mut bytes: u32,
        spans: &mut Vec<RemoteSpan>,
    ) -> Result<(), Status> {
        let mut at = self.0.partition_point(|part| part.offset + part.bytes <= offset);
        while bytes > 0 {
            let part = self.0.get(at).ok_or(Status::OutOfBounds)?;
            let inside = offset - part.offset;
            let taken = u32::try_from(part.bytes - inside).unwrap_or(u32::MAX).min(bytes);
            let at_part = RemoteAddress { address: part.address + inside, key: part.key };
            spans.push(RemoteSpan { at: at_part, bytes: taken });
            (offset, bytes, at) = (offset + u64::from(taken), bytes - taken, at + 1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: RegionId = RegionId { slot: 3, generation: 1 };

    fn part(offset: u64, bytes: u64, key: u32) -> KeyLoan {
        KeyLoan { region: REGION, offset, bytes, address: 0x10_000 + offset, key }
    }

    fn run(offset: u64, bytes: u32, count: u32, stride: u64) -> Descriptor {
        Descriptor { offset, bytes, count, stride }
    }

    #[test]
    fn spans_are_found_in_their_parts_and_cut_between_them() {
        let keys = BorrowedKeys::default();
        keys.take(part(0, 100, 7)).unwrap();
        keys.take(part(100, 50, 8)).unwrap();
        let region = keys.region(REGION).unwrap();
        let mut spans = Vec::new();
        region.push(&run(10, 20, 1, 0), &mut spans).unwrap();
        region.push(&run(90, 20, 1, 0), &mut spans).unwrap();
        region.push(&run(100, 10, 2, 40), &mut spans).unwrap();
        let found: Vec<_> =
            spans.iter().map(|s| (s.at.address - 0x10_000, s.at.key, s.bytes)).collect();
        assert_eq!(found, [(10, 7, 20), (90, 7, 10), (100, 8, 10), (100, 8, 10), (140, 8, 10)]);
    }

    #[test]
    fn what_reaches_outside_is_refused_and_parts_come_in_order() {
        let keys = BorrowedKeys::default();
        assert!(keys.take(part(1, 10, 7)).is_err(), "a gap");
        keys.take(part(0, 10, 7)).unwrap();
        assert!(keys.take(part(0, 10, 7)).is_err(), "twice");
        let region = keys.region(REGION).unwrap();
        for outside in [run(10, 1, 1, 0), run(9, 2, 1, 0), run(0, 1, 2, 10), run(u64::MAX, 1, 1, 0)]
        {
            let pushed = region.push(&outside, &mut Vec::new());
            assert_eq!(pushed, Err(Status::OutOfBounds), "{outside:?}");
        }
        keys.give_back(REGION);
        assert!(keys.region(REGION).is_none());
        keys.take(part(0, 10, 9)).unwrap();
    }

    #[test]
    fn what_may_be_lent_is_bounded() {
        let keys = BorrowedKeys::default();
        for at in 0..MOST_PARTS as u64 {
            keys.take(part(at, 1, 1)).unwrap();
        }
        assert!(keys.take(part(MOST_PARTS as u64, 1, 1)).is_err());
    }
}
