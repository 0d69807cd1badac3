//! The list of blocks, cut into what one call is offered.

use std::ops::Range;

use kvferry_engine::Region;
use kvferry_transport::local::{PeerMemory, PeerSpans};
use kvferry_transport::memory::SpanList;

use crate::shape::Placement;

/// What the engine's slices hold by default.
const SLICE_BYTES: u64 = 1 << 20;

/// The blocks as slices, each full but the last. Neighbours are one span, as they are where the
/// engine has coalesced them.
pub(super) fn slices(
    range: Range<u64>,
    region: &Region,
    placement: &Placement,
) -> anyhow::Result<Vec<SpanList>> {
    let memory = region.memory()?;
    let slice = |spans: Spans| {
        let mut slice = SpanList::new();
        slice.attach(&memory);
        slice.reserve(spans.len());
        for (offset, bytes) in spans {
            slice.push(offset, u32::try_from(bytes)?)?;
        }
        Ok(slice)
    };
    cut(range, placement).into_iter().map(slice).collect()
}

/// The same in memory of another process, cut alike.
pub(super) fn peer_slices(
    range: Range<u64>,
    memory: &PeerMemory,
    placement: &Placement,
) -> anyhow::Result<Vec<PeerSpans>> {
    let slice = |spans: Spans| {
        let mut slice = PeerSpans::new();
        slice.attach(memory);
        slice.reserve(spans.len());
        for (offset, bytes) in spans {
            slice.push(offset, u32::try_from(bytes)?)?;
        }
        Ok(slice)
    };
    cut(range, placement).into_iter().map(slice).collect()
}

/// Offset and length of each span of a slice.
type Spans = Vec<(u64, u64)>;

fn cut(range: Range<u64>, placement: &Placement) -> Vec<Spans> {
    let block_bytes = placement.shape().block_bytes;
    let mut slices = Slices::default();
    for block in range {
        let mut offset = placement.offset(block);
        let end = offset + block_bytes;
        while offset < end {
            offset += slices.append(offset, end - offset);
        }
    }
    slices.close();
    slices.done
}

/// Slices in the making.
#[derive(Default)]
struct Slices {
    done: Vec<Spans>,
    /// The one that has room left.
    open: Spans,
    open_bytes: u64,
}

impl Slices {
    /// Takes the start of a span, as much as the slice has room for. Returns how much that was.
    fn append(&mut self, offset: u64, bytes: u64) -> u64 {
        let taken = bytes.min(SLICE_BYTES - self.open_bytes);
        match self.open.last_mut() {
            Some((start, length)) if *start + *length == offset => *length += taken,
            _ => self.open.push((offset, taken)),
        }
        self.open_bytes += taken;
        if self.open_bytes == SLICE_BYTES {
            self.close();
        }
        taken
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.done.push(std::mem::take(&mut self.open));
            self.open_bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use kvferry_engine::Registry;

    use super::*;
    use crate::shape::{End, Shape};

    /// Spans and bytes of each slice.
    fn sizes(shape: Shape, contiguous: bool) -> Vec<(usize, u64)> {
        let region = Registry::new().allocate(shape.bytes()).unwrap();
        let placement = Placement::new(shape, 1, End::Initiator, contiguous);
        let slices = slices(0..shape.count(), &region, &placement).unwrap();
        slices.iter().map(|slice| (slice.count(), slice.bytes())).collect()
    }

    #[test]
    fn slices_are_full_but_the_last_and_hold_every_byte() {
        for block_bytes in [1000, 4096, 65_536, 700_000, 3 << 20] {
            let shape = Shape { base: 0, layers: 2, blocks: 5, block_bytes };
            for contiguous in [false, true] {
                let slices = sizes(shape, contiguous);
                assert_eq!(slices.iter().map(|(_, bytes)| bytes).sum::<u64>(), shape.bytes());
                let (_, full) = slices.split_last().unwrap();
                assert!(full.iter().all(|(_, bytes)| *bytes == SLICE_BYTES), "{slices:?}");
            }
        }
    }

    #[test]
    fn neighbours_are_one_span() {
        let shape = Shape { base: 0, layers: 1, blocks: 512, block_bytes: 4096 };
        assert_eq!(sizes(shape, true), [(1, SLICE_BYTES), (1, SLICE_BYTES)]);
        assert!(sizes(shape, false).iter().all(|(spans, _)| *spans > 200));
    }
}
