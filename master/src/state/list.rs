//! What people ask for: segments, keys, totals.

use std::sync::atomic::Ordering;

use kvferry_proto::pool::{Key, Outcome, Placed, SegmentStatus, Tenant, Version};

use super::moment::Moment;
use super::segment::Segments;
use super::{Hold, Pool};

/// What is known of an object, without a lease on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyStatus {
    /// How long it is, in bytes.
    pub length: u64,
    /// Which put it came from.
    pub version: Version,
    /// CRC-32C of its bytes, where the writer gave it.
    pub checksum: Option<u32>,
    /// Whether a lease keeps it now.
    pub is_leased: bool,
    /// Whether it is never evicted.
    pub is_pinned: bool,
    /// Where it can be reached, with the offset in each segment.
    pub replicas: Vec<(Placed, u64)>,
}

/// Numbers of a whole pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Objects, and what is being written.
    pub keys: u64,
    /// Those of them that are being written.
    pub writing: u64,
    /// The master's memory for them, about, in bytes.
    pub key_bytes: u64,
    /// Length of all segments that can be found, in bytes.
    pub capacity: u64,
    /// How much of that objects take, in bytes.
    pub used: u64,
    /// Segments that can be found.
    pub segments: usize,
    /// Clients whose leases run.
    pub clients: usize,
    /// Objects that were evicted since the start.
    pub evicted_keys: u64,
    /// Their bytes.
    pub evicted_bytes: u64,
    /// Puts that were taken back because their writers did not finish.
    pub reclaimed: u64,
}

impl Pool {
    /// What is known of an object. It is kept for no longer than without being asked for.
    ///
    /// # Errors
    /// [`Outcome::NotFound`], or [`Outcome::Recovering`] where that cannot be known yet.
    pub fn query(&self, now: Moment, tenant: &Tenant, key: &Key) -> Result<KeyStatus, Outcome> {
        let absent = if self.is_recovering(now) { Outcome::Recovering } else { Outcome::NotFound };
        let segments = self.segments.read();
        let name = self.name(tenant, key.as_bytes());
        let shard = self.shard(name.hash).lock();
        let number = shard.find(&name).ok_or(absent)?;
        let object = shard.objects.get(number).filter(|object| object.writer.is_none());
        let object = object.ok_or(absent)?;
        let replicas: Vec<(Placed, u64)> = object
            .copies
            .iter()
            .filter_map(|copy| {
                let segment = segments.get(copy.slot).filter(|segment| segment.is_visible())?;
                Some((segment.placed.clone(), copy.offset))
            })
            .collect();
        if replicas.is_empty() {
            return Err(absent);
        }
        Ok(KeyStatus {
            length: object.length,
            version: object.version,
            checksum: object.checksum,
            is_leased: object.read > now || object.noticed > now,
            is_pinned: object.is_pinned,
            replicas,
        })
    }

    /// Calls `see` with the keys of one tenant that can be found, in one of the [`super::SHARDS`].
    pub fn each_key(&self, shard: usize, tenant: &Tenant, mut see: impl FnMut(&[u8])) {
        let segments = self.segments.read();
        let Some(shard) = self.shards.get(shard) else { return };
        let shard = shard.lock();
        let mut key = Vec::new();
        for number in 0..shard.objects.end() {
            let Some(object) = shard.objects.get(number) else { continue };
            if object.writer.is_some()
                || shard.names.tenant(&object.key) != tenant.as_str()
                || !Self::is_visible(&segments, object)
            {
                continue;
            }
            key.clear();
            shard.names.write_key(&object.key, &mut key);
            see(&key);
        }
    }

    /// How many objects have a soft pin that runs. Looks at all of them.
    #[must_use]
    pub fn soft_pinned(&self, now: Moment) -> u64 {
        let mut count = 0;
        for shard in &self.shards {
            let shard = shard.lock();
            let objects = (0..shard.objects.end()).filter_map(|number| shard.objects.get(number));
            count += objects.filter(|object| object.hold(now) == Hold::SoftPin).count() as u64;
        }
        count
    }

    /// All segments.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentStatus> {
        let segments: &Segments = &self.segments.read();
        segments.iter().filter_map(|segment| segment.status()).collect()
    }

    /// Numbers of the whole pool.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let (capacity, used, _) = self.fill();
        let clients = self.clients().0;
        let segments = self.segments.read().iter().filter(|found| found.is_visible()).count();
        let counts = &self.counts;
        Totals {
            keys: counts.keys.load(Ordering::Relaxed),
            writing: counts.writing.load(Ordering::Relaxed),
            key_bytes: counts.key_bytes.load(Ordering::Relaxed),
            capacity,
            used,
            segments,
            clients,
            evicted_keys: counts.evicted_keys.load(Ordering::Relaxed),
            evicted_bytes: counts.evicted_bytes.load(Ordering::Relaxed),
            reclaimed: counts.reclaimed.load(Ordering::Relaxed),
        }
    }
}
