//! Room for objects: reserved, and then ended or given back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvferry_proto::Incarnation;
use kvferry_proto::pool::{
    Ended, Held, Outcome, Put, PutEnd, PutRevoke, PutStart, PutStartAnswer, Reserved, Tenant, What,
};

use super::find::Mentioned;
use super::moment::{Coarse, Moment};
use super::object::{Copies, Copy, Object, Writer};
use super::placement::{Candidate, Choice};
use super::segment::{Segment, Segments};
use super::shard::Shard;
use super::{Pool, Told};

/// Where the puts of one batch may go.
struct Places {
    open: Vec<Arc<Segment>>,
    choice: Choice,
    /// The longest segment.
    most: u64,
    /// No place has room for so many bytes, as has been found out.
    none: u64,
}

impl Pool {
    /// Reserves room. How many bytes are still wanted, one replica of each: [`Pool::make_room`] may
    /// help, and then [`Pool::reserve`].
    #[must_use]
    pub fn put_start(
        &self,
        now: Moment,
        seed: u64,
        start: &PutStart,
        told: &mut Told,
    ) -> (PutStartAnswer, u64) {
        let refusal = if !self.is_live(start.client) {
            Outcome::NotJoined
        } else if self.is_recovering(now) {
            Outcome::Recovering
        } else {
            // What is not tried yet.
            Outcome::NoSpace
        };
        let reserved = vec![Err(refusal); start.puts.len()];
        let reservation = self.settings.reservation;
        let mut answer = PutStartAnswer { reserved, segments: Vec::new(), reservation };
        if refusal != Outcome::NoSpace {
            return (answer, 0);
        }
        let wanted = self.reserve(now, seed, start, &mut answer, told);
        (answer, wanted)
    }

    /// Tries again for what found no room. How many bytes are still wanted, one replica of each.
    pub fn reserve(
        &self,
        now: Moment,
        seed: u64,
        start: &PutStart,
        answer: &mut PutStartAnswer,
        told: &mut Told,
    ) -> u64 {
        let segments = self.segments.read();
        let mut places = self.places(now, seed, start, &segments);
        let mut mentioned = Mentioned::default();
        let mut wanted = 0_u64;
        // Replicas refer to the segments that are mentioned from here on.
        let shift = answer.segments.len();
        for (put, reserved) in start.puts.iter().zip(&mut answer.reserved) {
            if !matches!(reserved, Err(Outcome::NoSpace | Outcome::Full)) {
                continue;
            }
            let got =
                self.reserve_one(now, start, put, &mut places, &segments, &mut mentioned, told);
            *reserved = got.map(|mut got| {
                for replica in &mut got.replicas {
                    replica.segment += shift;
                }
                got
            });
            if reserved.as_ref().is_err_and(|outcome| outcome.is_backpressure()) {
                wanted = wanted.saturating_add(put.length);
            }
        }
        answer.segments.extend(mentioned.placed);
        wanted
    }

    fn places(&self, now: Moment, seed: u64, start: &PutStart, segments: &Segments) -> Places {
        let client = start.client;
        let host = segments.iter().find(|segment| segment.placed.owner == client);
        let host = host.map(|segment| segment.placed.host.as_str()).filter(|host| !host.is_empty());
        let open: Vec<Arc<Segment>> =
            segments.iter().filter(|segment| segment.is_open(now)).cloned().collect();
        let candidate = |segment: &Arc<Segment>| Candidate {
            free: segment.free(),
            length: segment.placed.lent.length,
            mounted: segment.mounted,
            is_local: segment.placed.owner == client
                || host.is_some_and(|host| segment.placed.host == host),
            preference: start.preferred.iter().position(|name| *name == segment.placed.lent.name),
        };
        let candidates: Vec<Candidate> = open.iter().map(candidate).collect();
        let choice = Choice::new(now, self.settings.strategy, &candidates, seed);
        let most = candidates.iter().map(|candidate| candidate.length).max().unwrap_or(0);
        Places { open, choice, most, none: u64::MAX }
    }

    #[expect(clippy::too_many_arguments, reason = "what one put of a batch shares with the others")]
    fn reserve_one(
        &self,
        now: Moment,
        start: &PutStart,
        put: &Put,
        places: &mut Places,
        segments: &Segments,
        mentioned: &mut Mentioned,
        told: &mut Told,
    ) -> Result<Reserved, Outcome> {
        let name = self.name(&start.tenant, put.key.as_bytes());
        let mut shard = self.shard(name.hash).lock();
        if let Some(number) = shard.find(&name) {
            let there = shard.objects.get(number).ok_or(Outcome::NotFound)?;
            if there.writer.is_some() {
                return Err(Outcome::BeingWritten);
            }
            if Self::is_visible(segments, there) {
                return Err(Outcome::Exists);
            }
            // Nobody can reach it: what is put now takes its place.
            let quiet = there.read.max(now);
            self.discard(segments, &mut shard, number, quiet, told);
        }
        if !self.has_room_for_keys(&shard) {
            return Err(Outcome::Full);
        }
        let writer = Writer::new(start.client).ok_or(Outcome::NotJoined)?;
        let copies = places.take(put.length, start.replicas)?;
        let version = self.next_version();
        let soft_pin = start.soft_pin.min(self.settings.most_soft_pin);
        let soft_pin = if soft_pin.is_zero() { Moment(0) } else { now.after(soft_pin) };
        let object = |key, group| Object {
            key,
            group,
            length: put.length,
            version,
            copies: Copies::new(copies),
            checksum: None,
            writer: Some(writer),
            read: Moment(0),
            noticed: Moment(0),
            used: Coarse::of(now),
            soft_pin: Coarse::of(soft_pin),
            is_pinned: start.is_pinned,
            is_inherited: false,
        };
        let number = self.insert(&mut shard, &name, put.group.as_deref(), object, version);
        self.counts.writing.fetch_add(1, Ordering::Relaxed);
        shard.keep_until(now.after(self.settings.reservation), number, version);
        let object = shard.objects.get(number).ok_or(Outcome::NotFound)?;
        Ok(Reserved { version, replicas: mentioned.replicas(segments, object) })
    }

    /// Whether there may be one object more.
    pub(super) fn has_room_for_keys(&self, shard: &Shard) -> bool {
        let limits = &self.settings.limits;
        shard.has_room()
            && self.counts.keys.load(Ordering::Relaxed) < limits.keys
            && self.counts.key_bytes.load(Ordering::Relaxed) < limits.metadata_bytes
    }

    /// Objects have been written: they can be found from now on. When their owners have what they
    /// are told, they outlive the master.
    #[must_use]
    pub fn put_end(&self, now: Moment, end: &PutEnd, told: &mut Told) -> Vec<Outcome> {
        let segments = self.segments.read();
        let one = |ended| self.end_one(now, end.client, &end.tenant, ended, &segments, told);
        end.puts.iter().map(one).collect()
    }

    fn end_one(
        &self,
        now: Moment,
        client: Incarnation,
        tenant: &Tenant,
        ended: &Ended,
        segments: &Segments,
        told: &mut Told,
    ) -> Outcome {
        let name = self.name(tenant, ended.key.as_bytes());
        let mut shard = self.shard(name.hash).lock();
        let Some((number, object)) = reserved(&mut shard, &name, client, ended.version) else {
            let mut removed = self.removed.lock();
            removed.done(now, client, ended.version, &ended.lost);
            return Outcome::NotReserved;
        };
        // What was not written may still be, until the reservation ends.
        let quiet = now.after(self.settings.reservation).after(self.settings.late_writes);
        let is_good = |copy: Copy| {
            segments.get(copy.slot).is_some_and(|segment| {
                segment.is_visible() && !ended.lost.contains(&segment.placed.lent.segment)
            })
        };
        if !object.copies.iter().any(is_good) {
            self.discard(segments, &mut shard, number, quiet, told);
            return Outcome::NotFound;
        }
        let length = object.length;
        object.copies.retain(|copy| {
            let good = is_good(copy);
            if !good && let Some(segment) = segments.get(copy.slot) {
                Self::give_back(segment, copy.offset, length, None, quiet, told);
            }
            good
        });
        object.checksum = ended.checksum;
        object.used = Coarse::of(now);
        let held = Held {
            tenant: tenant.clone(),
            key: ended.key.clone(),
            version: ended.version,
            offset: 0,
            length,
            checksum: ended.checksum,
            is_pinned: object.is_pinned,
            group: self.groups.lock().name(object.group),
        };
        for copy in object.copies.iter() {
            if let Some(segment) = segments.get(copy.slot) {
                let held = Held { offset: copy.offset, ..held.clone() };
                told.add(segment.owner.incarnation, segment.tell(What::Keep(held)));
            }
        }
        shard.finish(number);
        self.counts.writing.fetch_sub(1, Ordering::Relaxed);
        Outcome::Ok
    }

    /// Reservations are given back.
    #[must_use]
    pub fn put_revoke(&self, now: Moment, revoke: &PutRevoke) -> Vec<Outcome> {
        let segments = self.segments.read();
        let late = now.after(self.settings.reservation).after(self.settings.late_writes);
        let one = |revoked: &kvferry_proto::pool::Revoked| {
            let name = self.name(&revoke.tenant, revoked.key.as_bytes());
            let mut shard = self.shard(name.hash).lock();
            let found = reserved(&mut shard, &name, revoke.client, revoked.version);
            let Some((number, _)) = found else {
                if revoked.is_fenced {
                    let mut removed = self.removed.lock();
                    removed.done(now, revoke.client, revoked.version, &[]);
                }
                return Outcome::NotReserved;
            };
            let quiet = if revoked.is_fenced { now } else { late };
            // Nobody was told of it.
            self.discard(&segments, &mut shard, number, quiet, &mut Told::default());
            Outcome::Ok
        };
        let outcomes = revoke.puts.iter().map(one).collect();
        for segment in segments.iter() {
            segment.release_due(now);
        }
        outcomes
    }
}

/// The object that this client writes under this name, if it is that very put.
fn reserved<'a>(
    shard: &'a mut Shard,
    name: &super::Name<'_>,
    client: Incarnation,
    version: kvferry_proto::pool::Version,
) -> Option<(u32, &'a mut Object)> {
    let number = shard.find(name)?;
    let object = shard.objects.get_mut(number)?;
    let is_it = object.version == version && object.writer.is_some_and(|writer| writer.is(client));
    is_it.then_some((number, object))
}

impl Places {
    /// Room for each copy, in different segments: at least one.
    fn take(&mut self, length: u64, replicas: usize) -> Result<Vec<Copy>, Outcome> {
        if length >= self.none {
            return Err(Outcome::NoSpace);
        }
        if length > self.most && self.most > 0 {
            return Err(Outcome::TooLarge);
        }
        let open = &self.open;
        let copies = self.choice.pick(replicas, |index| {
            let segment = &open[index];
            if segment.free() < length {
                return None;
            }
            let extent = segment.allocate(length)?;
            Some(Copy { slot: segment.slot, offset: extent.offset })
        });
        if copies.is_empty() {
            self.none = length;
            return Err(Outcome::NoSpace);
        }
        Ok(copies)
    }
}
