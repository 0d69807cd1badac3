//! Keys as the table has them: what many have in common is kept once.
//!
//! vLLM's keys are `model@tp_rank:N@..@HASH`: all but the hash is the same for each rank of a
//! deployment. So a key is cut behind its last `@`, `/` or `:`, and each shard keeps the first part
//! once, with the tenant, for all keys that have it.

use std::hash::{BuildHasher, Hasher};

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use hashbrown::HashTable;

/// A key that is looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name<'a> {
    pub(super) hash: u64,
    pub(super) tenant: &'a str,
    pub(super) prefix: &'a [u8],
    pub(super) suffix: &'a [u8],
}

/// How keys are spread: by a seed that nobody outside knows.
#[derive(Clone, Debug)]
pub(super) struct Hashing(SeedableRandomState);

impl Hashing {
    pub(super) fn new(seed: u64) -> Self {
        Self(SeedableRandomState::with_seed(seed, SharedSeed::global_fixed()))
    }

    pub(super) fn name<'a>(&self, tenant: &'a str, key: &'a [u8]) -> Name<'a> {
        let cut = memchr::memrchr3(b'@', b'/', b':', key);
        let (prefix, suffix) = key.split_at(cut.map_or(0, |last| last + 1));
        Name { hash: self.parts(tenant, prefix, suffix), tenant, prefix, suffix }
    }

    fn parts(&self, tenant: &str, prefix: &[u8], suffix: &[u8]) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write(tenant.as_bytes());
        hasher.write(prefix);
        hasher.write(suffix);
        hasher.finish()
    }
}

/// How many bytes of a key's last part need no memory of their own: a hash of 256 bits in hex has
/// 64.
const INLINE: usize = 66;

/// The last part of a key.
#[derive(Clone, Debug)]
pub(super) enum Suffix {
    Short { length: u8, bytes: [u8; INLINE] },
    Long(Box<[u8]>),
}

impl Suffix {
    fn new(suffix: &[u8]) -> Self {
        match u8::try_from(suffix.len()) {
            Ok(length) if suffix.len() <= INLINE => {
                let mut bytes = [0; INLINE];
                bytes[..suffix.len()].copy_from_slice(suffix);
                Self::Short { length, bytes }
            }
            _ => Self::Long(suffix.into()),
        }
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => &bytes[..usize::from(*length)],
            Self::Long(bytes) => bytes,
        }
    }

    /// Memory beyond its own size.
    fn heap_bytes(&self) -> usize {
        match self {
            Self::Short { .. } => 0,
            Self::Long(bytes) => bytes.len(),
        }
    }
}

/// A key, within its shard.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    prefix: u32,
    suffix: Suffix,
}

impl Stored {
    /// Something of each piece of its memory.
    pub(super) fn touch(&self) -> u64 {
        let bytes = self.suffix.as_bytes();
        let first = bytes.first().copied().unwrap_or_default();
        u64::from(first) ^ u64::from(bytes.last().copied().unwrap_or_default())
    }
}

#[derive(Debug)]
struct Prefix {
    tenant: Box<str>,
    bytes: Box<[u8]>,
    /// How many keys have it.
    keys: u32,
}

/// The first parts of a shard's keys, each with its tenant.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    entries: Vec<Prefix>,
    unused: Vec<u32>,
    index: HashTable<u32>,
}

impl Prefixes {
    /// The key to be stored, and how much memory it takes beyond its entry.
    pub(super) fn store(&mut self, hashing: &Hashing, name: &Name<'_>) -> (Stored, usize) {
        let hash = hashing.parts(name.tenant, name.prefix, &[]);
        let entries = &self.entries;
        let is_same =
            |entry: &Prefix| *entry.bytes == *name.prefix && *entry.tenant == *name.tenant;
        let found = self.index.find(hash, |index| is_same(&entries[*index as usize])).copied();
        let suffix = Suffix::new(name.suffix);
        let mut heap = suffix.heap_bytes();
        let prefix = if let Some(index) = found {
            index
        } else {
            let entry = Prefix { tenant: name.tenant.into(), bytes: name.prefix.into(), keys: 0 };
            heap += entry.tenant.len() + entry.bytes.len() + size_of::<Prefix>();
            let index = if let Some(index) = self.unused.pop() {
                self.entries[index as usize] = entry;
                index
            } else {
                // A shard has fewer keys than this counts: see `Slab`.
                let index = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
                self.entries.push(entry);
                index
            };
            let entries = &self.entries;
            self.index.insert_unique(hash, index, |index| {
                let entry = &entries[*index as usize];
                hashing.parts(&entry.tenant, &entry.bytes, &[])
            });
            index
        };
        self.entries[prefix as usize].keys += 1;
        (Stored { prefix, suffix }, heap)
    }

    /// Forgets a key. Returns how much memory it took beyond its entry.
    pub(super) fn forget(&mut self, hashing: &Hashing, stored: &Stored) -> usize {
        let mut heap = stored.suffix.heap_bytes();
        let entry = &mut self.entries[stored.prefix as usize];
        entry.keys -= 1;
        if entry.keys == 0 {
            heap += entry.tenant.len() + entry.bytes.len() + size_of::<Prefix>();
            let hash = hashing.parts(&entry.tenant, &entry.bytes, &[]);
            entry.tenant = Box::default();
            entry.bytes = Box::default();
            if let Ok(found) = self.index.find_entry(hash, |index| *index == stored.prefix) {
                found.remove();
            }
            self.unused.push(stored.prefix);
        }
        heap
    }

    pub(super) fn is(&self, stored: &Stored, name: &Name<'_>) -> bool {
        let entry = &self.entries[stored.prefix as usize];
        stored.suffix.as_bytes() == name.suffix
            && *entry.bytes == *name.prefix
            && *entry.tenant == *name.tenant
    }

    pub(super) fn hash(&self, hashing: &Hashing, stored: &Stored) -> u64 {
        let entry = &self.entries[stored.prefix as usize];
        hashing.parts(&entry.tenant, &entry.bytes, stored.suffix.as_bytes())
    }

    pub(super) fn tenant(&self, stored: &Stored) -> &str {
        &self.entries[stored.prefix as usize].tenant
    }

    /// Writes the whole key to the end of `into`.
    pub(super) fn write_key(&self, stored: &Stored, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.entries[stored.prefix as usize].bytes);
        into.extend_from_slice(stored.suffix.as_bytes());
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_kept_once_a_tenant_and_for_as_long_as_a_key_has_it() {
        let hashing = Hashing::new(1);
        let mut prefixes = Prefixes::default();
        let names = ["m@0@a", "m@0@b", "plain", "m@0@", ""];
        let mut stored = Vec::new();
        for tenant in ["x", "y"] {
            for key in names {
                let name = hashing.name(tenant, key.as_bytes());
                let (kept, _) = prefixes.store(&hashing, &name);
                assert!(prefixes.is(&kept, &name));
                assert_eq!(prefixes.hash(&hashing, &kept), name.hash);
                let mut whole = Vec::new();
                prefixes.write_key(&kept, &mut whole);
                assert_eq!(whole, key.as_bytes());
                assert_eq!(prefixes.tenant(&kept), tenant);
                stored.push(kept);
            }
        }
        assert_eq!(prefixes.len(), 4);
        for kept in &stored {
            prefixes.forget(&hashing, kept);
        }
        assert_eq!(prefixes.len(), 0);
    }

    #[test]
    fn a_long_last_part_is_kept_whole_and_gives_its_memory_back() {
        let hashing = Hashing::new(1);
        let mut prefixes = Prefixes::default();
        let key = [b"m@".to_vec(), vec![b'k'; 500]].concat();
        let name = hashing.name("x", &key);
        let (kept, heap) = prefixes.store(&hashing, &name);
        assert!(prefixes.is(&kept, &name) && heap > 500);
        let mut other = key.clone();
        *other.last_mut().unwrap() = b'l';
        assert!(!prefixes.is(&kept, &hashing.name("x", &other)));
        assert_eq!(prefixes.forget(&hashing, &kept), heap);
    }
}
