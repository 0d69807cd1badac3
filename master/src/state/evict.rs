//! Evicting, as [`super::eviction`] decides.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::eviction::{SAMPLE, Sampled, Threshold, thresholds};
use super::moment::Moment;
use super::object::{Hold, NO_GROUP, Object};
use super::segment::Segments;
use super::{Pool, SHARDS, Told};

/// What was evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// How many objects.
    pub keys: u64,
    /// How many bytes of theirs, each replica counted.
    pub bytes: u64,
}

impl Pool {
    /// A put found no room for so many bytes: evicts, if need be also what somebody was told exists.
    /// The room can be used when owners have been told.
    pub fn make_room(&self, now: Moment, seed: u64, wanted: u64, told: &mut Told) -> Evicted {
        let (capacity, _, retired) = self.fill();
        let portion = portion(capacity, self.settings.eviction_ratio);
        // Room that is about to come free counts, lest everybody who waits for it evicts anew.
        if retired >= wanted.saturating_add(portion) {
            return Evicted::default();
        }
        self.evict(now, seed, wanted.max(portion), true, told)
    }

    /// Evicts if more of the pool is in use than should be.
    pub fn keep_below_watermark(&self, now: Moment, seed: u64, told: &mut Told) -> Evicted {
        let (capacity, used, _) = self.fill();
        let high = portion(capacity, self.settings.high_watermark);
        if used <= high {
            return Evicted::default();
        }
        let wanted = used - high + portion(capacity, self.settings.eviction_ratio);
        self.evict(now, seed, wanted, false, told)
    }

    /// Evicts about so many bytes, where there are as many that may go. One at a time does: another
    /// that comes meanwhile evicts nothing.
    fn evict(&self, now: Moment, seed: u64, wanted: u64, urgent: bool, told: &mut Told) -> Evicted {
        let mut evicted = Evicted::default();
        let Some(_turn) = self.evicting.try_lock() else { return evicted };
        let may_go = |hold| match hold {
            Hold::None => true,
            Hold::SoftPin => self.settings.evict_soft_pinned,
            Hold::Noticed => urgent,
            Hold::Firm => false,
        };
        let mut random = fastrand::Rng::with_seed(seed);
        let (sample, looked) = self.sample(now, &mut random, may_go);
        let objects =
            usize::try_from(self.counts.keys.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        let first = random.usize(0..SHARDS);
        for threshold in thresholds(sample, looked, objects.max(looked), wanted) {
            for shard in (0..SHARDS).map(|shard| (first + shard) % SHARDS) {
                if evicted.bytes >= wanted {
                    break;
                }
                self.sweep(now, shard, threshold, wanted, &mut evicted, told);
            }
        }
        self.counts.evicted_keys.fetch_add(evicted.keys, Ordering::Relaxed);
        self.counts.evicted_bytes.fetch_add(evicted.bytes, Ordering::Relaxed);
        evicted
    }

    /// Some objects of each shard, those of them that may go, and how many were looked at.
    fn sample(
        &self,
        now: Moment,
        random: &mut fastrand::Rng,
        may_go: impl Fn(Hold) -> bool,
    ) -> (Vec<Sampled>, usize) {
        let (mut sample, mut looked) = (Vec::new(), 0);
        for shard in &self.shards {
            // Of each shard anew: a segment that comes waits for one of them, not for all.
            let segments = self.segments.read();
            let shard = shard.lock();
            let end = shard.objects.end();
            let is_small = end <= SAMPLE;
            for number in 0..end.min(SAMPLE) {
                let number = if is_small { number } else { random.u32(0..end) };
                let Some(object) = shard.objects.get(number) else { continue };
                looked += 1;
                let hold = object.hold(now);
                if may_go(hold) && Self::is_evictable(&segments, object) {
                    let bytes = object.length * object.copies.iter().count() as u64;
                    sample.push(Sampled { hold, used: object.used, bytes });
                }
            }
        }
        (sample, looked)
    }

    /// What is hidden gives no room: its segment is expired.
    fn is_evictable(segments: &Segments, object: &Object) -> bool {
        Self::is_visible(segments, object)
    }

    fn sweep(
        &self,
        now: Moment,
        shard: usize,
        threshold: Threshold,
        wanted: u64,
        evicted: &mut Evicted,
        told: &mut Told,
    ) {
        let segments = self.segments.read();
        let mut groups = BTreeSet::new();
        let mut shard = self.shards[shard].lock();
        for number in 0..shard.objects.end() {
            if evicted.bytes >= wanted {
                break;
            }
            let Some(object) = shard.objects.get(number) else { continue };
            if object.hold(now) != threshold.hold
                || object.used > threshold.used
                || !Self::is_evictable(&segments, object)
            {
                continue;
            }
            if object.group != NO_GROUP {
                groups.insert(object.group);
                continue;
            }
            let gone = self.discard(&segments, &mut shard, number, now, told);
            evicted.add(gone.as_ref());
        }
        drop(shard);
        for group in groups {
            if evicted.bytes >= wanted {
                break;
            }
            self.evict_group(now, &segments, group, threshold.hold, evicted, told);
        }
    }

    /// Evicts all of a group, or nothing where one of its members has to stay.
    fn evict_group(
        &self,
        now: Moment,
        segments: &Segments,
        group: u32,
        most: Hold,
        evicted: &mut Evicted,
        told: &mut Told,
    ) {
        let members = self.groups.lock().members(group);
        let may_go = |object: &Object| object.hold(now) <= most;
        let can_go = members.iter().all(|(version, hash)| {
            let shard = self.shard(*hash).lock();
            let found = shard.find_version(*hash, *version);
            found.and_then(|number| shard.objects.get(number)).is_none_or(may_go)
        });
        if !can_go {
            return;
        }
        for (version, hash) in members {
            let mut shard = self.shard(hash).lock();
            let Some(number) = shard.find_version(hash, version) else { continue };
            // It may have been read since.
            if shard.objects.get(number).is_some_and(may_go) {
                let gone = self.discard(segments, &mut shard, number, now, told);
                evicted.add(gone.as_ref());
            }
        }
    }
}

impl Evicted {
    fn add(&mut self, gone: Option<&Object>) {
        if let Some(gone) = gone {
            self.keys += 1;
            self.bytes += gone.length * gone.copies.iter().count() as u64;
        }
    }
}

/// A part of so many bytes. Lengths of segments have 48 bits, which a float holds exactly.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a number of bytes need not be exact, and casts of floats saturate"
)]
fn portion(bytes: u64, share: f64) -> u64 {
    (bytes as f64 * share) as u64
}
