//! Which bytes of a segment are free.
//!
//! Best fit, lowest address first among equals, neighbours joined as they are freed: the same
//! requests in the same order have the same answers. What is allocated is kept track of by whoever
//! allocated it, so that many objects of a segment cost nothing here.

use std::collections::{BTreeMap, BTreeSet};

/// Where extents begin, and what their lengths are multiples of: a line of the processor's cache.
pub const ALIGNMENT: u64 = 64;

/// A piece of a segment, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// Where it begins: a multiple of [`ALIGNMENT`].
    pub offset: u64,
    /// How long it is: a multiple of [`ALIGNMENT`], never 0.
    pub length: u64,
}

impl Extent {
    /// The extent that holds so many bytes from there.
    ///
    /// `None` where `offset` is not aligned, `bytes` is 0, or the end overflows.
    #[must_use]
    pub fn holding(offset: u64, bytes: u64) -> Option<Self> {
        let length = round_up(bytes)?;
        let fits = bytes > 0 && offset.is_multiple_of(ALIGNMENT);
        (fits && offset.checked_add(length).is_some()).then_some(Self { offset, length })
    }

    fn end(self) -> u64 {
        self.offset + self.length
    }
}

fn round_up(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

/// The free extents of a segment.
#[derive(Debug)]
pub struct Extents {
    /// Length by offset. No two touch.
    by_offset: BTreeMap<u64, u64>,
    /// Length and offset of each.
    by_length: BTreeSet<(u64, u64)>,
    length: u64,
    free: u64,
}

impl Extents {
    /// All of a segment is free. Bytes at its end that fill no multiple of [`ALIGNMENT`] are not
    /// used.
    #[must_use]
    pub fn new(length: u64) -> Self {
        let length = length - length % ALIGNMENT;
        let mut extents =
            Self { by_offset: BTreeMap::new(), by_length: BTreeSet::new(), length, free: 0 };
        if length > 0 {
            extents.add(Extent { offset: 0, length });
        }
        extents
    }

    /// How many bytes are free, in one piece or many.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.free
    }

    /// How many bytes there are.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Takes the smallest free extent that has room for `bytes`. `None` where none has.
    pub fn allocate(&mut self, bytes: u64) -> Option<Extent> {
        let length = round_up(bytes).filter(|length| *length > 0)?;
        let &(found, offset) = self.by_length.range((length, 0)..).next()?;
        self.subtract(Extent { offset, length: found });
        if found > length {
            self.add(Extent { offset: offset + length, length: found - length });
        }
        Some(Extent { offset, length })
    }

    /// Takes this very extent. False where part of it is not free, or it is not inside.
    #[must_use]
    pub fn reserve(&mut self, wanted: Extent) -> bool {
        let Some((&offset, &length)) = self.by_offset.range(..=wanted.offset).next_back() else {
            return false;
        };
        let around = Extent { offset, length };
        if wanted.end() > around.end() {
            return false;
        }
        self.subtract(around);
        if around.offset < wanted.offset {
            self.add(Extent { offset: around.offset, length: wanted.offset - around.offset });
        }
        if wanted.end() < around.end() {
            self.add(Extent { offset: wanted.end(), length: around.end() - wanted.end() });
        }
        true
    }

    /// Gives back what was taken: all of an extent, once.
    pub fn release(&mut self, taken: Extent) {
        let before = self.by_offset.range(..taken.offset).next_back();
        let before = before.map(|(&offset, &length)| Extent { offset, length });
        let before = before.filter(|before| before.end() == taken.offset);
        let after = self.by_offset.get(&taken.end()).copied();
        let after = after.map(|length| Extent { offset: taken.end(), length });
        debug_assert!(
            taken.end() <= self.length
                && self.by_offset.range(taken.offset..taken.end()).next().is_none()
                && self
                    .by_offset
                    .range(..taken.offset)
                    .next_back()
                    .is_none_or(|(offset, length)| offset + length <= taken.offset),
            "an extent is released that was free"
        );
        let mut joined = taken;
        if let Some(before) = before {
            self.subtract(before);
            joined = Extent { offset: before.offset, length: before.length + joined.length };
        }
        if let Some(after) = after {
            self.subtract(after);
            joined.length += after.length;
        }
        self.add(joined);
    }

    fn add(&mut self, extent: Extent) {
        self.by_offset.insert(extent.offset, extent.length);
        self.by_length.insert((extent.length, extent.offset));
        self.free += extent.length;
    }

    fn subtract(&mut self, extent: Extent) {
        self.by_offset.remove(&extent.offset);
        self.by_length.remove(&(extent.length, extent.offset));
        self.free -= extent.length;
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const LINES: u64 = 64;

    #[derive(Clone, Debug)]
    enum Step {
        Allocate(u64),
        Reserve(u64, u64),
        Release(prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..20 * ALIGNMENT).prop_map(Step::Allocate),
            1 => (0..LINES, 1..20 * ALIGNMENT)
                .prop_map(|(line, bytes)| Step::Reserve(line * ALIGNMENT, bytes)),
            3 => any::<prop::sample::Index>().prop_map(Step::Release),
        ]
    }

    /// The lines of a segment, and whether each is taken.
    fn lines(extent: Extent) -> std::ops::Range<usize> {
        let line = |byte: u64| usize::try_from(byte / ALIGNMENT).unwrap();
        line(extent.offset)..line(extent.end())
    }

    proptest! {
        #[test]
        fn no_byte_is_given_out_twice_and_none_is_lost(steps in vec(step(), 1..120)) {
            let mut extents = Extents::new(LINES * ALIGNMENT + 5);
            let mut taken = vec![false; usize::try_from(LINES).unwrap()];
            let mut held = Vec::new();
            for step in steps {
                match step {
                    Step::Allocate(bytes) => {
                        let got = extents.allocate(bytes);
                        let wanted = usize::try_from(bytes.div_ceil(ALIGNMENT)).unwrap();
                        let longest = taken.split(|line| *line).map(<[bool]>::len).max();
                        prop_assert_eq!(
                            got.is_some(), wanted > 0 && longest.is_some_and(|run| run >= wanted)
                        );
                        if let Some(got) = got {
                            prop_assert_eq!(lines(got).len(), wanted);
                            for line in lines(got) {
                                prop_assert!(!std::mem::replace(&mut taken[line], true));
                            }
                            held.push(got);
                        }
                    }
                    Step::Reserve(offset, bytes) => {
                        let wanted = Extent::holding(offset, bytes).unwrap();
                        let inside = wanted.end() <= LINES * ALIGNMENT;
                        let free = inside && !taken[lines(wanted)].contains(&true);
                        prop_assert_eq!(extents.reserve(wanted), free);
                        if free {
                            taken[lines(wanted)].fill(true);
                            held.push(wanted);
                        }
                    }
                    Step::Release(which) => {
                        if held.is_empty() {
                            continue;
                        }
                        let extent = held.swap_remove(which.index(held.len()));
                        taken[lines(extent)].fill(false);
                        extents.release(extent);
                    }
                }
                let free = taken.iter().filter(|line| !**line).count() as u64;
                prop_assert_eq!(extents.free(), free * ALIGNMENT);
                // Neighbours are always joined.
                let runs = taken.split(|line| *line).filter(|run| !run.is_empty()).count();
                prop_assert_eq!(extents.by_offset.len(), runs);
                prop_assert_eq!(extents.by_length.len(), runs);
            }
        }
    }

    #[test]
    fn an_extent_is_aligned_and_holds_whole_lines() {
        assert_eq!(Extent::holding(64, 1), Some(Extent { offset: 64, length: 64 }));
        assert_eq!(Extent::holding(1, 1), None);
        assert_eq!(Extent::holding(0, 0), None);
        assert_eq!(Extent::holding(64, u64::MAX - 63), None);
        assert_eq!(Extent::holding(u64::MAX - 63, 64), None);
    }
}
