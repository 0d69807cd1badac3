//! Looking: which objects are there, and where.

use std::time::Duration;

use kvferry_proto::pool::{
    Exists, ExistsAnswer, Locate, LocateAnswer, Located, Outcome, Placed, Presence, Replica,
};

use super::moment::{Coarse, Moment};
use super::object::Object;
use super::segment::{Segments, Slot};
use super::{Pool, left};

/// The segments of an answer.
#[derive(Debug, Default)]
pub(super) struct Mentioned {
    slots: Vec<Slot>,
    pub(super) placed: Vec<Placed>,
}

impl Mentioned {
    /// The copies of an object in segments that can be found.
    pub(super) fn replicas(&mut self, segments: &Segments, object: &Object) -> Vec<Replica> {
        let copies = object.copies.iter().filter_map(|copy| {
            let segment = segments.get(copy.slot).filter(|segment| segment.is_visible())?;
            // A batch is in few segments, and mostly in the ones that were mentioned last.
            let known = self.slots.iter().rposition(|slot| *slot == copy.slot);
            let index = known.unwrap_or_else(|| {
                self.slots.push(copy.slot);
                self.placed.push(segment.placed.clone());
                self.slots.len() - 1
            });
            Some(Replica { segment: index, offset: copy.offset })
        });
        copies.collect()
    }
}

impl Pool {
    /// Which objects are there. With [`Exists::lease`], those that are are kept for a while: a lease
    /// that runs is not prolonged, and gives way to puts that find no other room.
    #[must_use]
    pub fn exists(&self, now: Moment, exists: &Exists) -> ExistsAnswer {
        let absent = if self.is_recovering(now) { Presence::Recovering } else { Presence::Absent };
        let until = now.after(self.settings.notice_lease);
        let used = Coarse::of(now);
        let mut least = until;
        let mut found = vec![absent; exists.keys.len()];
        let segments = self.segments.read();
        self.look_up(&exists.tenant, &exists.keys, |index, shard, number| {
            let object = number.and_then(|number| shard.objects.get_mut(number));
            let Some(object) = object.filter(|object| object.writer.is_none()) else { return };
            if !Self::is_visible(&segments, object) {
                return;
            }
            object.use_at(used);
            if exists.lease {
                if object.noticed <= now {
                    object.noticed = until;
                }
                least = least.min(object.noticed.max(object.read));
            }
            found[index] = Presence::There;
        });
        let lease = if exists.lease { left(now, least) } else { Duration::ZERO };
        ExistsAnswer { found, lease }
    }

    /// Where objects are. Their bytes stay as they are until the lease is over, whatever becomes of
    /// the objects.
    #[must_use]
    pub fn locate(&self, now: Moment, locate: &Locate) -> LocateAnswer {
        let absent = if self.is_recovering(now) { Outcome::Recovering } else { Outcome::NotFound };
        let until = now.after(self.settings.read_lease);
        let used = Coarse::of(now);
        let mut mentioned = Mentioned::default();
        let mut objects = vec![Err(absent); locate.keys.len()];
        let segments = self.segments.read();
        self.look_up(&locate.tenant, &locate.keys, |index, shard, number| {
            let object = number.and_then(|number| shard.objects.get_mut(number));
            let Some(object) = object.filter(|object| object.writer.is_none()) else { return };
            let replicas = mentioned.replicas(&segments, object);
            if replicas.is_empty() {
                return;
            }
            object.read = object.read.max(until);
            object.use_at(used);
            objects[index] = Ok(Located {
                length: object.length,
                version: object.version,
                checksum: object.checksum,
                replicas,
            });
        });
        drop(segments);
        LocateAnswer { objects, segments: mentioned.placed, lease: left(now, until) }
    }
}
