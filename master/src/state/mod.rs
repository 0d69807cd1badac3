//! Which segments there are, what is in them, and who may do what with it for how long: a state
//! machine without I/O.
//!
//! [`Pool`] reads no clock, draws no randomness and never waits. Every command is given the time and,
//! where something is to be chosen, a seed; what it leaves to be done is in its answer. It is shared
//! by threads: objects lie in shards by the hash of their names, each under a lock of its own.
//!
//! ```
//! use kv_master::state::{Moment, Pool, Settings};
//! use kvferry_proto::Incarnation;
//! use kvferry_proto::pool::{Exists, Join, Key, Presence, Tenant};
//!
//! let pool = Pool::new(Settings { recovery: std::time::Duration::ZERO, ..Settings::default() }, 7);
//! let client = Incarnation(1);
//! let joined = pool.join(Moment(0), &Join { client, host: "a".to_owned(), epoch: 0 });
//! assert_eq!(joined.map(|joined| joined.epoch), Ok(1));
//! let keys = vec![Key::try_from("m@0@af3c")?];
//! let exists = Exists { tenant: Tenant::default(), keys, lease: true };
//! assert_eq!(pool.exists(Moment(5), &exists).found, [Presence::Absent]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Truth lives with the owners.** Whatever is in a segment is in its owner's inventory before
//! anybody is told that it is safe, and out of it before its bytes are given to another: changes are
//! numbered for each owner, and it says how far it has come ([`Pool::follow`]). A new master is told
//! the inventories ([`Pool::mount`]) and knows the same as the one before. Until owners had time for
//! that it says that it is recovering where it would have to say that something is not there.
//!
//! **Bytes are as they were promised.** An extent is given out again when its object is out of the
//! inventory, when the leases of readers are over, and when no write that was allowed can land any
//! more, whatever became of the object.
//!
//! | file | what stands there |
//! |---|---|
//! | `clients`, `lease` | joining, signs of life; whose lease runs |
//! | `mount`, `segment`, `feed`, `extents` | segments coming and going; what their owners have to be told; which of their bytes are free |
//! | `put`, `placement` | room for objects, and where |
//! | `find`, `batch` | looking, a few keys at a time |
//! | `remove`, `removed` | removing, also what is being written |
//! | `evict`, `eviction`, `group`, `tend` | what goes when room is needed; what is due |
//! | `shard`, `object`, `name`, `slab` | objects in few bytes |
//! | `list` | what people ask for |
//!
//! Locks are taken in this order: the list of segments; clients; one shard; what was removed, groups,
//! an owner's feed, or a segment's room. Whoever holds clients waits for nothing that takes long: signs
//! of life need them. `batch` holds several shards, and waits for no lock while it does.

mod batch;
mod clients;
mod evict;
mod eviction;
mod extents;
mod feed;
mod find;
mod group;
mod lease;
mod list;
mod moment;
mod mount;
mod name;
mod object;
mod placement;
mod put;
mod remove;
mod removed;
mod segment;
mod settings;
mod shard;
mod slab;
mod tend;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use clients::Clients;
pub use clients::{FollowError, Joined};
pub use evict::Evicted;
pub use extents::{ALIGNMENT, Extent, Extents};
use group::Groups;
use kvferry_proto::Incarnation;
use kvferry_proto::pool::{Tenant, Version, What};
pub use lease::{Became, LeaseTimes, Leases};
pub use list::{KeyStatus, Totals};
pub use moment::Moment;
pub use mount::{Leaving, MountError, Mounted, Mounting};
use name::{Hashing, Name};
use object::{Hold, NO_GROUP, Object};
use parking_lot::{Mutex, RwLock};
pub use placement::{Candidate, Choice, Strategy};
pub use remove::Matcher;
use removed::Removed;
use segment::{Segments, Slot};
pub use settings::{Limits, Settings};
use shard::Shard;

use segment::Segment;

/// How many shards there are. A shard's objects are looked through under its lock, for evictions
/// and removals by what matches: with a million objects that is less than a millisecond.
pub const SHARDS: usize = 256;

/// Which owners have something to be told, and the number of the last change of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told(BTreeMap<Incarnation, u64>);

impl Told {
    fn add(&mut self, owner: Incarnation, number: u64) {
        let last = self.0.entry(owner).or_default();
        *last = number.max(*last);
    }

    /// Adds what another has.
    pub fn merge(&mut self, other: Self) {
        for (owner, number) in other.0 {
            self.add(owner, number);
        }
    }

    /// The owners.
    pub fn owners(&self) -> impl Iterator<Item = Incarnation> {
        self.0.keys().copied()
    }
}

/// How what owners were told stands with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// All have it in their inventories.
    Recorded,
    /// Some have not, and can be expected to.
    Awaited,
    /// Some have not, and are not expected to: their leases are over.
    Missed,
}

/// Numbers that change with objects.
#[derive(Debug, Default)]
struct Counts {
    keys: AtomicU64,
    key_bytes: AtomicU64,
    writing: AtomicU64,
    evicted_keys: AtomicU64,
    evicted_bytes: AtomicU64,
    reclaimed: AtomicU64,
}

/// The state of a pool.
#[derive(Debug)]
pub struct Pool {
    settings: Settings,
    hashing: Hashing,
    shards: Box<[Mutex<Shard>]>,
    segments: RwLock<Segments>,
    clients: Mutex<Clients>,
    groups: Mutex<Groups>,
    /// Of each tenant: what was put earlier than this was removed with all others.
    floors: Mutex<HashMap<Tenant, Version>>,
    epoch: AtomicU32,
    /// The version of the next put.
    version: AtomicU64,
    /// How many owners are saying what they have.
    mounting: AtomicUsize,
    is_recovered: AtomicBool,
    /// When it was last looked whose lease is over, and for how long that had been late until then,
    /// in milliseconds.
    looked: AtomicU64,
    held_up_ms: AtomicU64,
    /// What was removed while it was written.
    removed: Mutex<Removed>,
    /// Segments that are gone, and may still be referred to.
    gone: Mutex<Vec<Slot>>,
    /// One at a time evicts.
    evicting: Mutex<()>,
    counts: Counts,
}

impl Pool {
    /// An empty pool, whose master has just started. The seed decides how names are hashed: nobody
    /// outside should know it.
    #[must_use]
    pub fn new(settings: Settings, seed: u64) -> Self {
        let clients = Clients::new(settings.clients);
        Self {
            settings,
            hashing: Hashing::new(seed),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            segments: RwLock::default(),
            clients: Mutex::new(clients),
            groups: Mutex::default(),
            floors: Mutex::default(),
            epoch: AtomicU32::new(1),
            version: AtomicU64::new(Version::first(1).0),
            mounting: AtomicUsize::new(0),
            is_recovered: AtomicBool::new(false),
            looked: AtomicU64::new(0),
            held_up_ms: AtomicU64::new(0),
            removed: Mutex::default(),
            gone: Mutex::default(),
            evicting: Mutex::default(),
            counts: Counts::default(),
        }
    }

    /// How it behaves.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether owners may still have to say what they have: what was not found may be there.
    #[must_use]
    pub fn is_recovering(&self, now: Moment) -> bool {
        if self.is_recovered.load(Ordering::Acquire) {
            return false;
        }
        let since = self.awake(now);
        let is_open = since < self.settings.recovery
            || (self.mounting.load(Ordering::Acquire) > 0 && since < self.settings.most_recovery);
        if !is_open {
            self.is_recovered.store(true, Ordering::Release);
        }
        is_open
    }

    /// How long this master has been at work. While it was stopped nobody could tell it anything; that
    /// it was is seen by [`Pool::look`] being late, or due for long.
    fn awake(&self, now: Moment) -> Duration {
        // In this order: what is held against it twice keeps it recovering for longer, no more.
        let unseen = now.since(Moment(self.looked.load(Ordering::Acquire)));
        let held_up = Duration::from_millis(self.held_up_ms.load(Ordering::Acquire));
        let is_late = unseen > self.settings.clients.look_late();
        let stopped = held_up + if is_late { unseen } else { Duration::ZERO };
        now.since(Moment(0)).saturating_sub(stopped)
    }

    /// The epoch of this master.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Somebody was told of that epoch by an earlier master: this one's is higher.
    fn raise_epoch(&self, seen: u32) {
        let above = seen.saturating_add(1).min(Version::MOST_EPOCH);
        if self.epoch.fetch_max(above, Ordering::AcqRel) < above {
            self.version.fetch_max(Version::first(above).0, Ordering::AcqRel);
        }
    }

    fn next_version(&self) -> Version {
        Version(self.version.fetch_add(1, Ordering::AcqRel))
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        // Other bits than those by which a shard's own index is built.
        let bits = usize::from(hash.to_be_bytes()[1]);
        &self.shards[bits % SHARDS]
    }

    fn name<'a>(&self, tenant: &'a Tenant, key: &'a [u8]) -> Name<'a> {
        self.hashing.name(tenant.as_str(), key)
    }

    /// Whether all these owners have what they were told in their inventories.
    #[must_use]
    pub fn is_recorded(&self, told: &Told) -> bool {
        self.stand(told) == Standing::Recorded
    }

    /// How what these owners were told stands with them. Of those whose lease is over nothing is
    /// expected: they are told when they come back.
    #[must_use]
    pub fn stand(&self, told: &Told) -> Standing {
        let clients = self.clients.lock();
        let mut standing = Standing::Recorded;
        for (owner, number) in &told.0 {
            match clients.has_applied(*owner, *number) {
                Some(true) => {}
                Some(false) => return Standing::Awaited,
                None => standing = Standing::Missed,
            }
        }
        standing
    }

    fn is_visible(segments: &Segments, object: &Object) -> bool {
        object
            .copies
            .iter()
            .any(|copy| segments.get(copy.slot).is_some_and(|segment| segment.is_visible()))
    }

    /// What an object with such a name takes of the master's memory.
    fn entry_bytes(heap: usize) -> u64 {
        /// An entry of an index, at the load that it has on average.
        const INDEX: usize = 8;
        (size_of::<Option<Object>>() + INDEX + heap) as u64
    }

    /// Adds an object that is not there.
    fn insert(
        &self,
        shard: &mut Shard,
        name: &Name<'_>,
        group: Option<&str>,
        object: impl FnOnce(name::Stored, u32) -> Object,
        version: Version,
    ) -> u32 {
        let (group, shared) = group.map_or((NO_GROUP, 0), |group| {
            self.groups.lock().join(name.tenant, group, version, name.hash)
        });
        let (number, heap) = shard.insert(&self.hashing, name, |key| object(key, group));
        self.counts.keys.fetch_add(1, Ordering::Relaxed);
        self.counts.key_bytes.fetch_add(Self::entry_bytes(heap + shared), Ordering::Relaxed);
        number
    }

    /// Takes an object out. Its bytes may be given to others when its owners have taken it out of
    /// their inventories, and not before `quiet`.
    fn discard(
        &self,
        segments: &Segments,
        shard: &mut Shard,
        number: u32,
        quiet: Moment,
        told: &mut Told,
    ) -> Option<Object> {
        let (object, heap) = shard.remove(&self.hashing, number)?;
        let shared = match object.group {
            NO_GROUP => 0,
            group => self.groups.lock().leave(group, object.version),
        };
        self.counts.keys.fetch_sub(1, Ordering::Relaxed);
        self.counts.key_bytes.fetch_sub(Self::entry_bytes(heap + shared), Ordering::Relaxed);
        if object.writer.is_some() {
            self.counts.writing.fetch_sub(1, Ordering::Relaxed);
        }
        let was_told = object.writer.is_none();
        for copy in object.copies.iter() {
            let segment = segments.get(copy.slot);
            let told_of = if was_told { Some(object.version) } else { None };
            if let Some(segment) = segment {
                Self::give_back(segment, copy.offset, object.length, told_of, quiet, told);
            }
        }
        Some(object)
    }

    /// Gives a copy's room back: its owner is told where it had been told of the object.
    fn give_back(
        segment: &Segment,
        offset: u64,
        length: u64,
        told_of: Option<Version>,
        quiet: Moment,
        told: &mut Told,
    ) {
        let Some(extent) = Extent::holding(offset, length) else { return };
        if segment.state() == segment::State::Gone {
            return;
        }
        let number = told_of.map(|version| segment.tell(What::Drop(version)));
        if let Some(number) = number {
            told.add(segment.owner.incarnation, number);
        }
        segment.retire(number, quiet, extent);
    }

    /// How many bytes there are in segments that can be found, how many of them are in use, and how
    /// many wait to be given out again.
    fn fill(&self) -> (u64, u64, u64) {
        let segments = self.segments.read();
        let visible = segments.iter().filter(|segment| segment.is_visible());
        visible.fold((0, 0, 0), |(capacity, used, retired), segment| {
            let length = segment.placed.lent.length;
            (capacity + length, used + segment.in_use(), retired + segment.retired())
        })
    }
}

/// What is left of a time that ends then.
fn left(now: Moment, until: Moment) -> Duration {
    until.since(now)
}
