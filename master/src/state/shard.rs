//! A part of all objects, under a lock of its own.

use std::collections::VecDeque;

use hashbrown::HashTable;
use kvferry_proto::Incarnation;
use kvferry_proto::pool::Version;

use super::moment::Moment;
use super::name::{Hashing, Name, Prefixes};
use super::object::Object;
use super::slab::{self, Slab};

/// Room that is kept for a writer.
#[derive(Clone, Copy, Debug)]
struct Reservation {
    until: Moment,
    number: u32,
    version: Version,
}

/// Objects, found by their names.
#[derive(Debug, Default)]
pub(super) struct Shard {
    index: HashTable<u32>,
    pub(super) objects: Slab<Object>,
    pub(super) names: Prefixes,
    /// In the order in which they end: all last equally long. Some have ended by themselves.
    reservations: VecDeque<Reservation>,
    /// How many objects are being written.
    writing: usize,
}

impl Shard {
    pub(super) fn find(&self, name: &Name<'_>) -> Option<u32> {
        let is_it = |number: &u32| {
            self.objects.get(*number).is_some_and(|object| self.names.is(&object.key, name))
        };
        self.index.find(name.hash, is_it).copied()
    }

    /// The object that [`Self::find`] is likely to find: it has not been looked at.
    pub(super) fn candidate(&self, hash: u64) -> Option<u32> {
        self.index.find(hash, |_| true).copied()
    }

    /// Something of each piece of memory that [`Self::find`] will look at.
    pub(super) fn touch(&self, number: u32) -> u64 {
        self.objects.get(number).map_or(0, |object| object.version.0 ^ object.key.touch())
    }

    /// The object of that version, where its key's hash is known.
    pub(super) fn find_version(&self, hash: u64, version: Version) -> Option<u32> {
        let is_it = |number: &u32| {
            self.objects.get(*number).is_some_and(|object| object.version == version)
        };
        self.index.find(hash, is_it).copied()
    }

    pub(super) fn has_room(&self) -> bool {
        self.objects.len() < slab::MOST
    }

    /// Adds an object whose name is not there; how much memory its name takes beyond its entry.
    pub(super) fn insert(
        &mut self,
        hashing: &Hashing,
        name: &Name<'_>,
        object: impl FnOnce(super::name::Stored) -> Object,
    ) -> (u32, usize) {
        let (key, heap) = self.names.store(hashing, name);
        let object = object(key);
        self.writing += usize::from(object.writer.is_some());
        let number = self.objects.insert(object);
        let (objects, names) = (&self.objects, &self.names);
        self.index.insert_unique(name.hash, number, |number| {
            // Whatever is in the index is there.
            objects.get(*number).map_or(0, |object| names.hash(hashing, &object.key))
        });
        (number, heap)
    }

    /// Takes an object out; and how much memory its name took beyond its entry.
    pub(super) fn remove(&mut self, hashing: &Hashing, number: u32) -> Option<(Object, usize)> {
        let object = self.objects.remove(number)?;
        let hash = self.names.hash(hashing, &object.key);
        if let Ok(found) = self.index.find_entry(hash, |found| *found == number) {
            found.remove();
        }
        self.writing -= usize::from(object.writer.is_some());
        let heap = self.names.forget(hashing, &object.key);
        Some((object, heap))
    }

    /// Room is kept for an object's writer until then.
    pub(super) fn keep_until(&mut self, until: Moment, number: u32, version: Version) {
        self.reservations.push_back(Reservation { until, number, version });
        if self.reservations.len() > 64 + 2 * self.writing {
            let objects = &self.objects;
            self.reservations.retain(|kept| is_open(objects, kept));
        }
    }

    /// The object is whole.
    pub(super) fn finish(&mut self, number: u32) {
        if let Some(object) = self.objects.get_mut(number)
            && object.writer.take().is_some()
        {
            self.writing -= 1;
        }
    }

    pub(super) fn writing(&self) -> usize {
        self.writing
    }

    /// The next object whose writer's time is over.
    pub(super) fn next_overdue(&mut self, now: Moment) -> Option<u32> {
        while let Some(next) = self.reservations.front() {
            if is_open(&self.objects, next) {
                return (next.until <= now).then_some(next.number);
            }
            self.reservations.pop_front();
        }
        None
    }

    /// The objects that one client writes.
    pub(super) fn written_by(&self, client: Incarnation) -> Vec<u32> {
        let open = self.reservations.iter().filter(|kept| is_open(&self.objects, kept));
        let theirs = open.filter(|kept| {
            let object = self.objects.get(kept.number);
            object.and_then(|object| object.writer).is_some_and(|writer| writer.is(client))
        });
        theirs.map(|kept| kept.number).collect()
    }
}

fn is_open(objects: &Slab<Object>, kept: &Reservation) -> bool {
    objects
        .get(kept.number)
        .is_some_and(|object| object.version == kept.version && object.writer.is_some())
}
