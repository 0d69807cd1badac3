//! Which pair of ports the next lane to a peer is on, as a state machine without I/O.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::time;

/// The wait after a pair has failed before it is tried again while others work; it doubles.
const BACKOFF_FIRST: Duration = Duration::from_millis(500);

/// The longest such wait.
const BACKOFF_MOST: Duration = Duration::from_secs(30);

/// A pair whose lane was open for this long has recovered: its failures before do not count.
const RECOVERED_AFTER: Duration = Duration::from_secs(10);

/// A port here and a port there that reach each other, by their positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortPair {
    pub(crate) local: usize,
    /// In the order in which the peer offers them.
    pub(crate) remote: u16,
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
    lanes: u32,
    failures: u32,
    /// It has failed, and is not tried before this while another can be.
    retry_at: Option<Instant>,
    opened: Instant,
}

impl Pairs {
    fn new(pairs: Vec<PortPair>, now: Instant) -> Self {
        let state = |pair| State { pair, lanes: 0, failures: 0, retry_at: None, opened: now };
        Self { pairs: pairs.into_iter().map(state).collect(), next: 0 }
    }

    /// The pair with the fewest lanes among those that have not failed lately; where all have, the one
    /// that failed first.
    fn take(&mut self, now: Instant) -> Option<(usize, PortPair)> {
        let count = self.pairs.len();
        let next = self.next;
        let in_turn = move |at: usize| (at + count - next) % count;
        let is_due = |state: &State| state.retry_at.is_none_or(|at| at <= now);
        let due = self.pairs.iter().enumerate().filter(|(_, state)| is_due(state));
        let best = due.min_by_key(|(at, state)| (state.lanes, in_turn(*at)));
        let first_failed = || self.pairs.iter().enumerate().min_by_key(|(_, state)| state.retry_at);
        let (at, _) = best.or_else(first_failed)?;
        self.next = (at + 1) % count;
        let state = &mut self.pairs[at];
        state.lanes += 1;
        state.opened = now;
        Some((at, state.pair))
    }

    fn give_back(&mut self, now: Instant, at: usize, has_failed: bool) {
        let Some(state) = self.pairs.get_mut(at) else { return };
        state.lanes = state.lanes.saturating_sub(1);
        if !has_failed {
            return;
        }
        if now.saturating_duration_since(state.opened) >= RECOVERED_AFTER {
            state.failures = 0;
        }
        let wait = BACKOFF_FIRST * 2_u32.saturating_pow(state.failures.min(16));
        state.retry_at = Some(now + wait.min(BACKOFF_MOST));
        state.failures += 1;
    }
}

impl PairChoice {
    pub(crate) fn new(pairs: Vec<PortPair>) -> Self {
        Self(Mutex::new(Pairs::new(pairs, time::now())))
    }

    /// The pair for a lane that is to be opened, with its position. It has to be given back.
    pub(crate) fn take(&self) -> Option<(usize, PortPair)> {
        self.0.lock().take(time::now())
    }

    /// A lane on the pair at this position is gone, or was not to be opened.
    pub(crate) fn give_back(&self, at: usize, has_failed: bool) {
        self.0.lock().give_back(time::now(), at, has_failed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(count: u16) -> (Pairs, Instant) {
        let now = Instant::now();
        let pair = |at: u16| PortPair { local: at.into(), remote: at };
        (Pairs::new((0..count).map(pair).collect(), now), now)
    }

    #[test]
    fn lanes_spread_over_all_pairs_and_what_was_given_back_is_taken_again() {
        let (mut pairs, now) = pairs(3);
        let mut taken: Vec<usize> = (0..6).map(|_| pairs.take(now).unwrap().0).collect();
        taken.sort_unstable();
        assert_eq!(taken, [0, 0, 1, 1, 2, 2]);
        pairs.give_back(now, 1, false);
        assert_eq!(pairs.take(now).unwrap().0, 1);
    }

    #[test]
    fn a_pair_that_failed_is_left_alone_for_a_while_that_doubles_until_it_has_recovered() {
        let (mut pairs, mut now) = pairs(2);
        assert_eq!(pairs.take(now).unwrap().0, 0);
        for wait_ms in [500, 1000, 2000] {
            pairs.give_back(now, 0, true);
            let just_before = now + Duration::from_millis(wait_ms - 1);
            assert_eq!(pairs.take(just_before).unwrap().0, 1);
            pairs.give_back(just_before, 1, false);
            now += Duration::from_millis(wait_ms);
            let lanes = pairs.pairs[1].lanes;
            assert_eq!(lanes, 0);
            pairs.next = 0;
            assert_eq!(pairs.take(now).unwrap().0, 0);
        }
        now += RECOVERED_AFTER;
        pairs.give_back(now, 0, true);
        assert_eq!(pairs.pairs[0].retry_at, Some(now + BACKOFF_FIRST));
    }

    #[test]
    fn where_all_have_failed_the_one_that_failed_first_is_tried() {
        let (mut pairs, now) = pairs(2);
        let (first, _) = pairs.take(now).unwrap();
        let (second, _) = pairs.take(now).unwrap();
        pairs.give_back(now, second, true);
        pairs.give_back(now + Duration::from_millis(1), first, true);
        assert_eq!(pairs.take(now + Duration::from_millis(2)).unwrap().0, second);
    }

    #[test]
    fn without_pairs_there_is_none() {
        let (mut pairs, now) = pairs(0);
        assert!(pairs.take(now).is_none());
    }
}
