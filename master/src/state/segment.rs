//! A segment: whose it is, what becomes of it, and which of its bytes may be given out.
//!
//! An extent that an object had is given out again when nobody can take its bytes for that object's
//! any more: when the owner has taken the object out of its inventory, lest a new master believes
//! what it says, and when the leases of readers and the reservation of the writer are over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use kvferry_proto::Incarnation;
use kvferry_proto::pool::{Change, Placed, SegmentState, SegmentStatus, What};
use parking_lot::Mutex;

use super::extents::{Extent, Extents};
use super::feed::Feed;
use super::moment::Moment;

/// How many changes may wait for an owner before nothing more is placed in its segments.
const BACKLOG: usize = 1 << 16;

/// An owner of segments.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) incarnation: Incarnation,
    pub(super) host: String,
    pub(super) feed: Mutex<Feed>,
}

/// Whom an object in a segment belongs to while it is in use: the segment's number in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Slot(pub(super) u32);

/// What becomes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    Mounting,
    Alive,
    Suspect,
    Leaving,
    Expired,
    /// It is out of the pool, and objects that still refer to it are being taken out.
    Gone,
}

impl State {
    const ALL: [Self; 6] =
        [Self::Mounting, Self::Alive, Self::Suspect, Self::Leaving, Self::Expired, Self::Gone];

    fn from_number(number: u8) -> Self {
        Self::ALL.into_iter().find(|state| *state as u8 == number).unwrap_or(Self::Gone)
    }

    /// Whether what is in it can be found.
    fn is_visible(self) -> bool {
        matches!(self, Self::Alive | Self::Suspect)
    }
}

#[derive(Debug)]
struct Room {
    extents: Extents,
    /// To be given out again when the owner has applied the change of this number, and not before
    /// the moment.
    until_applied: BTreeMap<u64, Vec<(Moment, Extent)>>,
    /// To be given out again at the moment.
    until: BTreeSet<(Moment, Extent)>,
    /// How many bytes wait so.
    retired: u64,
}

/// A segment of the pool.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) slot: Slot,
    pub(super) placed: Placed,
    pub(super) owner: Arc<Owner>,
    pub(super) mounted: Moment,
    /// Nothing is placed in it earlier.
    pub(super) opens: Moment,
    state: AtomicU8,
    room: Mutex<Room>,
    /// As in the room, for whoever only compares.
    free: AtomicU64,
    retired: AtomicU64,
}

impl Segment {
    pub(super) fn new(
        slot: Slot,
        placed: Placed,
        owner: Arc<Owner>,
        mounted: Moment,
        opens: Moment,
    ) -> Self {
        let extents = Extents::new(placed.lent.length);
        let free = AtomicU64::new(extents.free());
        let until_applied = BTreeMap::new();
        let room = Room { extents, until_applied, until: BTreeSet::new(), retired: 0 };
        Self {
            slot,
            placed,
            owner,
            mounted,
            opens,
            state: AtomicU8::new(State::Mounting as u8),
            room: Mutex::new(room),
            free,
            retired: AtomicU64::new(0),
        }
    }

    pub(super) fn state(&self) -> State {
        State::from_number(self.state.load(Ordering::Acquire))
    }

    /// What becomes of it is decided under the lock of the clients.
    pub(super) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    pub(super) fn is_visible(&self) -> bool {
        self.state().is_visible()
    }

    /// Whether something may be placed in it.
    pub(super) fn is_open(&self, now: Moment) -> bool {
        self.state() == State::Alive
            && now >= self.opens
            && self.owner.feed.lock().waiting() < BACKLOG
    }

    /// How many bytes can be given out now.
    pub(super) fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// How many bytes are taken by objects: what waits to be given out again is not.
    pub(super) fn in_use(&self) -> u64 {
        let rest = self.free() + self.retired.load(Ordering::Relaxed);
        self.placed.lent.length.saturating_sub(rest)
    }

    pub(super) fn retired(&self) -> u64 {
        self.retired.load(Ordering::Relaxed)
    }

    pub(super) fn allocate(&self, bytes: u64) -> Option<Extent> {
        self.with_room(|room| room.extents.allocate(bytes))
    }

    pub(super) fn reserve(&self, extent: Extent) -> bool {
        self.with_room(|room| room.extents.reserve(extent))
    }

    /// Gives an extent back for later: when the owner has applied the change of that number, if
    /// there is one, and not before the moment.
    pub(super) fn retire(&self, applied: Option<u64>, not_before: Moment, extent: Extent) {
        self.with_room(|room| {
            room.retired += extent.length;
            match applied {
                Some(number) => {
                    room.until_applied.entry(number).or_default().push((not_before, extent));
                }
                None => {
                    room.until.insert((not_before, extent));
                }
            }
        });
    }

    /// What waits for that moment, and nothing else, is given out again now.
    pub(super) fn hasten(&self, now: Moment, not_before: Moment, extent: Extent) {
        self.with_room(|room| {
            if room.until.remove(&(not_before, extent)) {
                room.until.insert((now, extent));
                room.release_due(now);
            }
        });
    }

    /// The owner has applied all changes up to that one.
    pub(super) fn applied(&self, now: Moment, number: u64) {
        self.with_room(|room| {
            let later = room.until_applied.split_off(&number.saturating_add(1));
            let done = std::mem::replace(&mut room.until_applied, later);
            room.until.extend(done.into_values().flatten());
            room.release_due(now);
        });
    }

    /// Gives out again what nothing but time kept back.
    pub(super) fn release_due(&self, now: Moment) {
        if self.retired() > 0 {
            self.with_room(|room| room.release_due(now));
        }
    }

    fn with_room<T>(&self, act: impl FnOnce(&mut Room) -> T) -> T {
        let mut room = self.room.lock();
        let result = act(&mut room);
        self.free.store(room.extents.free(), Ordering::Relaxed);
        self.retired.store(room.retired, Ordering::Relaxed);
        result
    }

    /// Tells the owner what has changed. The number of the change.
    pub(super) fn tell(&self, what: What) -> u64 {
        let segment = self.placed.lent.segment;
        self.owner.feed.lock().push(Change { segment, what })
    }

    pub(super) fn status(&self) -> Option<SegmentStatus> {
        let state = match self.state() {
            State::Mounting => SegmentState::Mounting,
            State::Alive => SegmentState::Alive,
            State::Suspect => SegmentState::Suspect,
            State::Leaving => SegmentState::Leaving,
            State::Expired => SegmentState::Expired,
            State::Gone => return None,
        };
        Some(SegmentStatus { placed: self.placed.clone(), used: self.in_use(), state })
    }
}

impl Room {
    fn release_due(&mut self, now: Moment) {
        while let Some(&(moment, extent)) = self.until.first() {
            if moment > now {
                return;
            }
            self.until.pop_first();
            self.retired -= extent.length;
            self.extents.release(extent);
        }
    }
}

/// All segments, by their slots.
#[derive(Debug, Default)]
pub(super) struct Segments {
    slots: Vec<Option<Arc<Segment>>>,
}

impl Segments {
    pub(super) fn get(&self, slot: Slot) -> Option<&Arc<Segment>> {
        self.slots.get(slot.0 as usize)?.as_ref()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.slots.iter().flatten()
    }

    /// A slot that nothing refers to. `None` where `most` are taken.
    pub(super) fn unused(&self, most: u32) -> Option<Slot> {
        let found = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        u32::try_from(found).ok().filter(|slot| *slot < most).map(Slot)
    }

    pub(super) fn insert(&mut self, segment: Arc<Segment>) {
        let index = segment.slot.0 as usize;
        if index >= self.slots.len() {
            self.slots.resize(index + 1, None);
        }
        self.slots[index] = Some(segment);
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        if let Some(entry) = self.slots.get_mut(slot.0 as usize) {
            *entry = None;
        }
    }
}
