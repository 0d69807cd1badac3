//! What is in the segments that this client lends. The truth about them is here: a master that has
//! started again is rebuilt from it.

use std::collections::{BTreeMap, HashMap};

use kvferry_proto::pool::{Change, Held, SegmentId, Version, What};

/// What is in one segment.
#[derive(Debug)]
struct Contents {
    length: u64,
    /// By where they start: they do not overlap.
    by_offset: BTreeMap<u64, Held>,
    offsets: HashMap<Version, u64>,
}

/// What is in all of them.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    segments: HashMap<SegmentId, Contents>,
}

impl Inventory {
    /// A segment of this length is lent, with nothing in it.
    pub(crate) fn add(&mut self, segment: SegmentId, length: u64) {
        let contents = Contents { length, by_offset: BTreeMap::new(), offsets: HashMap::new() };
        self.segments.insert(segment, contents);
    }

    /// A segment is not lent any more.
    pub(crate) fn remove(&mut self, segment: SegmentId) {
        self.segments.remove(&segment);
    }

    /// What is in a segment.
    pub(crate) fn held(&self, segment: SegmentId) -> Vec<Held> {
        let contents = self.segments.get(&segment);
        contents.map_or_else(Vec::new, |contents| contents.by_offset.values().cloned().collect())
    }

    /// How many objects are in a segment, and their bytes.
    pub(crate) fn used(&self, segment: SegmentId) -> (usize, u64) {
        self.segments.get(&segment).map_or((0, 0), |contents| {
            let bytes = contents.by_offset.values().map(|held| held.length).sum();
            (contents.by_offset.len(), bytes)
        })
    }

    /// Applies what the master says. False where it contradicts what is lent: then nothing was
    /// changed.
    pub(crate) fn apply(&mut self, change: Change) -> bool {
        match self.segments.get_mut(&change.segment) {
            Some(contents) => match change.what {
                What::Keep(held) => contents.keep(held),
                What::Drop(version) => {
                    contents.drop(version);
                    true
                }
            },
            // A drop of what is in no segment any more is what becomes of one that was unmounted.
            None => matches!(change.what, What::Drop(_)),
        }
    }
}

impl Contents {
    fn keep(&mut self, held: Held) -> bool {
        let Some(end) = held.offset.checked_add(held.length) else { return false };
        if end > self.length {
            return false;
        }
        self.drop(held.version);
        // What lay there was dropped, or else its room could not have been given out again.
        let overlapping: Vec<Version> = self
            .by_offset
            .range(..end)
            .rev()
            .map(|(_, other)| other)
            .take_while(|other| other.offset + other.length > held.offset)
            .map(|other| other.version)
            .collect();
        for version in overlapping {
            self.drop(version);
        }
        self.offsets.insert(held.version, held.offset);
        self.by_offset.insert(held.offset, held);
        true
    }

    fn drop(&mut self, version: Version) {
        if let Some(offset) = self.offsets.remove(&version) {
            self.by_offset.remove(&offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use kvferry_proto::pool::{Key, Tenant};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const SEGMENT: SegmentId = SegmentId(7);
    const LENGTH: u64 = 100;

    /// Which bytes.
    fn range(offset: u64, length: u64) -> std::ops::Range<usize> {
        usize::try_from(offset).unwrap()..usize::try_from(offset + length).unwrap()
    }

    fn held(version: u64, offset: u64, length: u64) -> Held {
        Held {
            tenant: Tenant::default(),
            key: Key::try_from(format!("k{version}").as_str()).unwrap(),
            version: Version(version),
            offset,
            length,
            checksum: None,
            is_pinned: false,
            group: None,
        }
    }

    fn change(what: What) -> Change {
        Change { segment: SEGMENT, what }
    }

    #[test]
    fn what_was_dropped_or_never_was_is_nothing_to_worry_about() {
        let mut inventory = Inventory::default();
        inventory.add(SEGMENT, LENGTH);
        assert!(inventory.apply(change(What::Keep(held(1, 0, 10)))));
        assert_eq!(inventory.used(SEGMENT), (1, 10));
        for _ in 0..2 {
            assert!(inventory.apply(change(What::Drop(Version(1)))));
        }
        assert_eq!(inventory.held(SEGMENT), []);
        inventory.remove(SEGMENT);
        assert!(inventory.apply(change(What::Drop(Version(1)))));
    }

    #[test]
    fn what_cannot_be_in_a_segment_is_not_believed() {
        let mut inventory = Inventory::default();
        assert!(!inventory.apply(change(What::Keep(held(1, 0, 10)))), "no such segment");
        inventory.add(SEGMENT, LENGTH);
        assert!(!inventory.apply(change(What::Keep(held(1, LENGTH - 9, 10)))), "outside");
        assert!(!inventory.apply(change(What::Keep(held(1, u64::MAX, 10)))), "nowhere");
        assert_eq!(inventory.used(SEGMENT), (0, 0));
    }

    proptest! {
        #[test]
        fn objects_never_overlap_and_the_last_word_counts(
            changes in vec((1_u64..12, any::<bool>(), 0_u64..LENGTH, 1_u64..40), 0..60),
        ) {
            let mut inventory = Inventory::default();
            inventory.add(SEGMENT, LENGTH);
            // What each byte belongs to.
            let mut bytes = vec![0; range(0, LENGTH).len()];
            for (version, keep, offset, length) in changes {
                let place = range(offset, length);
                let fits = place.end <= bytes.len();
                if keep && !fits {
                    prop_assert!(!inventory.apply(change(What::Keep(held(version, offset, length)))));
                    continue;
                }
                let mut gone = vec![version];
                if keep {
                    gone.extend(bytes[place.clone()].iter().filter(|owner| **owner != 0));
                }
                for byte in &mut bytes {
                    if gone.contains(byte) {
                        *byte = 0;
                    }
                }
                let what = if keep {
                    bytes[place].fill(version);
                    What::Keep(held(version, offset, length))
                } else {
                    What::Drop(Version(version))
                };
                prop_assert!(inventory.apply(change(what)));
                let mut found = vec![0; bytes.len()];
                for held in inventory.held(SEGMENT) {
                    let place = range(held.offset, held.length);
                    prop_assert!(found[place.clone()].iter().all(|byte| *byte == 0));
                    found[place].fill(held.version.0);
                }
                prop_assert_eq!(&found, &bytes);
            }
        }
    }
}
