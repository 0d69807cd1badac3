//! Which block goes where: what both processes know before anything is moved.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::pattern::mix;

/// How many blocks there may be: beyond, their order alone takes more memory than most blocks.
pub(crate) const MOST_BLOCKS: u64 = 1 << 24;

/// As many layers as any model has, and more: each is a layout of its own.
pub(crate) const MOST_LAYERS: u32 = 1024;

/// What is moved: `layers` layers of `blocks` blocks of `block_bytes`, one behind the other from
/// `base` on in a region. Blocks are numbered through all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub(crate) base: u64,
    pub(crate) layers: u32,
    pub(crate) blocks: u32,
    pub(crate) block_bytes: u64,
}

impl Shape {
    /// How many blocks there are in all layers together.
    pub(crate) fn count(&self) -> u64 {
        u64::from(self.layers) * u64::from(self.blocks)
    }

    /// Bytes of all blocks together.
    pub(crate) fn bytes(&self) -> u64 {
        self.count() * self.block_bytes
    }

    /// Refuses what is empty, has more blocks than there may be, or does not fit a region.
    pub(crate) fn check(&self, region_bytes: u64) -> Result<(), ShapeError> {
        let blocks = self.count();
        if blocks == 0 || self.block_bytes == 0 {
            return Err(ShapeError::Empty);
        }
        if blocks > MOST_BLOCKS || self.layers > MOST_LAYERS {
            return Err(ShapeError::TooMany { blocks, layers: self.layers });
        }
        let end = blocks.checked_mul(self.block_bytes).and_then(|b| b.checked_add(self.base));
        match end {
            Some(end) if end <= region_bytes => Ok(()),
            _ => Err(ShapeError::TooLong { shape: *self, region_bytes }),
        }
    }

    /// Where a layer starts in the region.
    pub(crate) fn layer_offset(&self, layer: u32) -> u64 {
        self.base + u64::from(layer) * u64::from(self.blocks) * self.block_bytes
    }
}

/// Blocks that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ShapeError {
    #[error("there is nothing to move: no block, or blocks of 0 bytes")]
    Empty,
    #[error(
        "{blocks} blocks in {layers} layers are too many, at most {MOST_BLOCKS} in {MOST_LAYERS} \
         can be: make --block-size larger or the total smaller"
    )]
    TooMany { blocks: u64, layers: u32 },
    #[error("{shape:?} does not fit a region of {region_bytes} bytes")]
    TooLong { shape: Shape, region_bytes: u64 },
}

/// Which of the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Initiator,
    Target,
}

/// In which order one process's blocks are used: block number `n` of the list is block `order[n]`
/// of the layer, in every layer, as it is with a block table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    shape: Shape,
    order: Vec<u32>,
}

/// One block: its number in the list, from which its content is made, and where it lies in the
/// region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) number: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// A part of the list that lies in one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerPart<'a> {
    pub(crate) layer: u32,
    /// Indices of blocks within the layer.
    pub(crate) blocks: &'a [u32],
}

impl Placement {
    /// The order at one end: shuffled from the seed, each end its own way, or as they lie.
    pub(crate) fn new(shape: Shape, seed: u64, end: End, contiguous: bool) -> Self {
        let mut order: Vec<u32> = (0..shape.blocks).collect();
        if !contiguous {
            let stream = match end {
                End::Initiator => 1,
                End::Target => 2,
            };
            shuffle(&mut order, mix(seed ^ mix(stream)));
        }
        Self { shape, order }
    }

    /// What is placed.
    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Where block `number` of the list starts in the region.
    pub(crate) fn offset(&self, number: u64) -> u64 {
        let per_layer = u64::from(self.shape.blocks);
        let within = usize::try_from(number % per_layer).unwrap_or(usize::MAX);
        let block = number / per_layer * per_layer + u64::from(self.order[within]);
        self.shape.base + block * self.shape.block_bytes
    }

    /// All blocks of the list.
    pub(crate) fn all(&self) -> impl Iterator<Item = Block> + '_ {
        let bytes = self.shape.block_bytes;
        (0..self.shape.count()).map(move |number| Block {
            number,
            offset: self.offset(number),
            bytes,
        })
    }

    /// The numbers `range` of the list, layer by layer.
    pub(crate) fn parts(&self, range: Range<u64>) -> impl Iterator<Item = LayerPart<'_>> {
        let per_layer = u64::from(self.shape.blocks);
        (0..self.shape.layers).filter_map(move |layer| {
            let first = u64::from(layer) * per_layer;
            let start = range.start.clamp(first, first + per_layer) - first;
            let end = range.end.clamp(first, first + per_layer) - first;
            // Both are at most the length of a slice.
            let bounds = usize::try_from(start).ok()?..usize::try_from(end).ok()?;
            (start < end).then(|| LayerPart { layer, blocks: &self.order[bounds] })
        })
    }
}

/// Fisher-Yates. The remainder's bias is below 2^-32 for lists of 32-bit length.
fn shuffle(order: &mut [u32], seed: u64) {
    let mut state = seed;
    for last in (1..order.len()).rev() {
        state = mix(state);
        let drawn = state % (last as u64 + 1);
        order.swap(last, usize::try_from(drawn).unwrap_or(last));
    }
}

/// Cuts a range into `parts` that differ by at most one in length, none of them empty: fewer where
/// there is not one for each.
pub(crate) fn split(range: Range<u64>, parts: u64) -> impl Iterator<Item = Range<u64>> {
    let length = range.end - range.start;
    let parts = parts.min(length);
    // The first ones take what is left over, one each. Without parts there is nothing to divide.
    let (share, over) = (length / parts.max(1), length % parts.max(1));
    let at = move |part: u64| range.start + part * share + part.min(over);
    (0..parts).map(move |part| at(part)..at(part + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { base: 8192, layers: 3, blocks: 100, block_bytes: 4096 };

    #[test]
    fn every_block_is_placed_once_and_differently_at_each_end() {
        let here = Placement::new(SHAPE, 7, End::Initiator, false);
        let there = Placement::new(SHAPE, 7, End::Target, false);
        assert_ne!(here, there);
        assert_eq!(here, Placement::new(SHAPE, 7, End::Initiator, false));
        assert_ne!(here, Placement::new(SHAPE, 8, End::Initiator, false));
        for placement in [here, there] {
            let mut offsets: Vec<_> = (0..SHAPE.count()).map(|n| placement.offset(n)).collect();
            offsets.sort_unstable();
            let all: Vec<_> = (0..SHAPE.count()).map(|n| 8192 + n * SHAPE.block_bytes).collect();
            assert_eq!(offsets, all);
        }
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        let shape = |base, layers, blocks, block_bytes| Shape { base, layers, blocks, block_bytes };
        assert_eq!(SHAPE.check(8192 + 300 * 4096), Ok(()));
        for long in [
            (SHAPE, 8191 + 300 * 4096),
            (shape(u64::MAX, 1, 1, 1), u64::MAX),
            (shape(0, 2, 2, u64::MAX), u64::MAX),
        ] {
            assert!(matches!(long.0.check(long.1), Err(ShapeError::TooLong { .. })), "{long:?}");
        }
        for empty in [shape(0, 0, 1, 1), shape(0, 1, 0, 1), shape(0, 1, 1, 0)] {
            assert_eq!(empty.check(1 << 40), Err(ShapeError::Empty));
        }
        for many in
            [shape(0, 1, (1 << 24) + 1, 1), shape(0, 1025, 1, 1), shape(0, 1024, u32::MAX, 1)]
        {
            assert!(matches!(many.check(u64::MAX), Err(ShapeError::TooMany { .. })), "{many:?}");
        }
    }

    #[test]
    fn contiguous_blocks_lie_in_order() {
        let placement = Placement::new(SHAPE, 7, End::Target, true);
        assert!((0..SHAPE.count()).all(|n| placement.offset(n) == 8192 + n * 4096));
    }

    #[test]
    fn parts_of_layers_are_the_same_blocks_as_the_list() {
        let placement = Placement::new(SHAPE, 7, End::Initiator, false);
        for range in [0..300, 50..250, 99..101, 100..200, 5..5] {
            let mut offsets = Vec::new();
            for part in placement.parts(range.clone()) {
                let first = SHAPE.layer_offset(part.layer);
                offsets.extend(part.blocks.iter().map(|b| first + u64::from(*b) * 4096));
            }
            let expected: Vec<_> = range.map(|n| placement.offset(n)).collect();
            assert_eq!(offsets, expected);
        }
    }

    #[test]
    fn a_split_covers_the_range_without_empty_parts() {
        for (length, parts) in [(10, 3), (3, 10), (1, 1), (1000, 7), (16, 16)] {
            let pieces: Vec<_> = split(5..5 + length, parts).collect();
            assert_eq!(pieces.len() as u64, parts.min(length));
            assert_eq!(pieces[0].start, 5);
            assert_eq!(pieces.last().unwrap().end, 5 + length);
            assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(pieces.iter().all(|piece| !piece.is_empty()));
        }
        assert_eq!(split(5..5, 4).count(), 0);
    }
}
