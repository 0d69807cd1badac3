//! One object, in as few bytes as it takes: there are millions.

use kvferry_proto::Incarnation;
use kvferry_proto::pool::Version;

use super::moment::{Coarse, Moment};
use super::name::Stored;
use super::segment::Slot;

/// A copy of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) slot: Slot,
    pub(super) offset: u64,
}

/// All copies of an object. Nearly all have one.
#[derive(Clone, Debug)]
pub(super) enum Copies {
    One {
        slot: Slot,
        offset: u64,
    },
    // A pointer to a list is half as long as a list.
    #[expect(clippy::box_collection, reason = "8 bytes of each object")]
    Many(Box<Vec<Copy>>),
}

impl Copies {
    pub(super) fn new(copies: Vec<Copy>) -> Self {
        match copies[..] {
            [Copy { slot, offset }] => Self::One { slot, offset },
            _ => Self::Many(Box::new(copies)),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Copy> {
        let (one, many) = match self {
            Self::One { slot, offset } => {
                (Some(Copy { slot: *slot, offset: *offset }), Default::default())
            }
            Self::Many(copies) => (None, copies.iter()),
        };
        one.into_iter().chain(many.copied())
    }

    pub(super) fn add(&mut self, copy: Copy) {
        let copies = self.iter().chain([copy]).collect();
        *self = Self::new(copies);
    }

    /// Takes out those in these segments. Whether any is left.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(Copy) -> bool) -> bool {
        if self.iter().all(&mut keep) {
            return self.iter().next().is_some();
        }
        let left: Vec<Copy> = self.iter().filter(|copy| keep(*copy)).collect();
        let is_left = !left.is_empty();
        *self = Self::new(left);
        is_left
    }
}

/// The group of objects without one.
pub(super) const NO_GROUP: u32 = u32::MAX;

/// An object, or room for one that is being written.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) key: Stored,
    pub(super) group: u32,
    pub(super) length: u64,
    pub(super) version: Version,
    pub(super) copies: Copies,
    pub(super) checksum: Option<u32>,
    /// Who writes it; `None` once it is whole.
    pub(super) writer: Option<Writer>,
    /// Readers may take its bytes until then.
    pub(super) read: Moment,
    /// Somebody was told that it exists, and it is kept until then if there is room.
    pub(super) noticed: Moment,
    pub(super) used: Coarse,
    pub(super) soft_pin: Coarse,
    pub(super) is_pinned: bool,
    /// It came with a segment that was mounted, from a put of an earlier master.
    pub(super) is_inherited: bool,
}

/// Who writes an object. Incarnations are never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Writer(std::num::NonZeroU64);

impl Writer {
    pub(super) fn new(client: Incarnation) -> Option<Self> {
        std::num::NonZeroU64::new(client.0).map(Self)
    }

    pub(super) fn client(self) -> Incarnation {
        Incarnation(self.0.get())
    }

    pub(super) fn is(self, client: Incarnation) -> bool {
        self.client() == client
    }
}

/// What stands against evicting an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hold {
    /// Nothing.
    None,
    /// A soft pin: others go first.
    SoftPin,
    /// Somebody was told that it exists: it goes when there is no other room for a put.
    Noticed,
    /// It is read, pinned, or being written.
    Firm,
}

impl Object {
    /// It is used now. Memory that does not change need not be written back.
    pub(super) fn use_at(&mut self, now: Coarse) {
        if self.used != now {
            self.used = now;
        }
    }

    pub(super) fn hold(&self, now: Moment) -> Hold {
        match () {
            () if self.writer.is_some() || self.is_pinned || self.read > now => Hold::Firm,
            () if self.noticed > now => Hold::Noticed,
            () if self.soft_pin.moment() > now => Hold::SoftPin,
            () => Hold::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_takes_few_bytes() {
        assert!(size_of::<Option<Object>>() <= 176, "{}", size_of::<Option<Object>>());
    }

    #[test]
    fn copies_are_one_or_many_and_come_back_as_they_were_added() {
        let copy = |slot| Copy { slot: Slot(slot), offset: u64::from(slot) * 64 };
        let mut copies = Copies::new(vec![copy(1)]);
        copies.add(copy(2));
        copies.add(copy(3));
        assert_eq!(copies.iter().collect::<Vec<_>>(), [copy(1), copy(2), copy(3)]);
        assert!(copies.retain(|copy| copy.slot != Slot(2)));
        assert_eq!(copies.iter().collect::<Vec<_>>(), [copy(1), copy(3)]);
        assert!(copies.retain(|copy| copy.slot == Slot(3)));
        assert!(matches!(copies, Copies::One { .. }));
        assert!(!copies.retain(|_| false));
        assert_eq!(copies.iter().count(), 0);
    }
}
