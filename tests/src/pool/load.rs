//! Clients that put, get and remove at random, and check every byte that they read.
//!
//! An object begins with its seed and the number of its key, and what follows is its pattern. So bytes
//! of two objects, of another key, or of an object that was never there are found out in any process;
//! in the process that has put it, one that had gone as well ([`History`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvferry_engine::Region;
use kvferry_store::{Error, Get, GetOptions, Outcome, Put, PutOptions, Stored};
use tokio::task::JoinHandle;

use super::history::History;
use super::program::Master;
use super::{Client, key};
use crate::pattern::{fill, first_wrong};

/// How many objects a batch has.
const BATCH: u64 = 6;

/// How much room each has.
const ROOM: u64 = 192 << 10;

/// How much memory of its own a client needs.
pub const MEMORY_BYTES: u64 = BATCH * ROOM;

/// How much of an object is its seed and the number of its key.
const HEAD_BYTES: u64 = 16;

/// How long any call may take: calls to the master, and transfers under leases of a few seconds.
const CALL: Duration = Duration::from_secs(40);

/// What happened.
#[derive(Debug, Default)]
pub struct Tally {
    /// Objects that were put.
    pub put: AtomicU64,
    /// Objects that were got.
    pub got: AtomicU64,
    /// Objects that were not there.
    pub missed: AtomicU64,
    /// Objects that failed.
    pub failed: AtomicU64,
}

impl Tally {
    /// How many objects that were asked for were not there.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// How many objects failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }
}

/// One client at work.
#[derive(Clone, Debug)]
pub struct Worker {
    /// The client.
    pub client: Arc<Client>,
    /// Its number among all of the pool, from 1 to 15.
    pub number: u64,
    /// How many keys there are.
    pub keys: u64,
    /// How it puts.
    pub options: PutOptions,
    /// What the workers of this process know.
    pub history: Arc<History>,
    /// What they did.
    pub tally: Arc<Tally>,
    /// When set it ends.
    pub stop: Arc<AtomicBool>,
}

/// Clients in this process, at work.
#[derive(Debug)]
pub struct Load {
    tally: Arc<Tally>,
    stop: Arc<AtomicBool>,
    workers: Vec<JoinHandle<()>>,
}

/// Fills memory with an object: its seed, the number of its key, its pattern.
///
/// # Panics
/// Where it does not fit.
pub fn write_object(memory: &Region, offset: u64, length: u64, number: u64, seed: u64) {
    fill(memory, offset, length, seed, 0).expect("it fits");
    memory.write_at(offset, &seed.to_le_bytes()).expect("it fits");
    memory.write_at(offset + 8, &number.to_le_bytes()).expect("it fits");
}

/// The seed of the object in memory, once all of its bytes were looked at.
///
/// # Panics
/// Where they are not all of one object of that key.
#[must_use]
pub fn read_object(memory: &Region, offset: u64, length: u64, number: u64) -> u64 {
    let mut head = [[0; 8]; 2];
    memory.read_at(offset, head.as_flattened_mut()).expect("it is there");
    let [seed, found] = head.map(u64::from_le_bytes);
    assert_eq!(found, number, "object {number} begins as another's, {seed:#x}");
    let rest = (offset + HEAD_BYTES, length - HEAD_BYTES);
    let wrong = first_wrong(memory, rest.0, rest.1, seed, HEAD_BYTES).expect("it is there");
    assert_eq!(wrong, None, "object {number} is not all of {seed:#x}");
    seed
}

/// The length of the object of this seed: small ones, odd ones, and some above what goes by
/// reference.
fn length(seed: u64) -> u64 {
    match seed % 5 {
        0 => 24,
        1 => 4096,
        2 => 65_537,
        3 => 131_072,
        _ => 190_000,
    }
}

impl Load {
    /// Starts clients on hosts of these names, for so many keys.
    pub async fn start(master: &Master, hosts: &[&str], keys: u64, options: PutOptions) -> Self {
        let (tally, stop) = (Arc::new(Tally::default()), Arc::new(AtomicBool::new(false)));
        let history = Arc::new(History::default());
        let mut workers = Vec::new();
        for (number, host) in (1..).zip(hosts) {
            history.add_client(number);
            let worker = Worker {
                client: Arc::new(master.client(host, MEMORY_BYTES).await),
                number,
                keys,
                options: options.clone(),
                history: history.clone(),
                tally: tally.clone(),
                stop: stop.clone(),
            };
            workers.push(tokio::spawn(worker.work()));
        }
        Self { tally, stop, workers }
    }

    /// Waits until so many more objects were got.
    pub async fn until_got(&self, more: u64) {
        self.until("objects got", &self.tally.got, more).await;
    }

    /// Waits until so many more objects were put.
    pub async fn until_put(&self, more: u64) {
        self.until("objects put", &self.tally.put, more).await;
    }

    async fn until(&self, what: &str, count: &AtomicU64, more: u64) {
        let (began, wanted) = (Instant::now(), count.load(Ordering::Relaxed) + more);
        while count.load(Ordering::Relaxed) < wanted {
            let is_wrong = self.workers.iter().any(JoinHandle::is_finished);
            assert!(!is_wrong, "a worker has found something wrong");
            assert!(began.elapsed() < Duration::from_secs(60), "{what}: {:?}", self.tally);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends it; what any of the clients found wrong fails the test.
    ///
    /// # Panics
    /// With what one of them has found.
    pub async fn end(self) -> Arc<Tally> {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers {
            worker.await.expect("a client has found something wrong");
        }
        self.tally
    }
}

impl Worker {
    /// Works until it is told to stop.
    pub async fn work(self) {
        let mut random = fastrand::Rng::with_seed(self.number);
        let mut count = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            match random.u8(0..20) {
                0..3 => self.remove(random.u64(0..self.keys)).await,
                3..9 => self.put(&mut random, &mut count).await,
                _ => self.get(&mut random).await,
            }
            assert!(began.elapsed() < CALL, "a call took {:?}", began.elapsed());
        }
    }

    async fn put(&self, random: &mut fastrand::Rng, count: &mut u64) {
        let mut puts = Vec::new();
        let mut objects = Vec::new();
        for slot in 0..BATCH {
            *count += 1;
            let (number, seed) = (random.u64(0..self.keys), History::seed(self.number, *count));
            let (memory, offset, length) = (&self.client.memory, slot * ROOM, length(seed));
            write_object(memory, offset, length, number, seed);
            self.history.putting(number, seed);
            objects.push((number, seed));
            // In two pieces, unequal and unaligned.
            let cut = length / 3;
            let spans = [(offset, cut), (offset + cut, length - cut)];
            let span = |(at, length)| memory.span(at, length).expect("a slot is long enough");
            puts.push(Put::new(key(number), spans.map(span)));
        }
        let began = Instant::now();
        let stored = self.client.store.put_all(puts, &self.options).await;
        for ((number, seed), stored) in objects.into_iter().zip(stored) {
            let is_there = match stored {
                Ok(Stored::New { .. }) => {
                    self.tally.put.fetch_add(1, Ordering::Relaxed);
                    Some(true)
                }
                Ok(Stored::Existed | Stored::BeingWritten) => Some(false),
                // Somebody has removed it, by force, while it was written.
                Err(Error::Outcome(Outcome::NotReserved)) => None,
                Err(error) => {
                    self.fail(&error).await;
                    None
                }
            };
            self.history.put(number, seed, began, is_there);
        }
    }

    async fn get(&self, random: &mut fastrand::Rng) {
        let numbers: Vec<u64> = (0..BATCH).map(|_| random.u64(0..self.keys)).collect();
        let memory = &self.client.memory;
        let gets = (0..).zip(&numbers).map(|(slot, number)| {
            Get::new(key(*number), [memory.span(slot * ROOM, ROOM).expect("it has that many")])
        });
        let began = Instant::now();
        let got = self.client.store.get_all(gets.collect(), GetOptions::default()).await;
        for ((slot, number), got) in (0..).zip(numbers).zip(got) {
            match got {
                Ok(found) => {
                    let seed = read_object(memory, slot * ROOM, found, number);
                    assert_eq!(found, length(seed), "object {number} has another length");
                    self.history.assert_may_return(number, seed, began);
                    self.tally.got.fetch_add(1, Ordering::Relaxed);
                }
                Err(Error::Outcome(Outcome::NotFound)) => {
                    self.tally.missed.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => self.fail(&error).await,
            }
        }
    }

    /// Also what others are reading: its bytes have to stay for them.
    async fn remove(&self, number: u64) {
        let began = Instant::now();
        match self.client.store.remove(vec![key(number)], true).await.remove(0) {
            Ok(removed) if removed.is_recorded => self.history.removed(number, began),
            Ok(_) | Err(Error::Outcome(Outcome::NotFound)) => {}
            Err(error) => self.fail(&error).await,
        }
    }

    /// What may fail while others die: for a reason, and so that it can be tried again.
    async fn fail(&self, error: &Error) {
        let may = error.is_retryable() || matches!(error, Error::Outcome(_) | Error::Transfer(_));
        assert!(may, "{error}");
        self.tally.failed.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
