//! Two ways to the target: the best transport, which fails for a while now and then, and its spare.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kvferry_proto::LaneId;

use super::{Event, Random, World};
use crate::error::Error;
use crate::net::Endpoint;
use crate::session::Means;

pub(super) struct Ways {
    /// Lanes of the spare for large transfers; none where there is no spare.
    pub(super) spare_lanes: Option<usize>,
    /// No lane of the best comes up before this.
    best_fails_until: Instant,
    /// Lanes by the best, as they were opened.
    by_best: BTreeSet<LaneId>,
    /// Lanes that are gone because the best has failed.
    failed: BTreeSet<LaneId>,
    /// Lanes by the spare were opened.
    pub(super) used_spare: bool,
}

impl Ways {
    pub(super) fn new(seed: u64, now: Instant) -> Self {
        let mut random = Random(seed ^ 0x5eed);
        let spare_lanes = if random.one_in(3) { None } else { Some(1 + (seed % 3) as usize) };
        let (by_best, failed) = (BTreeSet::new(), BTreeSet::new());
        Self { spare_lanes, best_fails_until: now, by_best, failed, used_spare: false }
    }

    /// As a driver says why a lane is gone.
    pub(super) fn why_gone(&mut self, lane: LaneId) -> Option<Error> {
        let failed = self.failed.remove(&lane);
        let peer = Endpoint::new("target", 1);
        failed.then(|| Error::RdmaFailed { peer, reason: "it fails".into() })
    }
}

impl World {
    /// When the best fails.
    pub(super) fn ways_fail(&mut self) {
        for _ in 0..3 {
            let at = Duration::from_micros(self.random.below(6_000_000));
            self.after(at, Event::BestFails);
        }
    }

    pub(super) fn best_fails(&mut self) {
        let lasts = Duration::from_micros(self.random.below(4_000_000));
        self.ways.best_fails_until = self.now + lasts;
        let open = self.lanes.keys().copied();
        let open: Vec<_> = open.filter(|lane| self.ways.by_best.contains(lane)).collect();
        for lane in open {
            self.ways.failed.insert(lane);
            self.close(lane, false);
        }
    }

    pub(super) fn open_lane(&mut self, lane: LaneId, means: Means) {
        let incarnation = self.session.known.unwrap();
        let mut delay = self.delay();
        let mut fails = self.stormy && self.random.one_in(10);
        match means {
            Means::Best => {
                self.ways.by_best.insert(lane);
                if self.now < self.ways.best_fails_until {
                    self.ways.failed.insert(lane);
                    fails = true;
                    // Nothing may be heard for long.
                    delay += Duration::from_micros(self.random.below(1_000_000));
                }
            }
            Means::Spare => {
                assert!(self.ways.spare_lanes.is_some(), "there is no spare");
                self.ways.used_spare = true;
            }
        }
        let event = if fails || self.now < self.target.stopped_until {
            Event::LaneDown { lane, opened: false }
        } else {
            Event::LaneOpened { lane, incarnation }
        };
        self.after(delay, event);
    }

    /// The best works from now on. Where it was given up since it carried nothing, that has to be heard of.
    pub(super) fn ways_work(&mut self) {
        if self.session.spare.is_given_up() {
            self.session.try_best(self.now, &[]);
        }
    }

    /// The best works again, and is used by now.
    pub(super) fn check_means(&self) {
        assert_eq!(self.session.means(), Means::Best, "the best works again");
        let by_best = |lane: &LaneId| self.ways.by_best.contains(lane);
        assert!(self.lanes.keys().all(by_best), "lanes of the spare are open: {:?}", self.lanes);
    }
}
