//! Segments come, with what is in them, and go.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvferry_proto::Incarnation;
use kvferry_proto::pool::{Held, Lent, Outcome, Placed, SegmentId, Version, What};

use super::extents::Extent;
use super::moment::{Coarse, Moment};
use super::object::{Copies, Copy, Object};
use super::segment::{Segment, State};
use super::{Pool, Told, left};

/// Why a segment is not mounted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    /// Its owner has to join first.
    #[error("client {client} is not known, or its lease is over: join first")]
    NotJoined {
        /// Who.
        client: Incarnation,
    },
    /// There is another segment of that number.
    #[error("segment {segment} is there already, and is not the same: draw another number")]
    Taken {
        /// Which.
        segment: SegmentId,
    },
    /// It is being mounted, or unmounted.
    #[error("segment {segment} is just being mounted or unmounted: try again later")]
    Busy {
        /// Which.
        segment: SegmentId,
    },
    /// There are as many as there may be.
    #[error("there are {most} segments, as many as there may be: lend fewer and larger ones")]
    TooMany {
        /// The limit.
        most: u32,
    },
    /// What is said to be in it cannot be.
    #[error(
        "segment {segment}: object {version} at {offset}, {length} bytes long, lies outside, is not \
         aligned, or overlaps another: its inventory is wrong, mount it empty"
    )]
    Inventory {
        /// Which.
        segment: SegmentId,
        /// The object.
        version: Version,
        /// Where it is said to begin.
        offset: u64,
        /// How long it is said to be.
        length: u64,
    },
}

/// A segment whose owner says what is in it.
#[derive(Debug)]
pub struct Mounting {
    segment: Arc<Segment>,
    adopted: u64,
    refused: u64,
}

/// What became of what is in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// How many objects are in the pool now.
    pub adopted: u64,
    /// How many are to be taken out of the inventory.
    pub refused: u64,
}

/// A segment that is being taken back.
#[derive(Debug)]
pub struct Leaving {
    segment: Arc<Segment>,
    /// When the leases on its objects, and the reservations in it, will be over.
    pub free: Moment,
}

impl Pool {
    /// A segment is lent. `None` where it is mounted already: a repeat changes nothing.
    ///
    /// # Errors
    /// Where it cannot be mounted.
    pub fn mount(
        &self,
        now: Moment,
        client: Incarnation,
        lent: Lent,
        is_fenced: bool,
    ) -> Result<Option<Mounting>, MountError> {
        // In this order: whoever looks at all objects holds the list for as long as that takes, and
        // signs of life wait for clients.
        let mut segments = self.segments.write();
        let mut clients = self.clients.lock();
        if !clients.leases.is_live(client) {
            return Err(MountError::NotJoined { client });
        }
        let segment = lent.segment;
        let there = segments
            .iter()
            .find(|found| found.placed.lent.segment == segment && found.state() != State::Gone);
        if let Some(there) = there {
            if there.placed.owner != client || there.placed.lent != lent {
                return Err(MountError::Taken { segment });
            }
            return match there.state() {
                State::Mounting | State::Leaving => Err(MountError::Busy { segment }),
                _ => Ok(None),
            };
        }
        let most = self.settings.limits.segments;
        let slot = segments.unused(most).ok_or(MountError::TooMany { most })?;
        let known = clients.known.get_mut(&client).ok_or(MountError::NotJoined { client })?;
        let owner = known.owner.clone();
        let placed = Placed { owner: client, lent, host: owner.host.clone() };
        let opens = if is_fenced {
            now
        } else {
            let written = now.after(self.settings.reservation).after(self.settings.late_writes);
            written.max(now.after(self.settings.read_lease))
        };
        let segment = Arc::new(Segment::new(slot, placed, owner, now, opens));
        segments.insert(segment.clone());
        known.segments.push(segment.clone());
        self.mounting.fetch_add(1, Ordering::AcqRel);
        Ok(Some(Mounting { segment, adopted: 0, refused: 0 }))
    }

    /// The owner says what is in its segment, or some of it.
    ///
    /// # Errors
    /// Where it cannot be in there. The segment is then to be given up.
    pub fn adopt(
        &self,
        now: Moment,
        mounting: &mut Mounting,
        held: Vec<Held>,
        told: &mut Told,
    ) -> Result<(), MountError> {
        let segments = self.segments.read();
        let segment = mounting.segment.clone();
        if segment.state() != State::Mounting {
            return Err(MountError::NotJoined { client: segment.placed.owner });
        }
        // Readers that an earlier master let read may still be reading.
        let quiet = now.after(self.settings.read_lease);
        for held in held {
            let extent = Extent::holding(held.offset, held.length);
            let extent = extent.filter(|extent| segment.reserve(*extent));
            let Some(extent) = extent else {
                return Err(MountError::Inventory {
                    segment: segment.placed.lent.segment,
                    version: held.version,
                    offset: held.offset,
                    length: held.length,
                });
            };
            self.raise_epoch(held.version.epoch());
            if self.adopt_one(&segments, now, &segment, &held, quiet, told) {
                mounting.adopted += 1;
            } else {
                let number = segment.tell(What::Drop(held.version));
                told.add(segment.owner.incarnation, number);
                segment.retire(Some(number), quiet, extent);
                mounting.refused += 1;
            }
        }
        Ok(())
    }

    /// Whether the object is in the pool now.
    fn adopt_one(
        &self,
        segments: &super::Segments,
        now: Moment,
        segment: &Segment,
        held: &Held,
        quiet: Moment,
        told: &mut Told,
    ) -> bool {
        if self.floors.lock().get(&held.tenant).is_some_and(|floor| held.version < *floor) {
            return false;
        }
        let name = self.name(&held.tenant, held.key.as_bytes());
        let mut shard = self.shard(name.hash).lock();
        let copy = Copy { slot: segment.slot, offset: held.offset };
        if let Some(number) = shard.find(&name) {
            let Some(there) = shard.objects.get_mut(number) else { return false };
            if there.version == held.version && there.writer.is_none() {
                let is_new = there.copies.iter().all(|copy| copy.slot != segment.slot);
                let is_same = there.length == held.length;
                if is_new && is_same {
                    there.copies.add(copy);
                }
                return is_new && is_same;
            }
            // What was put under this master is newer than anything of an earlier one.
            if !there.is_inherited || there.version > held.version {
                return false;
            }
            self.discard(segments, &mut shard, number, quiet, told);
        }
        if !self.has_room_for_keys(&shard) {
            return false;
        }
        let object = |key, group| Object {
            key,
            group,
            length: held.length,
            version: held.version,
            copies: Copies::new(vec![copy]),
            checksum: held.checksum,
            writer: None,
            read: quiet,
            noticed: Moment(0),
            used: Coarse::of(now),
            soft_pin: Coarse::default(),
            is_pinned: held.is_pinned,
            is_inherited: true,
        };
        self.insert(&mut shard, &name, held.group.as_deref(), object, held.version);
        true
    }

    /// The owner has said all: the segment is in the pool.
    ///
    /// # Errors
    /// Where its owner's lease has ended meanwhile.
    pub fn mounted(&self, mounting: &Mounting) -> Result<Mounted, MountError> {
        let segment = &mounting.segment;
        let owner = segment.placed.owner;
        let clients = self.clients.lock();
        let is_good = clients.leases.is_live(owner) && segment.state() == State::Mounting;
        if is_good {
            segment.set_state(State::Alive);
            self.mounting.fetch_sub(1, Ordering::AcqRel);
        }
        drop(clients);
        if !is_good {
            self.give_up(mounting);
            return Err(MountError::NotJoined { client: owner });
        }
        Ok(Mounted { adopted: mounting.adopted, refused: mounting.refused })
    }

    /// The owner has not said all: the segment is not mounted.
    pub fn give_up(&self, mounting: &Mounting) {
        self.mounting.fetch_sub(1, Ordering::AcqRel);
        self.remove_segment(&mounting.segment);
    }

    /// A segment is to be taken back: nothing more is placed in it or found in it.
    ///
    /// # Errors
    /// [`Outcome::NotFound`] where the client has no such segment that is mounted.
    pub fn unmount(
        &self,
        now: Moment,
        client: Incarnation,
        segment: SegmentId,
    ) -> Result<Leaving, Outcome> {
        let clients = self.clients.lock();
        let segment = clients.segment(client, segment).ok_or(Outcome::NotFound)?.clone();
        if matches!(segment.state(), State::Mounting | State::Gone) {
            return Err(Outcome::NotFound);
        }
        segment.set_state(State::Leaving);
        drop(clients);
        // Whoever found it open is done when this lock is free.
        drop(self.segments.write());
        let mut free = now;
        for shard in &self.shards {
            let shard = shard.lock();
            for number in 0..shard.objects.end() {
                let Some(object) = shard.objects.get(number) else { continue };
                if object.copies.iter().any(|copy| copy.slot == segment.slot) {
                    free = free.max(object.read);
                    if object.writer.is_some() {
                        free = free.max(now.after(self.settings.reservation));
                    }
                }
            }
        }
        Ok(Leaving { segment, free })
    }

    /// The segment is out of the pool. What was left of the leases on its objects.
    pub fn unmounted(&self, now: Moment, leaving: &Leaving) -> Duration {
        self.remove_segment(&leaving.segment);
        left(now, leaving.free)
    }

    fn remove_segment(&self, segment: &Arc<Segment>) {
        let mut clients = self.clients.lock();
        if segment.state() == State::Gone {
            return;
        }
        segment.set_state(State::Gone);
        if let Some(client) = clients.known.get_mut(&segment.placed.owner) {
            client.segments.retain(|other| other.slot != segment.slot);
        }
        self.gone.lock().push(segment.slot);
    }
}
