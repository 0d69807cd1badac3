//! Keys as vLLM's store connector makes them: what a rank's keys have in common, and 64 digits.

use anyhow::ensure;
use kvferry_proto::pool::Key;

/// How many digits there are.
const DIGITS: usize = 64;

/// How many ranks share the keys.
const RANKS: usize = 8;

/// A number of different keys of one length.
#[derive(Debug)]
pub(super) struct Keys {
    count: usize,
    /// Of each rank.
    prefixes: Vec<String>,
}

impl Keys {
    pub(super) fn new(count: usize, bytes: usize) -> anyhow::Result<Self> {
        let prefix = |rank: usize| {
            let rest = format!("@tp_rank:{rank}@pcp0@dcp0@pp_rank:0@group:0@");
            let model = bytes.checked_sub(DIGITS + rest.len()).filter(|bytes| *bytes > 0)?;
            Some(format!("{:m<model$}{rest}", ""))
        };
        let prefixes: Vec<String> = (0..RANKS).filter_map(prefix).collect();
        ensure!(prefixes.len() == RANKS, "--key-bytes has to be at least 110");
        Ok(Self { count, prefixes })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn text(&self, index: usize) -> String {
        let prefix = &self.prefixes[index % RANKS];
        // Digits that differ everywhere, as those of a hash do.
        let mut mixed = index as u64;
        let mut digits = String::with_capacity(DIGITS);
        for _ in 0..DIGITS / 16 {
            mixed = mixed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = mixed;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            digits.push_str(&format!("{:016x}", word ^ (word >> 31)));
        }
        format!("{prefix}{digits}")
    }

    pub(super) fn key(&self, index: usize) -> anyhow::Result<Key> {
        Ok(Key::try_from(self.text(index).as_str())?)
    }

    /// Batches of keys that are spread over all, as many as `most`.
    pub(super) fn batches(&self, batch: usize, most: usize) -> anyhow::Result<Vec<Vec<Key>>> {
        // A step that has no factor in common with most counts visits them all.
        let step = 1_000_003;
        let count = most.min((self.count / batch).max(1));
        let batches = (0..count).map(|number| {
            let index = |at: usize| (number * batch + at) * step % self.count;
            (0..batch).map(|at| self.key(index(at))).collect()
        });
        batches.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_length_and_differ() {
        let keys = Keys::new(1000, 118).unwrap();
        let all: std::collections::BTreeSet<_> = (0..1000).map(|index| keys.text(index)).collect();
        assert_eq!(all.len(), 1000);
        assert!(all.iter().all(|key| key.len() == 118));
        assert!(Keys::new(10, 100).is_err());
        let batches = keys.batches(100, 5).unwrap();
        assert_eq!((batches.len(), batches[0].len()), (5, 100));
    }
}
