//! Removing: by name, by what matches.

use kvferry_proto::pool::{Matching, Outcome, Remove, Tenant, Version};

use super::moment::Moment;
use super::object::{Hold, Object};
use super::segment::Segments;
use super::shard::Shard;
use super::{Pool, Told};

/// The most memory that a regular expression may need once it is compiled, in bytes: which bounds how
/// long one key takes, too.
const REGEX_BYTES: usize = 1 << 20;

/// What a removal looks for. Each key takes time in proportion to its length.
#[derive(Clone, Debug)]
pub enum Matcher {
    /// A beginning.
    Prefix(String),
    /// A regular expression.
    Regex(regex::bytes::Regex),
    /// All.
    All,
}

impl Matcher {
    /// What matches.
    ///
    /// # Errors
    /// Where it is no regular expression, or one that needs too much memory.
    pub fn new(matching: Matching) -> Result<Self, regex::Error> {
        Ok(match matching {
            Matching::Prefix(prefix) => Self::Prefix(prefix),
            Matching::All => Self::All,
            Matching::Regex(pattern) => Self::Regex(
                regex::bytes::RegexBuilder::new(&pattern)
                    .size_limit(REGEX_BYTES)
                    .dfa_size_limit(REGEX_BYTES)
                    .build()?,
            ),
        })
    }

    fn is_match(&self, key: &[u8]) -> bool {
        match self {
            Self::Prefix(prefix) => key.starts_with(prefix.as_bytes()),
            Self::Regex(regex) => regex.is_match(key),
            Self::All => true,
        }
    }
}

impl Pool {
    /// Removes objects. With [`Remove::force`] also what is leased, pinned or being written: it cannot
    /// be found any more, and its bytes stay until nobody can be using them.
    #[must_use]
    pub fn remove(&self, now: Moment, remove: &Remove, told: &mut Told) -> Vec<Outcome> {
        let is_recovering = self.is_recovering(now);
        let segments = self.segments.read();
        let one = |key: &kvferry_proto::pool::Key| {
            let name = self.name(&remove.tenant, key.as_bytes());
            let mut shard = self.shard(name.hash).lock();
            match shard.find(&name) {
                Some(number) => {
                    self.remove_one(&segments, now, &mut shard, number, remove.force, told)
                }
                None if is_recovering => Outcome::Recovering,
                None => Outcome::NotFound,
            }
        };
        remove.keys.iter().map(one).collect()
    }

    fn remove_one(
        &self,
        segments: &Segments,
        now: Moment,
        shard: &mut Shard,
        number: u32,
        force: bool,
        told: &mut Told,
    ) -> Outcome {
        let Some(object) = shard.objects.get(number) else { return Outcome::NotFound };
        if !force {
            match object.hold(now) {
                Hold::None | Hold::SoftPin => {}
                Hold::Noticed => return Outcome::Leased,
                Hold::Firm if object.writer.is_some() => return Outcome::BeingWritten,
                Hold::Firm if object.is_pinned => return Outcome::Pinned,
                Hold::Firm => return Outcome::Leased,
            }
        }
        let quiet = self.quiet(now, object);
        if object.writer.is_some() {
            self.removed.lock().add(segments, object, quiet);
        }
        self.discard(segments, shard, number, quiet, told);
        Outcome::Ok
    }

    /// When nobody can be using the bytes of an object any more that is taken out now.
    fn quiet(&self, now: Moment, object: &Object) -> Moment {
        if object.writer.is_some() {
            return now.after(self.settings.reservation).after(self.settings.late_writes);
        }
        object.read.max(now)
    }

    /// Before all objects of a tenant are removed: those that owners bring later, and that were put
    /// earlier than now, are not taken in any more.
    ///
    /// # Errors
    /// [`Outcome::Recovering`] where owners have still to say what they have.
    pub fn close_past(&self, now: Moment, tenant: &Tenant) -> Result<(), Outcome> {
        if self.is_recovering(now) {
            return Err(Outcome::Recovering);
        }
        let version = Version(self.version.load(std::sync::atomic::Ordering::Acquire));
        let mut floors = self.floors.lock();
        if floors.len() >= self.settings.limits.tenants && !floors.contains_key(tenant) {
            let oldest = floors.iter().min_by_key(|(_, floor)| **floor);
            if let Some(oldest) = oldest.map(|(tenant, _)| tenant.clone()) {
                floors.remove(&oldest);
            }
        }
        floors.insert(tenant.clone(), version);
        Ok(())
    }

    /// Removes what matches from one of the [`super::SHARDS`]. How many were removed, and how many
    /// stay because of a lease or a pin.
    pub fn remove_matching(
        &self,
        now: Moment,
        shard: usize,
        tenant: &Tenant,
        matcher: &Matcher,
        force: bool,
        told: &mut Told,
    ) -> (u64, u64) {
        let segments = self.segments.read();
        let Some(shard) = self.shards.get(shard) else { return (0, 0) };
        let mut shard = shard.lock();
        let (mut removed, mut kept) = (0, 0);
        let mut key = Vec::new();
        for number in 0..shard.objects.end() {
            let Some(object) = shard.objects.get(number) else { continue };
            if shard.names.tenant(&object.key) != tenant.as_str() {
                continue;
            }
            key.clear();
            shard.names.write_key(&object.key, &mut key);
            if !matcher.is_match(&key) {
                continue;
            }
            match self.remove_one(&segments, now, &mut shard, number, force, told) {
                Outcome::Ok => removed += 1,
                _ => kept += 1,
            }
        }
        (removed, kept)
    }
}
