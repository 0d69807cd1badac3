//! All engines that opened lanes to this one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvferry_proto::frame::Refusal;
use kvferry_proto::{Incarnation, LaneId};
use parking_lot::Mutex;

use super::inbound::Inbound;
use crate::lanes::Lanes;

/// How many initiators are remembered, with or without lanes.
const MOST_INITIATORS: usize = 16_384;

/// How long an initiator without lanes is remembered: what it repeats after a lane failed is
/// recognised for that long.
const REMEMBER: Duration = Duration::from_secs(120);

/// One initiator.
pub(crate) struct Initiator {
    pub(crate) incarnation: Incarnation,
    pub(crate) inbound: Mutex<Inbound>,
    pub(crate) lanes: Lanes,
    heard: Mutex<Instant>,
}

impl Initiator {
    /// It gave a sign of life.
    pub(crate) fn hear(&self) {
        *self.heard.lock() = Instant::now();
    }

    pub(crate) fn remove_lane(&self, id: LaneId) {
        self.lanes.remove(id);
        self.inbound.lock().close_lane(id);
        self.hear();
    }
}

pub(crate) struct Initiators {
    most_lanes: usize,
    known: Mutex<HashMap<Incarnation, Arc<Initiator>>>,
}

impl Initiators {
    pub(crate) fn new(most_lanes: usize) -> Self {
        Self { most_lanes, known: Mutex::default() }
    }

    /// An initiator opens a lane.
    pub(crate) fn open_lane(
        &self,
        incarnation: Incarnation,
        lane: LaneId,
    ) -> Result<Arc<Initiator>, Refusal> {
        let mut known = self.known.lock();
        if known.len() >= MOST_INITIATORS && !known.contains_key(&incarnation) {
            return Err(Refusal::TooManyLanes);
        }
        let initiator = known.entry(incarnation).or_insert_with(|| {
            Arc::new(Initiator {
                incarnation,
                inbound: Mutex::new(Inbound::new(self.most_lanes)),
                lanes: Lanes::default(),
                heard: Mutex::new(Instant::now()),
            })
        });
        initiator.inbound.lock().open_lane(lane)?;
        initiator.hear();
        Ok(initiator.clone())
    }

    /// Reaps the lanes of initiators that are silent, and forgets those without lanes.
    pub(crate) fn sweep(&self, dead_after: Duration) {
        let now = Instant::now();
        let mut silent = Vec::new();
        self.known.lock().retain(|_, initiator| {
            let quiet = now.saturating_duration_since(*initiator.heard.lock());
            if initiator.inbound.lock().lane_count() == 0 {
                return quiet < REMEMBER;
            }
            if quiet >= dead_after {
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
