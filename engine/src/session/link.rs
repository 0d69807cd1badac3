//! Whether the peer is there: handshake, lanes coming and going, silence, rest.

use std::time::Instant;

use kvferry_proto::frame::Control;
use kvferry_proto::{Incarnation, LaneId};

use super::{Action, Link, Session};
use crate::error::Error;

/// How often in a row nothing may come of a handshake before transfers fail for it.
const LANE_ATTEMPTS: u32 = 3;

impl<T: Clone> Session<T> {
    /// The handshake was answered, or not.
    pub fn on_handshake(&mut self, now: Instant, answer: Result<Incarnation, Error>) {
        if !matches!(self.link, Link::Shaking) {
            return;
        }
        match answer {
            Ok(incarnation) => {
                self.spare.meet(now, self.known != Some(incarnation));
                if let Some(was) = self.known.filter(|known| *known != incarnation) {
                    let peer = self.peer.clone();
                    self.give_up_all(&Error::PeerRestarted { peer, was, is: incarnation });
                    self.lost.clear();
                }
                self.known = Some(incarnation);
                self.link = Link::Up { incarnation };
                self.greeting = true;
                self.heard = now;
                self.next_ping = now + self.settings.ping_interval;
                self.answered = false;
                self.lanes.forget_failures();
                self.lanes.want(self.spare.bulk_lanes(&self.settings));
            }
            Err(error) => {
                self.give_up_all(&error);
                self.wanted = false;
                self.failures += 1;
                self.go_down(now, Some(error));
            }
        }
        self.pump(now);
    }

    /// A lane is open: the target knows of it.
    pub fn on_lane_up(&mut self, now: Instant, lane: LaneId) {
        if !matches!(self.link, Link::Up { .. }) || !self.lanes.set_up(lane, now) {
            self.actions.push_back(Action::CloseLane { lane, reset: true });
            return;
        }
        if std::mem::take(&mut self.greeting) {
            self.wanted = false;
            self.actions.push_back(Action::Connected);
        }
        self.note_up(now, lane);
        self.hear(now);
        self.pump(now);
    }

    /// A lane is closed, or could not be opened for the `cause` given; nothing that came on it is
    /// stored any more.
    pub fn on_lane_down(&mut self, now: Instant, lane: LaneId, cause: Option<Error>) {
        self.lose(now, lane, cause);
        self.pump(now);
    }

    /// The peer was found to be another incarnation, or its control connection broke: nothing that
    /// is remembered of it holds.
    pub fn on_control_lost(&mut self, now: Instant) {
        if matches!(self.link, Link::Up { .. }) {
            self.close_all_lanes(now);
            self.pump(now);
        }
    }

    pub(super) fn check_alive(&mut self, now: Instant) {
        if now >= self.heard + self.settings.dead_after {
            tracing::warn!(peer = %self.peer, after = ?self.settings.dead_after, "the peer is silent");
            return self.close_all_lanes(now);
        }
        if now >= self.next_ping {
            // Heard a moment ago is as good as not at all: the answer to the last ping comes right
            // behind it, and a second wake-up for the difference costs as much as a ping.
            let due = self.heard + self.settings.ping_interval;
            if due > now + self.settings.ping_interval / 8 {
                self.next_ping = due;
            } else if let Some(lane) = self.lanes.control() {
                self.nonce += 1;
                let (nonce, floor) = (self.nonce, self.transfers.floor());
                let control = Control::Ping { nonce, floor };
                self.actions.push_back(Action::Send { lane, control });
                self.next_ping = now + self.settings.ping_interval;
            }
        }
        if self.is_idle(now) {
            for lane in self.lanes.up().collect::<Vec<_>>() {
                self.lanes.retire(lane);
                self.actions.push_back(Action::CloseLane { lane, reset: false });
            }
        }
    }

    /// An answer arrived: the peer is more than a port that takes connections.
    pub(super) fn hear_answer(&mut self, now: Instant) {
        self.answered = true;
        self.failures = 0;
        self.hear(now);
    }

    pub(super) fn hear(&mut self, now: Instant) {
        self.heard = now;
    }

    /// A lane is gone, whoever closed it: what was out on it is adrift, or queued again.
    pub(super) fn lose(&mut self, now: Instant, lane: LaneId, cause: Option<Error>) {
        let Some(gone) = self.lanes.remove(lane, now, &self.settings) else { return };
        let mut adrift = false;
        for id in self.transfers.ids() {
            let Some(entry) = self.transfers.get_mut(id) else { continue };
            let transfer = &mut entry.transfer;
            adrift |= transfer.on_lane_lost(lane);
            if transfer.wants_fence() {
                self.to_fence.push_back(id);
            }
            if transfer.wants_notify() {
                self.to_notify.push_back(id);
            }
            if transfer.has_queued() {
                self.queue(id);
            }
        }
        self.unsaid.forget(lane);
        for asked in self.lost.values_mut() {
            if *asked == Some(lane) {
                *asked = None;
            }
        }
        if adrift {
            self.lost.insert(lane, None);
        }
        if !matches!(self.link, Link::Up { .. }) {
            return;
        }
        let goes_on = self.note_gone(now, &gone, cause.as_ref());
        if self.lanes.is_empty() && !gone.was_retired && !goes_on {
            self.fall(now, cause);
        }
    }

    /// Closes every lane. What is out on them stays out until each is reported closed: only then
    /// is it certain that nothing more comes of it here.
    pub(super) fn close_all_lanes(&mut self, now: Instant) {
        for lane in self.lanes.all() {
            self.lanes.retire(lane);
            self.actions.push_back(Action::CloseLane { lane, reset: true });
        }
        self.fall(now, None);
    }

    /// What the last handshake brought is lost. Where nothing was answered since, it shakes hands and
    /// does no more: a passing trouble, or a lasting one, which nobody is kept waiting for until
    /// their deadlines.
    fn fall(&mut self, now: Instant, cause: Option<Error>) {
        if !self.answered {
            self.failures += 1;
        }
        if self.failures < LANE_ATTEMPTS {
            return self.go_down(now, None);
        }
        let cause =
            cause.unwrap_or_else(|| Error::unreachable(&self.peer, "it closes what it accepts"));
        self.give_up_all(&cause);
        self.wanted = false;
        self.go_down(now, Some(cause));
    }

    fn go_down(&mut self, now: Instant, cause: Option<Error>) {
        let settings = &self.settings;
        let retry_at = self.failures.checked_sub(1).map(|before| now + settings.backoff(before));
        self.link = Link::Down { retry_at };
        self.actions.push_back(Action::Forget(cause));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::net::Endpoint;
    use crate::session::Settings;

    #[test]
    fn a_lane_that_comes_up_when_the_others_have_closed_for_want_of_use_brings_none_back() {
        let idle_after = Duration::from_millis(100);
        let settings = Settings { bulk_lanes: 1, idle_after, ..Settings::default() };
        let mut now = Instant::now();
        let mut session = Session::<()>::new(Endpoint::new("owner", 1), settings, now);
        session.connect(now);
        session.on_handshake(now, Ok(Incarnation(1)));
        let opening = lanes(&mut session, true);
        assert_eq!(opening.len(), 2);
        session.on_lane_up(now, opening[0]);
        now += idle_after;
        session.on_timeout(now);
        assert_eq!(lanes(&mut session, false), opening[..1]);
        session.on_lane_down(now, opening[0], None);
        // It took longer than anybody had use for it.
        session.on_lane_up(now, opening[1]);
        assert_eq!(lanes(&mut session, true), []);
        assert!(session.next_timeout().is_some_and(|at| at <= now));
        session.on_timeout(now);
        assert_eq!(lanes(&mut session, false), opening[1..]);
        session.on_lane_down(now, opening[1], None);
        assert_eq!(session.next_timeout(), None);
        assert!(session.take_actions().is_empty());
    }

    /// Lanes that are to be opened, or closed; other actions are dropped.
    fn lanes(session: &mut Session<()>, opened: bool) -> Vec<LaneId> {
        let actions = session.take_actions().into_iter();
        let lane = |action| match action {
            Action::OpenLane { lane, .. } if opened => Some(lane),
            Action::CloseLane { lane, .. } if !opened => Some(lane),
            _ => None,
        };
        actions.filter_map(lane).collect()
    }
}
