//! Everything that is left to chance, from one seed.

use std::time::Duration;

/// A Weyl sequence through the finaliser of splitmix64 (Steele, Lea, Flood 2014).
#[derive(Debug)]
pub(crate) struct Random(u64);

fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("below a usize")
    }

    /// `least` to `most`, both included.
    pub(crate) fn between(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most - least + 1)
    }

    pub(crate) fn one_in(&mut self, odds: usize) -> bool {
        self.below(odds) == 0
    }

    pub(crate) fn micros(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_micros(least + self.next() % (most - least + 1))
    }

    pub(crate) fn millis(&mut self, least: u64, most: u64) -> Duration {
        self.micros(least * 1000, most * 1000)
    }
}

/// Contents that no other seed has.
pub(crate) fn contents(seed: u64, bytes: usize) -> Vec<u8> {
    let words = (0..bytes.div_ceil(8) as u64).map(|at| mix(mix(seed) ^ at));
    let mut contents: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    contents.truncate(bytes);
    contents
}
