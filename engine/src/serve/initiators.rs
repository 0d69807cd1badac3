//! All engines that opened lanes to this one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvferry_proto::frame::{Hello, Refusal, Status};
use kvferry_proto::{Incarnation, LaneId};
use parking_lot::Mutex;

use super::inbound::Inbound;
use crate::lanes::Lanes;
use crate::time;

/// How many initiators are remembered, with or without lanes.
const MOST_INITIATORS: usize = 16_384;

/// How long an initiator without lanes is remembered: what it repeats after a lane failed is
/// recognised for that long.
const REMEMBER: Duration = Duration::from_secs(120);

/// However seldom an initiator says that it speaks, its lanes are reaped after three times this.
const SLOWEST_PING: Duration = Duration::from_secs(200);

/// One initiator.
pub(crate) struct Initiator {
    pub(crate) incarnation: Incarnation,
    pub(crate) inbound: Mutex<Inbound>,
    pub(crate) lanes: Lanes,
    heard: Mutex<Instant>,
    /// How long it may be silent.
    dead_after: Duration,
}

impl Initiator {
    /// It gave a sign of life.
    pub(crate) fn hear(&self) {
        *self.heard.lock() = time::now();
    }

    pub(crate) fn remove_lane(&self, id: LaneId) {
        self.lanes.remove(id);
        self.inbound.lock().close_lane(id);
        self.hear();
    }
}

/// One session of an engine: it numbers its lanes and transfers by itself.
type SessionKey = (Incarnation, u64);

pub(crate) struct Initiators {
    most_lanes: usize,
    dead_after: Duration,
    known: Mutex<BTreeMap<SessionKey, Arc<Initiator>>>,
    refused: AtomicU64,
}

impl Initiators {
    /// Each may hold up to `most_lanes` lanes, and be silent for `dead_after`, or three times as
    /// long as it says that it may be.
    pub(crate) fn new(most_lanes: usize, dead_after: Duration) -> Self {
        Self { most_lanes, dead_after, known: Mutex::default(), refused: AtomicU64::new(0) }
    }

    /// A request was answered like this.
    pub(crate) fn count(&self, status: Status) {
        if status != Status::Done {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many requests were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// An initiator opens a lane.
    pub(crate) fn open_lane(&self, hello: &Hello) -> Result<Arc<Initiator>, Refusal> {
        let mut known = self.known.lock();
        let key = (hello.initiator, hello.session);
        if known.len() >= MOST_INITIATORS && !known.contains_key(&key) && !forget_oldest(&mut known)
        {
            return Err(Refusal::TooManyLanes);
        }
        let pings = Duration::from_millis(hello.ping_ms.into()).min(SLOWEST_PING) * 3;
        let initiator = known.entry(key).or_insert_with(|| {
            Arc::new(Initiator {
                incarnation: hello.initiator,
                inbound: Mutex::new(Inbound::new(self.most_lanes)),
                lanes: Lanes::default(),
                heard: Mutex::new(time::now()),
                dead_after: self.dead_after.max(pings),
            })
        });
        initiator.inbound.lock().open_lane(hello.lane)?;
        initiator.hear();
        Ok(initiator.clone())
    }

    /// Reaps the lanes of initiators that are silent, and forgets those without lanes.
    pub(crate) fn sweep(&self) {
        let now = time::now();
        let mut silent = Vec::new();
        self.known.lock().retain(|_, initiator| {
            let quiet = now.saturating_duration_since(*initiator.heard.lock());
            if initiator.inbound.lock().lane_count() == 0 {
                return quiet < REMEMBER;
            }
            if quiet >= initiator.dead_after {
                silent.push(initiator.clone());
            }
            true
        });
        for initiator in silent {
            let lanes = initiator.lanes.all();
            let (from, count) = (initiator.incarnation, lanes.len());
            tracing::warn!(%from, lanes = count, "an initiator is silent: its lanes are closed");
            for lane in lanes {
                lane.reset();
            }
        }
    }

    /// How many lanes initiators hold.
    pub(crate) fn lane_count(&self) -> usize {
        let known = self.known.lock();
        known.values().map(|initiator| initiator.inbound.lock().lane_count()).sum()
    }
}

/// Makes room by forgetting who was silent for longest among those without lanes. False when all
/// have lanes.
fn forget_oldest(known: &mut BTreeMap<SessionKey, Arc<Initiator>>) -> bool {
    let without_lanes = known.iter().filter(|(_, one)| one.inbound.lock().lane_count() == 0);
    let oldest = without_lanes.min_by_key(|(_, one)| *one.heard.lock()).map(|(key, _)| *key);
    oldest.is_some_and(|key| known.remove(&key).is_some())
}
