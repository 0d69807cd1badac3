//! What became of objects, as far as this process knows: which bytes a read may still return.
//!
//! Each object that is put has a number of its own, its seed, of which its bytes are made. What is
//! known for certain is noted with its time: an object is gone once it was removed and its owners
//! have recorded that, or once another could be put under its key. A read that begins later must not
//! return it.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Instant;

/// How many objects one client may put.
const SEEDS: u64 = 1 << 20;

/// What this process has put, by key.
#[derive(Debug, Default)]
pub struct History(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The clients of this process.
    clients: HashSet<u64>,
    objects: HashMap<u64, Vec<Object>>,
}

#[derive(Debug)]
struct Object {
    seed: u64,
    /// When putting it ended, however it did.
    ended: Option<Instant>,
    /// Since when it is certain that it cannot be found.
    gone: Option<Instant>,
}

impl History {
    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().expect("nobody panics with it")
    }

    /// A client of this process, by its number: 15 at the most.
    pub fn add_client(&self, client: u64) {
        assert!((1..16).contains(&client), "patterns tell 24 bits of seeds apart");
        self.known().clients.insert(client);
    }

    /// The seed of a client's object of this number.
    #[must_use]
    pub fn seed(client: u64, number: u64) -> u64 {
        assert!(number < SEEDS, "seeds are used once");
        client * SEEDS + number
    }

    /// An object is about to be put.
    pub fn putting(&self, key: u64, seed: u64) {
        let object = Object { seed, ended: None, gone: None };
        self.known().objects.entry(key).or_default().push(object);
    }

    /// Putting it, which began then, has ended: whether it is there now, `None` where that is not
    /// known.
    pub fn put(&self, key: u64, seed: u64, began: Instant, is_there: Option<bool>) {
        let now = Instant::now();
        for object in self.known().objects.entry(key).or_default() {
            if object.seed == seed {
                object.ended = Some(now);
                // It never was.
                object.gone = (is_there == Some(false)).then_some(began);
            } else if is_there == Some(true) && object.ended.is_some_and(|ended| ended < began) {
                object.gone.get_or_insert(now);
            }
        }
    }

    /// What was there when this began is removed.
    pub fn removed(&self, key: u64, began: Instant) {
        let now = Instant::now();
        for object in self.known().objects.entry(key).or_default() {
            if object.ended.is_some_and(|ended| ended < began) {
                object.gone.get_or_insert(now);
            }
        }
    }

    /// A read of a key, which began then, has returned an object.
    ///
    /// # Panics
    /// Where it must not: it was never put under that key, or it was gone.
    pub fn assert_may_return(&self, key: u64, seed: u64, began: Instant) {
        let known = self.known();
        if !known.clients.contains(&(seed / SEEDS)) {
            // Another process has put it.
            return;
        }
        let mut objects = known.objects.get(&key).into_iter().flatten();
        let object = objects.find(|object| object.seed == seed);
        let gone = object.map(|object| object.gone);
        // Not with the lock held: others are to find what they find.
        drop(known);
        match gone {
            None => panic!("object {key} is {seed:#x}, which was never put under its key"),
            Some(Some(gone)) if gone < began => {
                panic!("object {key} is {seed:#x}, which was gone {:?} before", began - gone)
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn returned(history: &History, key: u64, seed: u64, began: Instant) -> bool {
        let assert = || history.assert_may_return(key, seed, began);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(assert)).is_ok()
    }

    #[test]
    fn what_was_never_put_or_is_gone_is_found_out_and_nothing_else() {
        let history = History::default();
        history.add_client(1);
        let (old, new, refused) = (History::seed(1, 1), History::seed(1, 2), History::seed(1, 3));
        let first = Instant::now();
        assert!(!returned(&history, 7, old, first), "never put");
        assert!(returned(&history, 7, History::seed(2, 1), first), "another's");
        history.putting(7, old);
        assert!(returned(&history, 7, old, first), "being put");
        history.put(7, old, first, Some(true));
        assert!(!returned(&history, 8, old, Instant::now()), "under another key");

        let second = Instant::now();
        history.putting(7, new);
        let third = Instant::now();
        history.putting(7, refused);
        history.put(7, refused, third, Some(false));
        assert!(!returned(&history, 7, refused, Instant::now()), "left out");
        assert!(returned(&history, 7, old, Instant::now()), "still there");
        history.put(7, new, second, Some(true));
        assert!(returned(&history, 7, old, second), "it may have been there");
        assert!(!returned(&history, 7, old, Instant::now()), "stale");
        assert!(returned(&history, 7, new, Instant::now()));

        history.removed(7, second);
        assert!(returned(&history, 7, new, Instant::now()), "put while others were removed");
        history.removed(7, Instant::now());
        assert!(!returned(&history, 7, new, Instant::now()), "removed");
    }
}
