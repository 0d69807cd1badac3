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
//! That a lane comes up does not say that it carries anything: large packets may be dropped on a way that
//! small ones pass. So what failed before is forgotten only when something has come through, and a best
//! whose lanes go without having carried anything, three times in a row, is given up: it is not tried
//! again before something new is heard of it.
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
use crate::time;

/// How often in a row lanes of the best may come and go before its spare takes its place at once.
const FLAPS: u32 = 3;

/// How often in a row lanes of the best may have something out and go without having carried anything,
/// before it is given up.
const BARREN: u32 = 3;

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
    /// Something has come through by lanes of the best since they are up.
    has_carried: bool,
    /// How often in a row its lanes were asked for something, and went without having carried anything.
    barren: u32,
    /// When that was seen last. Lanes that were up by then say nothing more.
    barren_at: Option<Instant>,
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
        if self.is_used && !self.is_given_up() {
            // An attempt that was under way ended with the lanes.
            self.retry_at.get_or_insert(now);
        }
    }

    /// The best is not tried again before something new is heard of it.
    pub(super) fn is_given_up(&self) -> bool {
        self.barren >= BARREN
    }

    /// When the best is tried again, now that it has failed.
    fn next_attempt(&self, now: Instant, settings: &Settings) -> Option<Instant> {
        (!self.is_given_up()).then(|| now + self.wait(settings))
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
        let before = self.failures.saturating_sub(1);
        time::backoff(settings.return_first, settings.return_most, before)
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
        let was_given_up = self.spare.is_given_up();
        self.spare.barren = 0;
        if self.spare.is_used && (self.spare.retry_at.is_some() || was_given_up) {
            self.spare.retry_at = Some(now);
        }
        self.pump(now);
    }

    /// Something has come through by what a lane is for: its queue pair, where one belongs to it.
    pub fn on_carried(&mut self, lane: LaneId) {
        if self.lanes.means(lane) != Some(Means::Best) {
            return;
        }
        self.spare.has_carried = true;
        if self.lanes.note_carried(lane) {
            self.spare.barren = 0;
        }
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
        if self.spare.bulk_lanes.is_none() || gone.means != Means::Best {
            return false;
        }
        // One that the other end, or this, has closed in good order is no failure of its transport; nor
        // is one that was refused because another incarnation answers, which has no cause.
        let has_broken = !gone.was_retired && cause.is_some();
        let is_barren = gone.was_doubted || gone.was_barren && has_broken;
        if is_barren && gone.up_at > self.spare.barren_at {
            self.spare.barren += 1;
            self.spare.barren_at = Some(now);
        }
        let gives_up = self.spare.is_given_up() && !self.spare.is_used;
        if !gives_up && self.lanes.has(Means::Best, true) {
            return false;
        }
        let up_since = self.spare.up_since.take();
        let has_carried = std::mem::take(&mut self.spare.has_carried);
        let lasted = up_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        if has_carried && lasted >= self.settings.recovered_after {
            self.spare.failures = 0;
        }
        let was_up = gone.up_at.is_some();
        let is_under_way = self.lanes.has(Means::Best, false);
        if !has_broken && !is_barren {
            if self.spare.is_used && !is_under_way && self.spare.retry_at.is_none() {
                self.spare.retry_at = self.spare.next_attempt(now, &self.settings);
            }
            return false;
        }
        if !was_up && is_under_way {
            return false;
        }
        self.spare.failures += 1;
        let cause: &dyn std::fmt::Display = match cause {
            Some(Error::RdmaFailed { reason, .. }) => reason,
            Some(cause) => cause,
            None => &"nothing came through before a deadline",
        };
        if self.spare.is_used {
            // It came to nothing: the next attempt is later.
            self.spare.retry_at = self.spare.next_attempt(now, &self.settings);
            self.spare.why = Some(cause.to_string().into());
            return false;
        }
        // What was up is tried again at once, unless it comes and goes.
        if !was_up || gives_up || self.spare.failures >= FLAPS {
            self.use_spare(now, cause);
        }
        true
    }

    fn use_spare(&mut self, now: Instant, why: &dyn std::fmt::Display) {
        let next = self.spare.next_attempt(now, &self.settings);
        let again_in = next.map(|next| next - now);
        tracing::warn!(peer = %self.peer, %why, ?again_in, "a spare transport takes the best's place");
        self.spare.why = Some(match next {
            Some(_) => why.to_string().into(),
            None => format!(
                "{why}; its lanes came up {BARREN} times in a row and carried nothing (do all ports \
                 and switches between have one MTU?), so it is tried again only when a port or the \
                 peer has come back"
            )
            .into(),
        });
        if next.is_none() {
            self.lanes.leave_all(Means::Best);
        }
        self.spare.is_used = true;
        self.spare.missing_since = None;
        self.lanes.set_aside_unopened();
        // What is under way already may come up yet; if it does not, that is when the time runs from.
        let is_under_way = self.lanes.has(Means::Best, false);
        self.spare.retry_at = next.filter(|_| !is_under_way);
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
mod tests;
