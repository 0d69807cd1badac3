//! What the bytes are, and whether they arrived.
//!
//! A block is a row of 64-bit little-endian words: the first is drawn from the seed, the round and
//! the block's number, each further one is larger by an odd constant. So a word tells which block
//! of which round it belongs to and where in it: a block at the wrong place, of an earlier round,
//! or torn between two, differs from what is expected. Additions, not draws, make the words, so
//! that filling and checking keep up with memory.

use anyhow::Context;
use kvferry_engine::Region;
use serde::{Deserialize, Serialize};

use crate::shape::Block;

/// From one word of a block to the next.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// How much is filled or checked at once: it stays in the first-level cache.
const CHUNK_BYTES: usize = 16 << 10;

/// A step of splitmix64 (Steele, Lea and Flood, 2014): every input gives another output, and no
/// two are alike.
pub(crate) fn mix(input: u64) -> u64 {
    let mut word = input.wrapping_add(STEP);
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// The content of all blocks in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pattern {
    pub(crate) seed: u64,
    /// Counts everything that is ever moved, so that nothing is moved twice.
    pub(crate) round: u64,
}

/// A block that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error(
    "block {block} differs from byte {byte} on, at offset {offset} of the destination, in round \
     {round}"
)]
pub(crate) struct Mismatch {
    /// Its number in the list.
    pub(crate) block: u64,
    /// The first byte of it that is wrong.
    pub(crate) byte: u64,
    /// Where that byte lies in the region.
    pub(crate) offset: u64,
    pub(crate) round: u64,
}

impl Pattern {
    /// The first word of a block.
    fn base(self, block: u64) -> u64 {
        mix(mix(mix(self.seed) ^ self.round) ^ block)
    }

    /// Puts the content of every block where it lies.
    pub(crate) fn fill(
        self,
        region: &Region,
        blocks: impl IntoIterator<Item = Block>,
    ) -> anyhow::Result<()> {
        let mut chunk = [0; CHUNK_BYTES];
        each_chunk(blocks, |block, at, bytes| {
            let chunk = &mut chunk[..bytes];
            write_words(chunk, word_at(self.base(block.number), at));
            region.write_at(block.offset + at, chunk)
        })
        .context("filling the source")
    }

    /// Compares every block with its content. The first that differs is the result.
    pub(crate) fn verify(
        self,
        region: &Region,
        blocks: impl IntoIterator<Item = Block>,
    ) -> anyhow::Result<Option<Mismatch>> {
        let mut chunk = [0; CHUNK_BYTES];
        let mut mismatch = None;
        each_chunk(blocks, |block, at, bytes| {
            if mismatch.is_some() {
                return Ok(());
            }
            let chunk = &mut chunk[..bytes];
            let start = block.offset + at;
            region.read_at(start, chunk)?;
            let first = word_at(self.base(block.number), at);
            if !words_match(chunk, first) {
                let wrong = first_difference(chunk, first);
                let (byte, offset) = (at + wrong, start + wrong);
                let block = block.number;
                mismatch = Some(Mismatch { block, byte, offset, round: self.round });
            }
            Ok(())
        })
        .context("checking the destination")?;
        Ok(mismatch)
    }
}

/// Calls `visit` with block, start within the block and length, for every chunk.
fn each_chunk(
    blocks: impl IntoIterator<Item = Block>,
    mut visit: impl FnMut(&Block, u64, usize) -> Result<(), kvferry_engine::Error>,
) -> Result<(), kvferry_engine::Error> {
    for block in blocks {
        let block = &block;
        for at in (0..block.bytes).step_by(CHUNK_BYTES) {
            let left = usize::try_from(block.bytes - at).unwrap_or(usize::MAX);
            visit(block, at, left.min(CHUNK_BYTES))?;
        }
    }
    Ok(())
}

/// The word at byte `at` of a block, a multiple of 8.
fn word_at(base: u64, at: u64) -> u64 {
    base.wrapping_add((at / 8).wrapping_mul(STEP))
}

fn write_words(chunk: &mut [u8], first: u64) {
    let mut word = first;
    let mut words = chunk.chunks_exact_mut(8);
    for bytes in &mut words {
        bytes.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(STEP);
    }
    let rest = words.into_remainder();
    let length = rest.len();
    rest.copy_from_slice(&word.to_le_bytes()[..length]);
}

fn words_match(chunk: &[u8], first: u64) -> bool {
    let mut word = first;
    let mut difference = 0;
    let words = chunk.chunks_exact(8);
    let rest = words.remainder();
    for bytes in words {
        let mut found = [0; 8];
        found.copy_from_slice(bytes);
        difference |= u64::from_le_bytes(found) ^ word;
        word = word.wrapping_add(STEP);
    }
    difference == 0 && *rest == word.to_le_bytes()[..rest.len()]
}

fn first_difference(chunk: &[u8], first: u64) -> u64 {
    let expected = (0_u64..).flat_map(|n| first.wrapping_add(n.wrapping_mul(STEP)).to_le_bytes());
    let position = chunk.iter().zip(expected).position(|(found, expected)| *found != expected);
    position.unwrap_or(chunk.len()) as u64
}

#[cfg(test)]
mod tests {
    use kvferry_engine::Registry;

    use super::*;
    use crate::shape::{End, Placement, Shape};

    const BLOCK_BYTES: usize = 20_003;
    const BLOCK: u64 = BLOCK_BYTES as u64;
    const SHAPE: Shape = Shape { base: 64, layers: 2, blocks: 9, block_bytes: BLOCK };

    struct Filled {
        region: Region,
        placement: Placement,
        pattern: Pattern,
    }

    fn filled() -> Filled {
        let region = Registry::new().allocate(64 + SHAPE.bytes()).unwrap();
        let placement = Placement::new(SHAPE, 5, End::Target, false);
        let pattern = Pattern { seed: 5, round: 3 };
        pattern.fill(&region, placement.all()).unwrap();
        Filled { region, placement, pattern }
    }

    impl Filled {
        fn verify(&self) -> Option<Mismatch> {
            self.pattern.verify(&self.region, self.placement.all()).unwrap()
        }

        fn block(&self, number: u64) -> Vec<u8> {
            let mut bytes = vec![0; BLOCK_BYTES];
            self.region.read_at(self.placement.offset(number), &mut bytes).unwrap();
            bytes
        }

        fn put(&self, number: u64, at: u64, bytes: &[u8]) {
            self.region.write_at(self.placement.offset(number) + at, bytes).unwrap();
        }
    }

    #[test]
    fn what_was_filled_is_what_is_expected() {
        assert_eq!(filled().verify(), None);
    }

    #[test]
    fn blocks_that_changed_places_are_seen() {
        let filled = filled();
        let (one, other) = (filled.block(4), filled.block(15));
        filled.put(4, 0, &other);
        filled.put(15, 0, &one);
        assert_eq!(filled.verify().unwrap().block, 4);
    }

    #[test]
    fn a_block_of_an_earlier_round_is_seen() {
        let filled = filled();
        let new = filled.block(17);
        Pattern { round: 2, ..filled.pattern }
            .fill(&filled.region, filled.placement.all())
            .unwrap();
        let stale = filled.block(17);
        assert_ne!(stale, new);
        filled.pattern.fill(&filled.region, filled.placement.all()).unwrap();
        filled.put(17, 0, &stale);
        assert_eq!(filled.verify().map(|m| (m.block, m.round)), Some((17, 3)));
    }

    #[test]
    fn a_block_torn_between_two_rounds_is_seen_where_it_is_torn() {
        let filled = filled();
        Pattern { round: 2, ..filled.pattern }
            .fill(&filled.region, filled.placement.all())
            .unwrap();
        let stale = filled.block(2);
        filled.pattern.fill(&filled.region, filled.placement.all()).unwrap();
        let (from, to) = (17_000, 17_064);
        filled.put(2, from, &stale[17_000..17_064]);
        let seen = filled.verify().unwrap();
        assert_eq!((seen.block, seen.offset - seen.byte), (2, filled.placement.offset(2)));
        // A byte of a wrong word may be right by chance.
        assert!((from..to).contains(&seen.byte));
    }

    #[test]
    fn bytes_moved_within_their_block_and_single_bytes_are_seen() {
        let shifted = filled();
        let block = shifted.block(0);
        shifted.put(0, 8, &block[..1000]);
        assert_eq!(shifted.verify().unwrap().block, 0);
        for byte in [0, 16_383, 16_384, BLOCK_BYTES - 1] {
            let filled = filled();
            let wrong = !filled.block(8)[byte];
            let at = byte as u64;
            filled.put(8, at, &[wrong]);
            assert_eq!(filled.verify().map(|m| (m.block, m.byte)), Some((8, at)));
        }
    }

    #[test]
    fn no_two_blocks_rounds_or_seeds_share_a_first_word() {
        let mut bases: Vec<u64> = Vec::new();
        for seed in 0..4 {
            for round in 0..50 {
                bases.extend((0..50).map(|block| Pattern { seed, round }.base(block)));
            }
        }
        let count = bases.len();
        bases.sort_unstable();
        bases.dedup();
        assert_eq!(bases.len(), count);
    }
}
