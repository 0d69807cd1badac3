//! What all parts of the server share: the pool, the clock, who waits for what.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvferry_proto::Incarnation;
use kvferry_proto::pool::{Outcome, PutStart, PutStartAnswer};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::clock::Clock;
use super::metrics::Metrics;
use crate::state::{Moment, Pool, Settings, Standing, Told};

/// How long an answer waits until owners have recorded what it says: a round trip to each of them.
const RECORDED: Duration = Duration::from_secs(1);

/// How long a batch of puts waits for room, once: callers hold memory meanwhile.
const PRESSURE: Duration = Duration::from_millis(150);

/// How many batches may wait for room at once.
const PRESSED: usize = 256;

/// The server's state.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) pool: Pool,
    pub(crate) clock: Clock,
    pub(crate) master: Incarnation,
    pub(crate) metrics: Metrics,
    /// Removals that look at all objects: one at a time.
    pub(crate) looking_through: Semaphore,
    is_closing: AtomicBool,
    followers: Mutex<HashMap<Incarnation, Arc<Notify>>>,
    /// An owner has recorded something.
    recorded: Notify,
    pressed: Semaphore,
}

impl Desk {
    pub(crate) fn new(settings: Settings, master: Incarnation, seeds: [u64; 2]) -> Self {
        Self {
            pool: Pool::new(settings, seeds[0]),
            clock: Clock::new(seeds[1]),
            master,
            metrics: Metrics::new(),
            looking_through: Semaphore::new(1),
            is_closing: AtomicBool::new(false),
            followers: Mutex::default(),
            recorded: Notify::new(),
            pressed: Semaphore::new(PRESSED),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Nothing new is taken on from now on.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Whoever follows this owner's changes, wakes by this. The follower before is told to end.
    pub(crate) fn follower(&self, owner: Incarnation) -> Arc<Notify> {
        let signal = Arc::new(Notify::new());
        let before = self.followers.lock().insert(owner, signal.clone());
        if let Some(before) = before {
            before.notify_one();
        }
        signal
    }

    /// Whether this is still the one that follows the owner.
    pub(crate) fn is_follower(&self, owner: Incarnation, signal: &Arc<Notify>) -> bool {
        self.followers.lock().get(&owner).is_some_and(|found| Arc::ptr_eq(found, signal))
    }

    pub(crate) fn stop_following(&self, owner: Incarnation, signal: &Arc<Notify>) {
        let mut followers = self.followers.lock();
        if followers.get(&owner).is_some_and(|found| Arc::ptr_eq(found, signal)) {
            followers.remove(&owner);
        }
    }

    /// Nobody follows anything any more.
    pub(crate) fn end_followers(&self) {
        for (_, signal) in self.followers.lock().drain() {
            signal.notify_one();
        }
    }

    /// Wakes those who tell owners.
    pub(crate) fn tell(&self, told: &Told) {
        let followers = self.followers.lock();
        for owner in told.owners() {
            if let Some(signal) = followers.get(&owner) {
                signal.notify_one();
            }
        }
    }

    /// An owner has recorded something.
    pub(crate) fn note_recorded(&self) {
        self.recorded.notify_waiters();
    }

    /// Tells owners, and waits, for a while, until they have recorded it. Whether they have.
    pub(crate) async fn record(&self, told: &Told) -> bool {
        self.tell(told);
        let deadline = Instant::now() + RECORDED;
        loop {
            let mut changed = std::pin::pin!(self.recorded.notified());
            changed.as_mut().enable();
            match self.pool.stand(told) {
                Standing::Recorded => return true,
                Standing::Missed => return false,
                Standing::Awaited => {}
            }
            if timeout_at(deadline, changed).await.is_err() {
                return self.pool.is_recorded(told);
            }
        }
    }

    /// Reserves room; where there is none, evicts and waits for it, once and briefly.
    pub(crate) async fn put_start(&self, start: &PutStart) -> PutStartAnswer {
        let mut told = Told::default();
        let (mut answer, mut wanted) =
            self.pool.put_start(self.now(), self.clock.seed(), start, &mut told);
        if wanted > 0 {
            self.metrics.evictions_attempted.inc();
            let evicted = self.pool.make_room(self.now(), self.clock.seed(), wanted, &mut told);
            self.metrics.evictions_successful.inc_by(u64::from(evicted.keys > 0));
        }
        self.tell(&told);
        if start.at_once {
            return answer;
        }
        // Beyond this many, waiting would help nobody.
        let Ok(_turn) = self.pressed.try_acquire() else { return answer };
        let deadline = Instant::now() + PRESSURE;
        while wanted > 0 {
            let mut changed = std::pin::pin!(self.recorded.notified());
            changed.as_mut().enable();
            let mut told = Told::default();
            wanted =
                self.pool.reserve(self.now(), self.clock.seed(), start, &mut answer, &mut told);
            self.tell(&told);
            if wanted == 0 || timeout_at(deadline, changed).await.is_err() {
                break;
            }
        }
        answer
    }

    /// The outcome for everything while the master is shutting down.
    pub(crate) fn refusal(&self) -> Option<Outcome> {
        self.is_closing().then_some(Outcome::Closing)
    }
}
