//! Which copies of objects go into one transfer.

use std::sync::Arc;
use std::time::Instant;

use kvferry_proto::Incarnation;
use kvferry_proto::pool::{Placed, Replica};

/// How many bytes one transfer moves at the most, where it moves more than one copy: what fails
/// together is tried again together.
const LOAD_BYTES: u64 = 64 << 20;

/// How many copies one transfer moves at the most.
const LOAD_PARTS: usize = 4096;

/// Where a copy of an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) segment: Arc<Placed>,
    /// In bytes from the segment's start.
    pub(crate) offset: u64,
}

impl Place {
    /// The places that an answer's replicas name.
    pub(crate) fn all(replicas: &[Replica], segments: &[Arc<Placed>]) -> Vec<Self> {
        let place = |replica: &Replica| {
            // The answer was checked: its indices lead somewhere.
            let segment = segments.get(replica.segment)?.clone();
            Some(Self { segment, offset: replica.offset })
        };
        replicas.iter().filter_map(place).collect()
    }

    pub(crate) fn owner(&self) -> Incarnation {
        self.segment.owner
    }
}

/// One copy of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Index of the object in its batch.
    pub(crate) item: usize,
    /// Index of the copy among the object's.
    pub(crate) replica: usize,
    pub(crate) place: Place,
    /// The object's length in bytes.
    pub(crate) length: u64,
}

/// What one transfer moves: copies that one owner has, or is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// At least one, all of one owner.
    pub(crate) parts: Vec<Part>,
    /// When it has to have ended.
    pub(crate) until: Instant,
}

/// A copy that is to be moved.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) part: Part,
    pub(crate) until: Instant,
    /// In a transfer of its own, so that what is wrong with it harms no other.
    pub(crate) alone: bool,
}

/// Puts copies of one owner together, in the order in which they come.
pub(crate) fn loads(wanted: Vec<Wanted>) -> Vec<Load> {
    let mut loads: Vec<(u64, Load)> = Vec::new();
    for Wanted { part, until, alone } in wanted {
        let owner = part.place.owner();
        let open = if alone {
            None
        } else {
            // The last of this owner's that is not full. There are few owners in a batch.
            loads.iter_mut().rev().find(|(_, load)| load.owner() == Some(owner))
        };
        match open {
            Some((bytes, load))
                if *bytes > 0
                    && bytes.saturating_add(part.length) <= LOAD_BYTES
                    && load.parts.len() < LOAD_PARTS =>
            {
                *bytes += part.length;
                load.until = load.until.min(until);
                load.parts.push(part);
            }
            // A load that stands alone counts as empty, so that nothing is added to it.
            _ => {
                let bytes = if alone { 0 } else { part.length };
                loads.push((bytes, Load { parts: vec![part], until }));
            }
        }
    }
    loads.into_iter().map(|(_, load)| load).collect()
}

impl Load {
    fn owner(&self) -> Option<Incarnation> {
        self.parts.first().map(|part| part.place.owner())
    }

    /// How many bytes it moves.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.length).sum()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use kvferry_proto::RegionId;
    use kvferry_proto::pool::{Lent, SegmentId};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// A segment of this owner on this host.
    pub(crate) fn segment(owner: u64, host: &str) -> Arc<Placed> {
        Arc::new(Placed {
            owner: Incarnation(owner),
            lent: Lent {
                segment: SegmentId(owner * 100),
                name: format!("segment-{owner}"),
                address: "127.0.0.1:1".into(),
                region: RegionId { slot: 0, generation: 1 },
                offset: 0,
                length: 1 << 40,
            },
            host: host.into(),
        })
    }

    proptest! {
        #[test]
        fn every_copy_is_moved_once_with_others_of_its_owner_and_in_time(
            copies in vec((1_u64..4, 1_u64..(40 << 20), any::<bool>(), 1_u64..100), 0..40),
        ) {
            let now = Instant::now();
            let wanted = copies.iter().enumerate().map(|(item, (owner, length, alone, ms))| {
                let place = Place { segment: segment(*owner, ""), offset: 0 };
                let until = now + Duration::from_millis(*ms);
                let part = Part { item, replica: 0, place, length: *length };
                Wanted { part, until, alone: *alone }
            });
            let loads = loads(wanted.collect());
            let mut seen = vec![0; copies.len()];
            for load in &loads {
                prop_assert!(load.parts.len() == 1 || load.bytes() <= LOAD_BYTES);
                for part in &load.parts {
                    let (owner, length, alone, ms) = copies[part.item];
                    seen[part.item] += 1;
                    prop_assert_eq!(Some(part.place.owner()), load.owner());
                    prop_assert_eq!(part.place.owner(), Incarnation(owner));
                    prop_assert_eq!(part.length, length);
                    prop_assert!(!alone || load.parts.len() == 1);
                    prop_assert!(load.until <= now + Duration::from_millis(ms));
                }
            }
            prop_assert!(seen.iter().all(|seen| *seen == 1));
        }
    }
}
