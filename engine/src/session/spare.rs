//! What takes the place of the best transport while that fails: its spare.
//!
//! ```text
//!            no lane of it is up for a while, an attempt fails with none under way,
//!            or its lanes come and go
//!   best  --------------------------------------------------------------------------> spare
//!    ^                                                                                  |
//!    +---- a lane of the best comes up: it is tried with back-off, beside the spare ----+
//! ```
//!
//! Slices move by the rules of any lane that is lost: those of a write once its target has confirmed
//! that nothing more comes of the lane, those of a read once it is closed here. Lanes of the spare that
//! are not needed any more close when nothing is out on them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvferry_proto::LaneId;

use super::lanes::Gone;
use super::{Action, Link, Session, Settings};
use crate::error::Error;

/// How often in a row lanes of the best may come and go before its spare takes its place at once.
const FLAPS: u32 = 3;

/// By which of the transports that a handshake found a lane is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// The best that both ends have.
    Best,
    /// What takes its place while it fails.
    Spare,
}

/// Whether the best transport carries transfers, or its spare. See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Spare {
    /// How many lanes of it large transfers have; `None` where there is no spare.
    bulk_lanes: Option<usize>,
    /// It has the place of the best.
    is_used: bool,
    /// Why, as far as it is known.
    why: Option<Arc<str>>,
    /// No lane of the best has been up since, while some were to be.
    missing_since: Option<Instant>,
    /// Since when lanes of the best are up.
    up_since: Option<Instant>,
    /// When the best is tried again.
    retry_at: Option<Instant>,
    /// How often in a row the best has failed.
    failures: u32,
}

impl Spare {
    pub(super) fn set_bulk_lanes(&mut self, bulk: Option<usize>) {
        self.bulk_lanes = bulk;
    }

    pub(super) fn means(&self) -> Means {
        if self.is_used { Means::Spare } else { Means::Best }
    }

    /// Why the best is not used, where its spare is.
    pub(super) fn why(&self) -> Option<&Arc<str>> {
        self.why.as_ref().filter(|_| self.is_used)
    }

    /// What a handshake found. What was known of the best holds for the same peer only, and where it
    /// has a spare still.
    pub(super) fn meet(&mut self, now: Instant, is_other: bool) {
        self.missing_since = None;
        self.up_since = None;
        if is_other || self.bulk_lanes.is_none() {
            *self = Self { bulk_lanes: self.bulk_lanes, ..Self::default() };
        }
        if self.is_used {
            // An attempt that was under way ended with the lanes.
            self.retry_at.get_or_insert(now);
        }
    }

    /// How many lanes large transfers have now.
    pub(super) fn bulk_lanes(&self, settings: &Settings) -> usize {
        self.bulk_lanes.filter(|_| self.is_used).unwrap_or(settings.bulk_lanes)
    }

    /// When something has to be done about it, whatever else happens.
    pub(super) fn next_timeout(&self, settings: &Settings) -> Option<Instant> {
        self.bulk_lanes?;
        if self.is_used {
            return self.retry_at;
        }
        self.missing_since.map(|since| since + settings.spare_after)
    }

    fn wait(&self, settings: &Settings) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(16);
        (settings.return_first * 2_u32.saturating_pow(doublings)).min(settings.return_most)
    }
}

impl<T: Clone> Session<T> {
    /// By what lanes are opened now.
    #[must_use]
    pub fn means(&self) -> Means {
        self.spare.means()
    }

    /// Why the best transport does not carry transfers, while its spare does.
    #[must_use]
    pub fn not_best(&self) -> Option<Arc<str>> {
        self.spare.why().cloned()
    }

    /// The best transport may work again: it is tried now. These lanes of it are opened anew, since
    /// there are better ways for them: each closes when nothing is out on it.
    pub fn try_best(&mut self, now: Instant, moved: &[LaneId]) {
        for lane in moved {
            self.lanes.leave(*lane);
        }
        self.lanes.forget_failures();
        if self.spare.is_used && self.spare.retry_at.is_some() {
            self.spare.retry_at = Some(now);
        }
        self.pump(now);
    }

    /// Opens the lanes that are missing, and tries the best again when its time has come.
    pub(super) fn open_wanted(&mut self, now: Instant) {
        let since = self.spare.missing_since;
        if since.is_some_and(|since| since + self.settings.spare_after <= now) {
            let after = self.settings.spare_after;
            self.use_spare(now, &format_args!("no lane came up within {after:?}"));
        }
        let means = self.spare.means();
        for lane in self.lanes.open_missing(now, means) {
            self.actions.push_back(Action::OpenLane { lane, means });
        }
        let Spare { bulk_lanes: Some(_), is_used, retry_at, .. } = self.spare else { return };
        if !is_used {
            let is_missing = !self.lanes.has(Means::Best, true);
            self.spare.missing_since =
                self.spare.missing_since.or(Some(now)).filter(|_| is_missing);
        } else if retry_at.is_some_and(|at| at <= now) {
            self.spare.retry_at = None;
            let (lane, means) = (self.lanes.open_beside(), Means::Best);
            self.actions.push_back(Action::OpenLane { lane, means });
        }
    }

    /// A lane is up.
    pub(super) fn note_up(&mut self, now: Instant, lane: LaneId) {
        if self.lanes.means(lane) != Some(Means::Best) {
            return;
        }
        self.spare.missing_since = None;
        self.spare.up_since.get_or_insert(now);
        if std::mem::take(&mut self.spare.is_used) {
            tracing::info!(peer = %self.peer, "the best transport works again, and is used");
            self.spare.retry_at = None;
            self.lanes.replace_spare(self.settings.bulk_lanes);
        }
    }

    /// A lane is gone. Whether its spare is to be tried, or the best once more, before the peer counts as
    /// gone where this was the last lane.
    pub(super) fn note_gone(&mut self, now: Instant, gone: &Gone, cause: Option<&Error>) -> bool {
        let is_spared = self.spare.bulk_lanes.is_some() && gone.means == Means::Best;
        if !is_spared || self.lanes.has(Means::Best, true) {
            return false;
        }
        let up_since = self.spare.up_since.take();
        let recovered_after = self.settings.recovered_after;
        if up_since.is_some_and(|since| now.saturating_duration_since(since) >= recovered_after) {
            self.spare.failures = 0;
        }
        // One that the other end has closed in good order is no failure of its transport.
        let has_failed = !gone.was_retired && (cause.is_some() || !gone.was_up);
        if !has_failed || !gone.was_up && self.lanes.has(Means::Best, false) {
            return false;
        }
        self.spare.failures += 1;
        let cause: &dyn std::fmt::Display = match cause {
            Some(Error::RdmaFailed { reason, .. }) => reason,
            Some(cause) => cause,
            None => &"no lane came up",
        };
        if self.spare.is_used {
            // It came to nothing: the next attempt is later.
            self.spare.retry_at = Some(now + self.spare.wait(&self.settings));
            self.spare.why = Some(cause.to_string().into());
            return false;
        }
        // What was up is tried again at once, unless it comes and goes.
        if !gone.was_up || self.spare.failures >= FLAPS {
            self.use_spare(now, cause);
        }
        true
    }

    fn use_spare(&mut self, now: Instant, why: &dyn std::fmt::Display) {
        let wait = self.spare.wait(&self.settings);
        tracing::warn!(peer = %self.peer, %why, again_in = ?wait, "a spare transport takes the best's place");
        self.spare.why = Some(why.to_string().into());
        self.spare.is_used = true;
        self.spare.missing_since = None;
        self.lanes.set_aside_unopened();
        // What is under way already may come up yet; if it does not, that is when the time runs from.
        let is_under_way = self.lanes.has(Means::Best, false);
        self.spare.retry_at = Some(now + wait).filter(|_| !is_under_way);
        self.lanes.forget_failures();
        self.lanes.want(self.spare.bulk_lanes(&self.settings));
    }

    /// Closes lanes that are not needed any more and have nothing out.
    pub(super) fn close_leaving(&mut self) {
        for lane in self.lanes.take_left() {
            self.actions.push_back(Action::CloseLane { lane, reset: false });
        }
    }

    /// When the spare wants to be thought of, while lanes are wanted.
    pub(super) fn spare_timeout(&self, are_wanted: bool) -> Option<Instant> {
        let is_up = matches!(self.link, Link::Up { .. });
        self.spare.next_timeout(&self.settings).filter(|_| is_up && are_wanted)
    }
}

#[cfg(test)]
mod tests {
    use kvferry_proto::frame::{Control, Reply, Status};
    use kvferry_proto::{Incarnation, TransferId};

    use super::*;
    use crate::net::Endpoint;
    use crate::session::Settings;
    use crate::transfer::{Op, Spec};

    /// A session with one bulk lane by each way.
    struct Two {
        session: Session<()>,
        now: Instant,
        /// What was asked for since it was last looked.
        opened: Vec<(LaneId, Means)>,
        closed: Vec<LaneId>,
        posted: Vec<(LaneId, u32)>,
        fenced: Vec<LaneId>,
    }

    fn failure() -> Option<Error> {
        Some(Error::RdmaFailed { peer: Endpoint::new("peer", 1), reason: "cut".into() })
    }

    impl Two {
        fn shaken(spare: Option<usize>) -> Self {
            let now = Instant::now();
            let settings = Settings { small_bytes: 0, ..Settings::default() };
            let session = Session::new(Endpoint::new("peer", 1), settings, now);
            let (opened, closed, posted, fenced) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            let mut two = Self { session, now, opened, closed, posted, fenced };
            two.session.connect(now);
            two.session.set_bulk_lanes(1, spare);
            two.session.on_handshake(now, Ok(Incarnation(1)));
            two.look();
            two
        }

        fn look(&mut self) {
            let (opened, closed) = (&mut self.opened, &mut self.closed);
            opened.clear();
            closed.clear();
            self.posted.clear();
            self.fenced.clear();
            for action in self.session.take_actions() {
                match action {
                    Action::OpenLane { lane, means } => self.opened.push((lane, means)),
                    Action::CloseLane { lane, .. } => self.closed.push(lane),
                    Action::Post { lane, slice, .. } => self.posted.push((lane, slice)),
                    Action::Send { control: Control::FenceLane { lane }, .. } => {
                        self.fenced.push(lane);
                    }
                    _ => {}
                }
            }
        }

        fn opened(&self, means: Means) -> Vec<LaneId> {
            self.opened.iter().filter(|(_, by)| *by == means).map(|(lane, _)| *lane).collect()
        }

        fn up(&mut self, lane: LaneId) {
            self.session.on_lane_up(self.now, lane);
        }

        fn down(&mut self, lane: LaneId, cause: Option<Error>) {
            self.session.on_lane_down(self.now, lane, cause);
            self.look();
        }

        /// Until what waits longest is due.
        fn wait(&mut self) -> Duration {
            let next = self.session.next_timeout().expect("something is due");
            let waited = next.saturating_duration_since(self.now);
            self.now = self.now.max(next);
            self.session.on_timeout(self.now);
            self.look();
            waited
        }

        /// Both lanes of the best are up.
        fn all_up(spare: Option<usize>) -> (Self, Vec<LaneId>) {
            let mut two = Self::shaken(spare);
            let best = two.opened(Means::Best);
            assert_eq!(best.len(), 2);
            best.iter().for_each(|lane| two.up(*lane));
            two.look();
            (two, best)
        }

        fn submit(&mut self, op: Op) -> TransferId {
            let deadline = self.now + Duration::from_secs(60);
            let slice_bytes = vec![1000; 2];
            let (notifies, by_reference, begun) = (false, true, self.now);
            let spec = Spec { op, slice_bytes, notifies, by_reference, begun, deadline };
            let id = self.session.submit(self.now, Incarnation(1), spec, ()).unwrap();
            self.look();
            id
        }
    }

    #[test]
    fn the_spare_is_used_when_every_attempt_has_failed_and_the_best_again_when_it_comes_up() {
        let mut two = Two::shaken(Some(2));
        let best = two.opened(Means::Best);
        assert_eq!(two.opened(Means::Spare), []);
        two.down(best[0], failure());
        assert_eq!(two.opened(Means::Spare), [], "another attempt is under way");
        two.down(best[1], failure());
        let spare = two.opened(Means::Spare);
        assert_eq!(spare.len(), 3, "as many as by the spare");
        assert_eq!(two.session.not_best().as_deref(), Some("cut"));
        spare.iter().for_each(|lane| two.up(*lane));
        two.look();
        // Tried again, later each time.
        let (mut waits, mut since) = (Vec::new(), two.now);
        let probe = loop {
            two.wait();
            two.session.hear_answer(two.now);
            let Some(probe) = two.opened(Means::Best).first().copied() else { continue };
            waits.push(two.now - since);
            if waits.len() == 3 {
                break probe;
            }
            two.down(probe, failure());
            since = two.now;
            assert_eq!(two.session.means(), Means::Spare);
        };
        assert!(waits.is_sorted() && waits[0] < waits[2], "{waits:?}");
        two.up(probe);
        two.look();
        assert_eq!((two.session.means(), two.session.not_best()), (Means::Best, None));
        two.closed.sort_by_key(|lane| spare.iter().position(|one| one == lane));
        assert_eq!(two.closed, spare, "none is needed any more");
        assert_eq!(two.opened(Means::Best).len(), 1, "the other lane of it");
    }

    #[test]
    fn a_best_that_says_nothing_gives_way_after_a_while_and_is_taken_when_it_is_there_after_all() {
        let mut two = Two::shaken(Some(1));
        let best = two.opened(Means::Best);
        let waited = two.wait();
        assert_eq!(waited, Settings::default().spare_after);
        let spare = two.opened(Means::Spare);
        assert_eq!(spare.len(), 2);
        two.up(spare[0]);
        two.up(best[1]);
        two.look();
        assert_eq!(two.session.means(), Means::Best);
        assert_eq!(two.closed, spare[..1]);
        assert_eq!(two.opened, [], "the first is under way still");
        two.up(spare[1]);
        two.look();
        assert_eq!(two.closed, spare[1..], "it came too late");
    }

    #[test]
    fn without_a_spare_the_best_is_never_replaced() {
        let (mut two, best) = Two::all_up(None);
        two.submit(Op::Read);
        for lane in best {
            two.down(lane, failure());
            two.opened.iter().for_each(|(_, means)| assert_eq!(*means, Means::Best));
        }
        assert_eq!(two.session.not_best(), None);
    }

    #[test]
    fn slices_of_a_read_go_on_by_the_spare_and_those_of_a_write_after_the_fence() {
        for op in [Op::Read, Op::Write] {
            let (mut two, best) = Two::all_up(Some(1));
            let id = two.submit(op);
            assert_eq!(two.posted, [(best[1], 0), (best[1], 1)]);
            best.iter().for_each(|lane| two.down(*lane, failure()));
            // What takes their places does not come up.
            let again = two.opened(Means::Best);
            two.down(again[0], failure());
            let first = numbered_after(best[0]);
            two.down(first, failure());
            let spare = two.opened(Means::Spare);
            assert_eq!(spare.len(), 2, "{op:?}");
            two.up(spare[0]);
            two.up(spare[1]);
            two.look();
            if op == Op::Write {
                assert_eq!(two.posted, []);
                assert_eq!(two.fenced, [best[1]]);
                two.session.on_reply(two.now, spare[0], Reply::LaneFenced { lane: best[1] });
                two.look();
            }
            assert_eq!(two.posted, [(spare[1], 0), (spare[1], 1)], "{op:?}");
            for slice in 0..2 {
                let status = Status::Done;
                let reply = match op {
                    Op::Write => Reply::Ack { transfer: id, slice, status },
                    Op::Read => Reply::Held { transfer: id, slice, status },
                };
                two.session.on_landed(two.now, spare[1], id, slice, Ok(()));
                two.session.on_reply(two.now, spare[1], reply);
            }
            assert_eq!(two.session.open_transfers(), 0);
        }
    }

    /// The lane that takes the place of one.
    fn numbered_after(lane: LaneId) -> LaneId {
        LaneId(lane.0 + 64)
    }

    #[test]
    fn lanes_that_come_and_go_count_and_have_to_last_to_be_trusted_again() {
        let (mut two, _) = Two::all_up(Some(1));
        two.submit(Op::Read);
        for flap in 1..=FLAPS {
            let up: Vec<_> = two.session.lanes.up().collect();
            let under_way: Vec<_> =
                two.session.lanes.all().into_iter().filter(|lane| !up.contains(lane)).collect();
            under_way.iter().for_each(|lane| two.up(*lane));
            assert_eq!(two.session.means(), Means::Best, "flap {flap}");
            let lanes = two.session.lanes.all();
            lanes.into_iter().for_each(|lane| two.session.on_lane_down(two.now, lane, failure()));
        }
        assert_eq!(two.session.means(), Means::Spare);
        two.look();
    }

    #[test]
    fn what_is_out_on_a_lane_of_the_spare_is_not_sent_again_when_the_best_is_back() {
        let mut two = Two::shaken(Some(1));
        let best = two.opened(Means::Best);
        best.iter().for_each(|lane| two.down(*lane, failure()));
        let spare = two.opened(Means::Spare);
        spare.iter().for_each(|lane| two.up(*lane));
        let id = two.submit(Op::Write);
        assert_eq!(two.posted, [(spare[1], 0), (spare[1], 1)]);
        two.session.try_best(two.now, &[]);
        two.look();
        let probe = two.opened(Means::Best);
        assert_eq!(probe.len(), 1, "at once");
        two.up(probe[0]);
        two.look();
        assert_eq!(two.closed, spare[..1], "the other has something out");
        let status = Status::Done;
        let ack = |slice| Reply::Ack { transfer: id, slice, status };
        two.session.on_reply(two.now, spare[1], ack(0));
        two.look();
        assert_eq!(two.closed, []);
        two.session.on_reply(two.now, spare[1], ack(1));
        two.look();
        assert_eq!(two.closed, spare[1..]);
        assert_eq!((two.session.open_transfers(), two.posted.len()), (0, 0));
    }

    #[test]
    fn what_is_known_of_the_best_outlives_a_handshake_with_the_same_peer_only() {
        for is_same in [true, false] {
            let mut two = Two::shaken(Some(1));
            let best = two.opened(Means::Best);
            best.iter().for_each(|lane| two.down(*lane, failure()));
            two.session.on_control_lost(two.now);
            two.wait();
            let incarnation = Incarnation(if is_same { 1 } else { 2 });
            two.session.set_bulk_lanes(1, Some(1));
            two.session.on_handshake(two.now, Ok(incarnation));
            two.look();
            let wanted = if is_same { Means::Spare } else { Means::Best };
            assert_eq!(two.session.means(), wanted);
        }
    }
}
