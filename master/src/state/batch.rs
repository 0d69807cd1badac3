//! Looking up the keys of a batch, a few at a time.
//!
//! With a million objects nearly all of the time that a key takes is spent waiting for memory: its
//! entry in an index, then the object. One key after another waits for each in turn. A few together,
//! step by step, wait for all of their memory at once.

use std::hint::black_box;

use kvferry_proto::pool::{Key, Tenant};

use super::Pool;
use super::shard::Shard;

/// How many keys are looked up together.
const TOGETHER: usize = 8;

impl Pool {
    /// Calls `see` once for each key, in any order: with its index among the keys, its shard, and the
    /// number that its object has there.
    ///
    /// Shards of several keys are held at once. Whoever holds one waits for no other: what cannot be
    /// had at once is looked up afterwards, on its own.
    pub(super) fn look_up(
        &self,
        tenant: &Tenant,
        keys: &[Key],
        mut see: impl FnMut(usize, &mut Shard, Option<u32>),
    ) {
        for (chunk, keys) in keys.chunks(TOGETHER).enumerate() {
            let mut names = [None; TOGETHER];
            for (name, key) in names.iter_mut().zip(keys) {
                *name = Some(self.name(tenant, key.as_bytes()));
            }
            let mut held = names.map(|name| self.shard(name?.hash).try_lock());
            let mut candidates = [None; TOGETHER];
            for (index, candidate) in candidates.iter_mut().enumerate() {
                if let (Some(name), Some(shard)) = (&names[index], &held[index]) {
                    *candidate = shard.candidate(name.hash);
                }
            }
            let mut touched = 0;
            for (index, candidate) in candidates.into_iter().enumerate() {
                if let (Some(number), Some(shard)) = (candidate, &held[index]) {
                    touched ^= shard.touch(number);
                }
            }
            // It is of no use, but for having been read.
            black_box(touched);
            let first = chunk * TOGETHER;
            for (index, held) in held.iter_mut().enumerate() {
                if let Some(mut shard) = held.take()
                    && let Some(name) = names[index].take()
                {
                    let number = shard.find(&name);
                    see(first + index, &mut shard, number);
                }
            }
            for (index, name) in names.iter().enumerate() {
                if let Some(name) = name {
                    let mut shard = self.shard(name.hash).lock();
                    let number = shard.find(name);
                    see(first + index, &mut shard, number);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kvferry_proto::Incarnation;
    use kvferry_proto::pool::{Held, Join, Lent, SegmentId, Version};

    use super::super::{Moment, Settings, Told};
    use super::*;

    const OBJECTS: u64 = 500;

    fn key(number: u64) -> Key {
        Key::try_from(format!("m@{number}").as_str()).unwrap()
    }

    /// A pool with the first so many keys.
    fn pool() -> Pool {
        let settings = Settings { recovery: std::time::Duration::ZERO, ..Settings::default() };
        let (pool, now, client) = (Pool::new(settings, 1), Moment(1), Incarnation(1));
        pool.join(now, &Join { client, host: String::new(), epoch: 0 }).unwrap();
        let lent = Lent {
            segment: SegmentId(1),
            name: String::new(),
            address: "a:1".to_owned(),
            region: kvferry_proto::RegionId { slot: 0, generation: 1 },
            offset: 0,
            length: OBJECTS * 64,
        };
        let mut mounting = pool.mount(now, client, lent, true).unwrap().unwrap();
        let held = |number| Held {
            tenant: Tenant::default(),
            key: key(number),
            version: Version(number + 1),
            offset: number * 64,
            length: 64,
            checksum: None,
            is_pinned: false,
            group: None,
        };
        let all = (0..OBJECTS).map(held).collect();
        pool.adopt(now, &mut mounting, all, &mut Told::default()).unwrap();
        pool.mounted(&mounting).unwrap();
        pool
    }

    /// The version found for each key, in order.
    fn found(pool: &Pool, keys: &[Key]) -> Vec<Option<Version>> {
        let mut found = vec![None; keys.len()];
        let mut seen = vec![0; keys.len()];
        pool.look_up(&Tenant::default(), keys, |index, shard, number| {
            let object = number.and_then(|number| shard.objects.get(number));
            found[index] = object.map(|object| object.version);
            seen[index] += 1;
        });
        assert_eq!(seen, vec![1; keys.len()]);
        found
    }

    #[test]
    fn every_key_of_a_batch_is_looked_up_once_also_where_several_are_the_same() {
        let pool = pool();
        for length in [0, 1, 7, 8, 9, 100] {
            // The same key in one go, keys of one shard, and keys that are not there.
            let numbers: Vec<u64> = (0..length).map(|at| at % 3 * 200 + at % 5).collect();
            let keys: Vec<Key> = numbers.iter().copied().map(key).collect();
            let expected: Vec<_> = numbers
                .iter()
                .map(|number| (*number < OBJECTS).then_some(Version(number + 1)))
                .collect();
            assert_eq!(found(&pool, &keys), expected);
        }
        let all: Vec<Key> = (0..OBJECTS).map(key).collect();
        let expected: Vec<_> = (0..OBJECTS).map(|number| Some(Version(number + 1))).collect();
        assert_eq!(found(&pool, &all), expected);
    }

    #[test]
    fn a_shard_that_another_thread_holds_is_waited_for_while_none_is_held() {
        let pool = pool();
        let tenant = Tenant::default();
        let shard = |key: &Key| pool.shard(pool.name(&tenant, key.as_bytes()).hash);
        // Each in a shard of its own.
        let mut keys: Vec<Key> = Vec::new();
        for key in (0..OBJECTS).map(key) {
            if keys.len() < TOGETHER && keys.iter().all(|k| !std::ptr::eq(shard(k), shard(&key))) {
                keys.push(key);
            }
        }
        let held = shard(&keys[3]).lock();
        std::thread::scope(|scope| {
            let (said, heard) = std::sync::mpsc::channel();
            let (pool, tenant, looked) = (&pool, &tenant, &keys);
            scope.spawn(move || {
                pool.look_up(tenant, looked, |index, _, number| {
                    said.send((index, number.is_some())).unwrap();
                });
            });
            let others: Vec<_> = (1..TOGETHER).map(|_| heard.recv().unwrap()).collect();
            assert!(others.iter().all(|(index, found)| *index != 3 && *found), "{others:?}");
            for key in keys.iter().filter(|key| *key != &keys[3]) {
                let free = shard(key).try_lock_for(std::time::Duration::from_secs(10));
                assert!(free.is_some(), "it is held while another is waited for");
            }
            drop(held);
            assert_eq!(heard.recv(), Ok((3, true)));
        });
    }
}
