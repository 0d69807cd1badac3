//! Which pair of ports the next lane to a peer is on, as a state machine without I/O.

use std::time::{Duration, Instant};

use kvferry_proto::LaneId;
use parking_lot::Mutex;

use crate::time;

/// The wait after a pair has failed before it is tried again while others work; it doubles.
const BACKOFF_FIRST: Duration = Duration::from_millis(500);

/// The longest such wait.
const BACKOFF_MOST: Duration = Duration::from_secs(30);

/// A pair whose lane was open for this long, and has carried something, has recovered: its failures before
/// do not count.
const RECOVERED_AFTER: Duration = Duration::from_secs(10);

/// A port here and a port there that reach each other, by their positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortPair {
    pub(crate) local: usize,
    /// In the order in which the peer offers them.
    pub(crate) remote: u16,
}

/// How a lane on a pair has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneEnd {
    /// It was lost, or could not be opened.
    pub(crate) has_failed: bool,
    /// Its queue pair has brought something.
    pub(crate) has_carried: bool,
}

/// All pairs with one incarnation of a peer.
#[derive(Debug)]
pub(crate) struct PairChoice(Mutex<Pairs>);

#[derive(Debug)]
struct Pairs {
    pairs: Vec<State>,
    /// Ties are broken from here on, so that all are used.
    next: usize,
}

#[derive(Debug)]
struct State {
    pair: PortPair,
    lanes: Vec<LaneId>,
    failures: u32,
    /// It has failed, and is not tried before this while another can be.
    retry_at: Option<Instant>,
    opened: Instant,
}

impl Pairs {
    fn new(pairs: Vec<PortPair>, now: Instant) -> Self {
        let state =
            |pair| State { pair, lanes: Vec::new(), failures: 0, retry_at: None, opened: now };
        Self { pairs: pairs.into_iter().map(state).collect(), next: 0 }
    }

    /// The pair with the fewest lanes among those that have not failed lately; where all have, the one
    /// that failed first.
    fn take(&mut self, now: Instant, lane: LaneId) -> Option<(usize, PortPair)> {
        let count = self.pairs.len();
        let next = self.next;
        let in_turn = move |at: usize| (at + count - next) % count;
        let is_due = |state: &State| state.retry_at.is_none_or(|at| at <= now);
        let due = self.pairs.iter().enumerate().filter(|(_, state)| is_due(state));
        let best = due.min_by_key(|(at, state)| (state.lanes.len(), in_turn(*at)));
        let first_failed = || self.pairs.iter().enumerate().min_by_key(|(_, state)| state.retry_at);
        let (at, _) = best.or_else(first_failed)?;
        self.next = (at + 1) % count;
        let state = &mut self.pairs[at];
        state.lanes.push(lane);
        state.opened = now;
        Some((at, state.pair))
    }

    fn give_back(&mut self, now: Instant, at: usize, lane: LaneId, end: LaneEnd) {
        let Some(state) = self.pairs.get_mut(at) else { return };
        state.lanes.retain(|other| *other != lane);
        if !end.has_failed {
            return;
        }
        let lasted = now.saturating_duration_since(state.opened);
        if end.has_carried && lasted >= RECOVERED_AFTER {
            state.failures = 0;
        }
        state.retry_at = Some(now + time::backoff(BACKOFF_FIRST, BACKOFF_MOST, state.failures));
        state.failures += 1;
    }

    /// See [`PairChoice::spread`].
    fn spread(&mut self) -> Vec<LaneId> {
        for state in &mut self.pairs {
            (state.failures, state.retry_at) = (0, None);
        }
        let mut loads: Vec<_> = self.pairs.iter().map(|state| state.lanes.clone()).collect();
        let mut moved = Vec::new();
        loop {
            loads.sort_by_key(Vec::len);
            let (Some(least), Some(most)) = (loads.first(), loads.last()) else { return moved };
            if most.len() < least.len() + 2 {
                return moved;
            }
            // One that is moved counts where it goes.
            let Some(lane) = loads.last_mut().and_then(Vec::pop) else { return moved };
            loads[0].insert(0, lane);
            moved.push(lane);
        }
    }
}

impl PairChoice {
    pub(crate) fn new(pairs: Vec<PortPair>) -> Self {
        Self(Mutex::new(Pairs::new(pairs, time::now())))
    }

    /// Lanes that had better be on other pairs, which have fewer. All pairs count as working from now
    /// on, as when a port works again.
    pub(crate) fn spread(&self) -> Vec<LaneId> {
        self.0.lock().spread()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().pairs.len()
    }

    /// The pair for a lane that is to be opened, with its position. It has to be given back.
    pub(crate) fn take(&self, lane: LaneId) -> Option<(usize, PortPair)> {
        self.0.lock().take(time::now(), lane)
    }

    /// A lane on the pair at this position is gone, or was not to be opened.
    pub(crate) fn give_back(&self, at: usize, lane: LaneId, end: LaneEnd) {
        self.0.lock().give_back(time::now(), at, lane, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANE: LaneId = LaneId(1);
    const CLOSED: LaneEnd = LaneEnd { has_failed: false, has_carried: true };
    const BARREN: LaneEnd = LaneEnd { has_failed: true, has_carried: false };
    const LOST: LaneEnd = LaneEnd { has_failed: true, has_carried: true };

    fn pairs(count: u16) -> (Pairs, Instant) {
        let now = Instant::now();
        let pair = |at: u16| PortPair { local: at.into(), remote: at };
        (Pairs::new((0..count).map(pair).collect(), now), now)
    }

    #[test]
    fn lanes_spread_over_all_pairs_and_what_was_given_back_is_taken_again() {
        let (mut pairs, now) = pairs(3);
        let mut taken: Vec<usize> =
            (0..6).map(|lane| pairs.take(now, LaneId(lane)).unwrap().0).collect();
        assert_eq!(taken[1], 1);
        taken.sort_unstable();
        assert_eq!(taken, [0, 0, 1, 1, 2, 2]);
        pairs.give_back(now, 1, LaneId(1), CLOSED);
        assert_eq!(pairs.take(now, LaneId(6)).unwrap().0, 1);
    }

    #[test]
    fn lanes_are_spread_again_when_a_port_works_again_and_no_more_are_moved_than_that_takes() {
        let (mut pairs, now) = pairs(2);
        pairs.give_back(now, 0, LANE, LOST);
        for lane in 0..5 {
            assert_eq!(pairs.take(now, LaneId(lane)).unwrap().0, 1);
        }
        let moved = pairs.spread();
        assert_eq!(moved.len(), 2);
        for lane in moved {
            pairs.give_back(now, 1, lane, CLOSED);
            assert_eq!(pairs.take(now, LaneId(lane.0 + 64)).unwrap().0, 0);
        }
        assert_eq!(pairs.spread(), []);
    }

    #[test]
    fn a_pair_that_failed_is_left_alone_for_a_while_that_doubles_until_it_has_recovered() {
        let (mut pairs, mut now) = pairs(2);
        assert_eq!(pairs.take(now, LANE).unwrap().0, 0);
        for wait_ms in [500, 1000, 2000] {
            pairs.give_back(now, 0, LANE, LOST);
            let just_before = now + Duration::from_millis(wait_ms - 1);
            assert_eq!(pairs.take(just_before, LANE).unwrap().0, 1);
            pairs.give_back(just_before, 1, LANE, CLOSED);
            now += Duration::from_millis(wait_ms);
            assert_eq!(pairs.pairs[1].lanes, []);
            pairs.next = 0;
            assert_eq!(pairs.take(now, LANE).unwrap().0, 0);
        }
        // That it was open for long says nothing while it carries nothing.
        for (end, wait) in [(BARREN, 8 * BACKOFF_FIRST), (LOST, BACKOFF_FIRST)] {
            now += RECOVERED_AFTER;
            pairs.give_back(now, 0, LANE, end);
            assert_eq!(pairs.pairs[0].retry_at, Some(now + wait));
        }
    }

    #[test]
    fn where_all_have_failed_the_one_that_failed_first_is_tried() {
        let (mut pairs, now) = pairs(2);
        let (first, _) = pairs.take(now, LANE).unwrap();
        let (second, _) = pairs.take(now, LANE).unwrap();
        pairs.give_back(now, second, LANE, LOST);
        pairs.give_back(now + Duration::from_millis(1), first, LANE, LOST);
        assert_eq!(pairs.take(now + Duration::from_millis(2), LANE).unwrap().0, second);
    }

    #[test]
    fn without_pairs_there_is_none() {
        let (mut pairs, now) = pairs(0);
        assert!(pairs.take(now, LANE).is_none());
    }
}
