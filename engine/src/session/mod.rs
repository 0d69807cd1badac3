//! Everything that an engine does about one peer, as a state machine: the handshake and its
//! back-off, lanes and their windows, transfers, liveness, rest. It reads no clock, draws no
//! randomness, and does no I/O: it takes the time and an event, and [`Session::take_actions`] says
//! what has to be done.
//!
//! ```text
//!        work          answered            every lane lost
//!  Down ------> Shaking --------> Up ----------------------------> Down
//!    ^             |               |  idle: lanes close, Up stays
//!    +-- failed ---+               +--> work: lanes open again
//! ```
//!
//! Slices of large transfers go to the bulk lane with the fewest bytes in flight, in turn among
//! transfers; small transfers and everything without a payload go to the express lane, so they wait
//! for no bulk. A lane's window bounds what a failed lane has to repeat.

mod lanes;
mod table;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use kvferry_proto::frame::{Control, Reply};
use kvferry_proto::{Incarnation, LaneId, TransferId};

use crate::error::{Error, Remote};
use crate::net::Endpoint;
use crate::transfer::{Op, Outcome, Spec, Step, TransferState};
use lanes::LaneSet;
use table::{Entry, Transfers};

/// How a session behaves.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Lanes for large transfers, beside the one for small ones. With none, that one carries all.
    pub bulk_lanes: usize,
    /// Up to this many bytes a transfer is small.
    pub small_bytes: u64,
    /// How many payload bytes may be out on one lane.
    pub window_bytes: u64,
    /// When nothing was heard for this long, the peer is asked for a sign of life.
    pub ping_interval: Duration,
    /// When nothing was heard for this long, the peer counts as dead.
    pub dead_after: Duration,
    /// After how long a notification that the peer had no room for is sent again.
    pub notify_retry: Duration,
    /// The wait after the first failed attempt to reach the peer; it doubles.
    pub backoff_first: Duration,
    /// The longest wait between attempts.
    pub backoff_most: Duration,
    /// Lanes that nothing was submitted for close after this long.
    pub idle_after: Duration,
    /// How many transfers may be open.
    pub open_transfers: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            bulk_lanes: 1,
            small_bytes: 64 << 10,
            window_bytes: 16 << 20,
            ping_interval: Duration::from_secs(2),
            dead_after: Duration::from_secs(6),
            notify_retry: Duration::from_millis(20),
            backoff_first: Duration::from_millis(50),
            backoff_most: Duration::from_secs(2),
            idle_after: Duration::from_secs(300),
            open_transfers: 16_384,
        }
    }
}

/// What has to be done. `T` is whatever the driver attached to the transfer.
#[derive(Debug)]
pub enum Action<T> {
    /// Start a handshake; [`Session::on_handshake`] takes the answer, or that there was none.
    Handshake,
    /// Nothing that was remembered about the peer is valid any more.
    Forget,
    /// Open a lane; [`Session::on_lane_up`] or [`Session::on_lane_down`] follows.
    OpenLane(LaneId),
    /// Close a lane; [`Session::on_lane_down`] follows.
    CloseLane {
        /// Which.
        lane: LaneId,
        /// Drop what is queued, and have the target drop what it has not stored.
        reset: bool,
    },
    /// Post a slice on a lane.
    Post {
        /// The lane.
        lane: LaneId,
        /// The transfer.
        transfer: TransferId,
        /// The slice.
        slice: u32,
        /// Its answer must not be held back.
        answer_now: bool,
        /// The oldest transfer that has not ended.
        floor: TransferId,
        /// The transfer's attachment.
        token: T,
    },
    /// Send something without a payload on a lane.
    Send {
        /// The lane.
        lane: LaneId,
        /// What.
        control: Control,
    },
    /// Send a transfer's notification on a lane.
    Notify {
        /// The lane.
        lane: LaneId,
        /// The transfer.
        transfer: TransferId,
        /// The oldest transfer that has not ended.
        floor: TransferId,
        /// The transfer's attachment.
        token: T,
    },
    /// A transfer is over: fence its memory here, then tell its caller.
    End {
        /// The transfer.
        transfer: TransferId,
        /// How it ended.
        outcome: Outcome,
        /// How many slices were posted more than once.
        repeated: u32,
        /// The transfer's attachment.
        token: T,
    },
}

#[derive(Debug)]
enum Link {
    Down { retry_at: Option<Instant> },
    Shaking,
    Up { incarnation: Incarnation },
    Closed,
}

/// The state machine of one peer. See the [module](self).
#[derive(Debug)]
pub struct Session<T> {
    peer: Endpoint,
    settings: Settings,
    link: Link,
    /// Who answered last.
    known: Option<Incarnation>,
    /// Somebody waits to be connected, though there is nothing to transfer.
    wanted: bool,
    failures: u32,
    lanes: LaneSet,
    /// Lanes that are lost with slices adrift, and where the target was asked to fence them.
    lost: BTreeMap<LaneId, Option<LaneId>>,
    transfers: Transfers<T>,
    deadlines: BTreeSet<(Instant, TransferId)>,
    small: VecDeque<TransferId>,
    bulk: VecDeque<TransferId>,
    to_fence: VecDeque<TransferId>,
    to_notify: VecDeque<TransferId>,
    retries: VecDeque<(Instant, TransferId)>,
    heard: Instant,
    next_ping: Instant,
    nonce: u64,
    used: Instant,
    stale: u64,
    actions: VecDeque<Action<T>>,
}

impl<T: Clone> Session<T> {
    /// A session that has not heard of its peer yet.
    #[must_use]
    pub fn new(peer: Endpoint, settings: Settings, now: Instant) -> Self {
        Self {
            peer,
            settings,
            link: Link::Down { retry_at: None },
            known: None,
            wanted: false,
            failures: 0,
            lanes: LaneSet::new(settings.bulk_lanes),
            lost: BTreeMap::new(),
            transfers: Transfers::new(),
            deadlines: BTreeSet::new(),
            small: VecDeque::new(),
            bulk: VecDeque::new(),
            to_fence: VecDeque::new(),
            to_notify: VecDeque::new(),
            retries: VecDeque::new(),
            heard: now,
            next_ping: now,
            nonce: 0,
            used: now,
            stale: 0,
            actions: VecDeque::new(),
        }
    }

    /// The peer's incarnation, while it is reachable.
    #[must_use]
    pub fn incarnation(&self) -> Option<Incarnation> {
        match self.link {
            Link::Up { incarnation } => Some(incarnation),
            _ => None,
        }
    }

    /// How many transfers have not ended.
    #[must_use]
    pub fn open_transfers(&self) -> usize {
        self.transfers.len()
    }

    /// How many lanes are open.
    #[must_use]
    pub fn open_lanes(&self) -> usize {
        self.lanes.up().count()
    }

    /// How many answers matched nothing under way, and were ignored.
    #[must_use]
    pub fn stale_answers(&self) -> u64 {
        self.stale
    }

    /// The attachment of a transfer under way.
    #[must_use]
    pub fn token(&self, transfer: TransferId) -> Option<&T> {
        self.transfers.get(transfer).map(|entry| &entry.token)
    }

    /// What has to be done now, in order.
    pub fn take_actions(&mut self) -> VecDeque<Action<T>> {
        std::mem::take(&mut self.actions)
    }

    /// Wants the peer reachable, though there is nothing to transfer yet.
    pub fn connect(&mut self, now: Instant) {
        self.wanted = true;
        self.used = now;
        self.pump(now);
    }

    /// Starts a transfer that names regions of `incarnation`.
    ///
    /// # Errors
    /// [`Error::Backpressure`] when too many are open, [`Error::Shutdown`] after shutdown.
    pub fn submit(
        &mut self,
        now: Instant,
        incarnation: Incarnation,
        spec: Spec,
        token: T,
    ) -> Result<TransferId, Error> {
        if let Link::Closed = self.link {
            return Err(Error::Shutdown);
        }
        if let Some(found) = self.known.filter(|known| *known != incarnation) {
            let peer = self.peer.clone();
            return Err(Error::StaleHandle { peer, expected: incarnation, found });
        }
        let limit = self.settings.open_transfers;
        if self.transfers.len() as u64 >= limit || self.transfers.is_full() {
            return Err(Error::Backpressure { what: "transfers to one peer", limit });
        }
        let bytes: u64 = spec.slice_bytes.iter().map(|bytes| u64::from(*bytes)).sum();
        let is_small = bytes <= self.settings.small_bytes;
        let is_nothing = spec.slice_bytes.is_empty() && spec.notification.is_none();
        let transfer = TransferState::new(spec);
        let deadline = transfer.deadline();
        let id = self.transfers.insert(Entry { transfer, token });
        self.deadlines.insert((deadline, id));
        self.used = now;
        if is_nothing {
            self.end(id, Outcome::Done);
        } else if bytes == 0 {
            self.to_notify.push_back(id);
        } else if is_small {
            self.small.push_back(id);
        } else {
            self.bulk.push_back(id);
        }
        self.pump(now);
        Ok(id)
    }

    /// Makes a transfer fail: a write once its target has confirmed that nothing more lands, or
    /// its deadline has passed; a read at once.
    pub fn fail(&mut self, now: Instant, id: TransferId, cause: Error) {
        self.apply(id, |transfer| transfer.fail(cause));
        self.pump(now);
    }

    /// Makes a transfer fail now, whatever its target does.
    pub fn give_up(&mut self, now: Instant, id: TransferId, cause: Error) {
        if let Some(entry) = self.transfers.get_mut(id) {
            let outcome = entry.transfer.give_up(cause);
            self.end(id, outcome);
        }
        self.pump(now);
    }

    /// Makes every transfer fail, as [`Session::fail`] does.
    pub fn fail_all(&mut self, now: Instant, cause: &Error) {
        for id in self.transfers.ids() {
            self.apply(id, |transfer| transfer.fail(cause.clone()));
        }
        self.pump(now);
    }

    /// Ends everything now and closes the lanes. Nothing can be submitted any more.
    pub fn close(&mut self, cause: &Error) {
        self.give_up_all(cause);
        self.link = Link::Closed;
        for lane in self.lanes.clear() {
            self.actions.push_back(Action::CloseLane { lane, reset: false });
        }
    }

    /// The handshake was answered, or not.
    pub fn on_handshake(&mut self, now: Instant, answer: Result<Incarnation, Error>) {
        if !matches!(self.link, Link::Shaking) {
            return;
        }
        match answer {
            Ok(incarnation) => {
                if let Some(was) = self.known.filter(|known| *known != incarnation) {
                    let peer = self.peer.clone();
                    self.give_up_all(&Error::PeerRestarted { peer, was, is: incarnation });
                    self.lost.clear();
                }
                self.known = Some(incarnation);
                self.link = Link::Up { incarnation };
                self.heard = now;
                self.next_ping = now + self.settings.ping_interval;
                self.wanted = true;
                self.lanes.forget_failures();
            }
            Err(error) => {
                self.give_up_all(&error);
                self.wanted = false;
                self.failures += 1;
                self.go_down(now);
            }
        }
        self.pump(now);
        self.wanted = false;
    }

    /// A lane is open: the target knows of it.
    pub fn on_lane_up(&mut self, now: Instant, lane: LaneId) {
        if !matches!(self.link, Link::Up { .. }) || !self.lanes.set_up(lane) {
            self.actions.push_back(Action::CloseLane { lane, reset: true });
            return;
        }
        self.failures = 0;
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

    /// A reply without a payload arrived on a lane.
    pub fn on_reply(&mut self, now: Instant, lane: LaneId, reply: Reply) {
        self.hear(now);
        match reply {
            Reply::Ack { transfer, slice, status } => {
                self.settle(lane, transfer, slice, |state| state.on_ack(lane, slice, status));
                self.note_retry(now, transfer);
            }
            Reply::Held { transfer, slice, status } => {
                self.settle(lane, transfer, slice, |state| state.on_held(lane, slice, status));
            }
            Reply::Notified { transfer, status } => {
                self.apply(transfer, |state| state.on_notified(status));
                self.note_retry(now, transfer);
            }
            Reply::Cancelled { transfer } => self.apply(transfer, TransferState::on_fenced),
            Reply::LaneFenced { lane } => self.on_lane_fenced(lane),
            Reply::Pong { .. } | Reply::Data { .. } => {}
        }
        self.pump(now);
    }

    /// The payload of a read slice is in place, or why it is not.
    pub fn on_landed(
        &mut self,
        now: Instant,
        lane: LaneId,
        transfer: TransferId,
        slice: u32,
        landed: Result<(), Error>,
    ) {
        self.hear(now);
        self.settle(lane, transfer, slice, |state| state.on_landed(lane, slice, landed));
        self.pump(now);
    }

    /// When [`Session::on_timeout`] wants to be called, whatever else happens.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        let retry = self.retries.front().map(|(at, _)| *at);
        let link = match &self.link {
            Link::Down { retry_at } => retry_at.filter(|_| self.has_work()),
            Link::Up { .. } => {
                let alive = self.lanes.up().next().is_some();
                let ping = alive.then_some(self.next_ping);
                let dead = alive.then_some(self.heard + self.settings.dead_after);
                let rest = (alive && self.transfers.is_empty())
                    .then_some(self.used + self.settings.idle_after);
                let lane = self.lanes.next_retry().filter(|_| self.wants_lanes());
                [ping, dead, rest, lane].into_iter().flatten().min()
            }
            Link::Shaking | Link::Closed => None,
        };
        [deadline, retry, link].into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Instant) {
        while let Some((at, id)) = self.deadlines.first().copied() {
            if at > now {
                break;
            }
            self.time_out(id);
        }
        while let Some((at, id)) = self.retries.front().copied() {
            if at > now {
                break;
            }
            self.retries.pop_front();
            self.apply(id, TransferState::retry_notify);
        }
        if matches!(self.link, Link::Up { .. }) && self.lanes.up().next().is_some() {
            self.check_alive(now);
        }
        self.pump(now);
    }

    fn check_alive(&mut self, now: Instant) {
        if now >= self.heard + self.settings.dead_after {
            tracing::warn!(peer = %self.peer, after = ?self.settings.dead_after, "the peer is silent");
            return self.close_all_lanes(now);
        }
        if now >= self.next_ping {
            let due = self.heard + self.settings.ping_interval;
            if due > now {
                self.next_ping = due;
            } else if let Some(lane) = self.lanes.control() {
                self.nonce += 1;
                let (nonce, floor) = (self.nonce, self.transfers.floor());
                let control = Control::Ping { nonce, floor };
                self.actions.push_back(Action::Send { lane, control });
                self.next_ping = now + self.settings.ping_interval;
            }
        }
        if self.transfers.is_empty() && now >= self.used + self.settings.idle_after {
            for lane in self.lanes.up().collect::<Vec<_>>() {
                self.lanes.retire(lane);
                self.actions.push_back(Action::CloseLane { lane, reset: false });
            }
        }
    }

    /// The peer had no room for a notification: it is sent again after a while.
    fn note_retry(&mut self, now: Instant, id: TransferId) {
        if self.transfers.get(id).is_some_and(|entry| entry.transfer.wants_retry()) {
            self.retries.push_back((now + self.settings.notify_retry, id));
        }
    }

    fn hear(&mut self, now: Instant) {
        self.heard = now;
    }

    fn has_work(&self) -> bool {
        self.wanted || !self.transfers.is_empty()
    }

    /// Lanes are wanted while there is work, and stay until the session rests.
    fn wants_lanes(&self) -> bool {
        self.has_work() || self.lanes.up().next().is_some()
    }

    /// Starts whatever can be started.
    fn pump(&mut self, now: Instant) {
        match self.link {
            Link::Down { retry_at } => {
                if self.has_work() && retry_at.is_none_or(|at| at <= now) {
                    self.link = Link::Shaking;
                    self.actions.push_back(Action::Handshake);
                }
            }
            Link::Up { .. } => {
                if self.wants_lanes() {
                    for lane in self.lanes.open_missing(now) {
                        self.actions.push_back(Action::OpenLane(lane));
                    }
                }
                if self.transfers.is_empty() {
                    // What is adrift of ended transfers is nobody's any more.
                    self.lost.clear();
                }
                self.send_controls();
                self.post_slices();
            }
            Link::Shaking | Link::Closed => {}
        }
    }

    fn send_controls(&mut self) {
        let Some(lane) = self.lanes.control() else { return };
        for (lost, asked) in &mut self.lost {
            if asked.is_none() {
                *asked = Some(lane);
                let control = Control::FenceLane { lane: *lost };
                self.actions.push_back(Action::Send { lane, control });
            }
        }
        while let Some(id) = self.to_fence.pop_front() {
            let Some(entry) = self.transfers.get_mut(id) else { continue };
            if entry.transfer.wants_fence() {
                entry.transfer.fence_sent(lane);
                let control = Control::Cancel { transfer: id };
                self.actions.push_back(Action::Send { lane, control });
            }
        }
        let floor = self.transfers.floor();
        while let Some(id) = self.to_notify.pop_front() {
            let Some(entry) = self.transfers.get_mut(id) else { continue };
            if entry.transfer.wants_notify() {
                entry.transfer.notify_sent(lane);
                let token = entry.token.clone();
                self.actions.push_back(Action::Notify { lane, transfer: id, floor, token });
            }
        }
    }

    fn post_slices(&mut self) {
        let window = self.settings.window_bytes;
        while let Some(id) = self.small.front().copied() {
            let Some(lane) = self.lanes.express(window) else { break };
            self.small.pop_front();
            if self.post(id, lane) {
                self.small.push_front(id);
            }
        }
        while let Some(id) = self.bulk.front().copied() {
            let Some(lane) = self.lanes.least_loaded(window) else { break };
            self.bulk.pop_front();
            // The next slice of this transfer waits for one of each other.
            if self.post(id, lane) {
                self.bulk.push_back(id);
            }
        }
    }

    /// Posts one slice. Returns whether the transfer has more of them.
    fn post(&mut self, id: TransferId, lane: LaneId) -> bool {
        let floor = self.transfers.floor();
        let Some(entry) = self.transfers.get_mut(id) else { return false };
        let Some(slice) = entry.transfer.post(lane) else { return false };
        let bytes = entry.transfer.bytes_of(slice);
        let more = entry.transfer.has_queued();
        // Answers may be sent together, but never so late that a window runs dry, and the last of
        // a transfer at once.
        let due = self.lanes.load(lane, bytes) >= self.settings.window_bytes / 4;
        let answer_now = due || !more;
        if answer_now {
            self.lanes.answer_due(lane);
        }
        let (transfer, token) = (id, entry.token.clone());
        self.actions.push_back(Action::Post { lane, transfer, slice, answer_now, floor, token });
        more
    }

    /// Tells a transfer about one of its slices, and the lane that the slice is off it.
    fn settle(
        &mut self,
        lane: LaneId,
        id: TransferId,
        slice: u32,
        event: impl FnOnce(&mut TransferState) -> Step,
    ) {
        let Some(entry) = self.transfers.get_mut(id) else {
            self.stale += 1;
            return;
        };
        let bytes = entry.transfer.bytes_of(slice);
        let was_done = entry.transfer.is_done(slice);
        let step = event(&mut entry.transfer);
        if !was_done && entry.transfer.is_done(slice) {
            self.lanes.unload(lane, bytes);
        }
        if let Step::SayLanded(slice) = step {
            let control = Control::Landed { transfer: id, slice };
            self.actions.push_back(Action::Send { lane, control });
            return;
        }
        self.follow(id, step);
    }

    fn apply(&mut self, id: TransferId, event: impl FnOnce(&mut TransferState) -> Step) {
        match self.transfers.get_mut(id) {
            Some(entry) => {
                let step = event(&mut entry.transfer);
                self.follow(id, step);
            }
            None => self.stale += 1,
        }
    }

    fn follow(&mut self, id: TransferId, step: Step) {
        match step {
            Step::Nothing | Step::SayLanded(_) => {}
            Step::Post => self.bulk.push_back(id),
            Step::Notify => self.to_notify.push_back(id),
            Step::Fence => self.to_fence.push_back(id),
            Step::End(outcome) => self.end(id, outcome),
            Step::Stale => self.stale += 1,
        }
    }

    fn on_lane_fenced(&mut self, lane: LaneId) {
        if self.lost.remove(&lane).is_none() {
            self.stale += 1;
            return;
        }
        for id in self.transfers.ids() {
            let Some(entry) = self.transfers.get_mut(id) else { continue };
            match entry.transfer.on_lane_fenced(lane) {
                Step::Stale => {}
                step => self.follow(id, step),
            }
        }
    }

    fn time_out(&mut self, id: TransferId) {
        let Some(entry) = self.transfers.get_mut(id) else {
            self.deadlines.retain(|(_, other)| *other != id);
            return;
        };
        let outcome = entry.transfer.time_out();
        let unknown = matches!(outcome, Outcome::Failed(_, Remote::Unknown));
        let out: BTreeSet<LaneId> =
            if unknown { entry.transfer.lanes_out().collect() } else { BTreeSet::new() };
        self.end(id, outcome);
        // The target may be stopped with all of it in its socket. A reset makes it drop that.
        for lane in out {
            self.lanes.retire(lane);
            self.actions.push_back(Action::CloseLane { lane, reset: true });
        }
    }

    fn end(&mut self, id: TransferId, outcome: Outcome) {
        let Some(entry) = self.transfers.remove(id) else { return };
        let Entry { transfer, token } = entry;
        self.deadlines.remove(&(transfer.deadline(), id));
        let mut out = false;
        for (lane, bytes) in transfer.posted() {
            self.lanes.unload(lane, bytes);
            out = true;
        }
        // The owner may stop serving what nobody waits for any more.
        if out
            && transfer.op() == Op::Read
            && let Some(lane) = self.lanes.control()
        {
            let control = Control::Cancel { transfer: id };
            self.actions.push_back(Action::Send { lane, control });
        }
        let repeated = transfer.repeated();
        self.actions.push_back(Action::End { transfer: id, outcome, repeated, token });
    }

    fn give_up_all(&mut self, cause: &Error) {
        for id in self.transfers.ids() {
            if let Some(entry) = self.transfers.get_mut(id) {
                let outcome = entry.transfer.give_up(cause.clone());
                self.end(id, outcome);
            }
        }
    }

    /// A lane is gone, whoever closed it: what was out on it is adrift, or queued again.
    fn lose(&mut self, now: Instant, lane: LaneId, cause: Option<Error>) {
        let Some(was_retired) = self.lanes.remove(lane, now, &self.settings) else { return };
        let mut adrift = false;
        for id in self.transfers.ids() {
            let Some(entry) = self.transfers.get_mut(id) else { continue };
            adrift |= entry.transfer.on_lane_lost(lane);
            if entry.transfer.has_queued() {
                self.bulk.push_back(id);
            }
            if entry.transfer.wants_fence() {
                self.to_fence.push_back(id);
            }
            if entry.transfer.wants_notify() {
                self.to_notify.push_back(id);
            }
        }
        for asked in self.lost.values_mut() {
            if *asked == Some(lane) {
                *asked = None;
            }
        }
        if adrift {
            self.lost.insert(lane, None);
        }
        let was_last = matches!(self.link, Link::Up { .. }) && self.lanes.is_empty();
        if was_last && !was_retired {
            if let Some(cause) = cause {
                self.give_up_all(&cause);
                self.failures += 1;
            }
            self.go_down(now);
        }
    }

    /// Closes every lane. What is out on them stays out until each is reported closed: only then
    /// is it certain that nothing more comes of it here.
    fn close_all_lanes(&mut self, now: Instant) {
        for lane in self.lanes.all() {
            self.lanes.retire(lane);
            self.actions.push_back(Action::CloseLane { lane, reset: true });
        }
        self.go_down(now);
    }

    fn go_down(&mut self, now: Instant) {
        let settings = &self.settings;
        let retry_at = self.failures.checked_sub(1).map(|doublings| {
            let wait = settings.backoff_first * 2_u32.saturating_pow(doublings.min(16));
            now + wait.min(settings.backoff_most)
        });
        self.link = Link::Down { retry_at };
        self.actions.push_back(Action::Forget);
    }
}
