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
//! for no bulk. A lane's window bounds what a failed lane has to repeat. Where the best transport fails
//! and the peer has another, that takes its place (`spare`).

mod action;
mod endings;
mod lanes;
mod link;
#[cfg(test)]
mod pair;
mod schedule;
mod settings;
mod spare;
mod table;
mod unsaid;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use kvferry_proto::frame::Reply;
use kvferry_proto::{Incarnation, LaneId, TransferId};

use crate::error::Error;
use crate::net::Endpoint;
use crate::transfer::{Outcome, Spec, TransferState};
use lanes::LaneSet;
use spare::Spare;
use table::{Entry, Transfers};
use unsaid::Unsaid;

pub use action::Action;
pub(crate) use lanes::slot_of;
pub use settings::Settings;
pub use spare::Means;

/// What [`Session::connect`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// The peer is there.
    Up,
    /// It is not yet.
    Pending,
    /// The session is closed.
    Closed,
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
    /// A handshake is through, and no lane is open yet.
    greeting: bool,
    /// The peer has answered something since the last handshake.
    answered: bool,
    failures: u32,
    lanes: LaneSet,
    spare: Spare,
    /// Lanes that are lost with slices adrift, and where the target was asked to fence them.
    lost: BTreeMap<LaneId, Option<LaneId>>,
    transfers: Transfers<T>,
    deadlines: BTreeSet<(Instant, TransferId)>,
    small: VecDeque<TransferId>,
    bulk: VecDeque<TransferId>,
    to_fence: VecDeque<TransferId>,
    to_notify: VecDeque<TransferId>,
    retries: VecDeque<(Instant, TransferId)>,
    /// Slices that have landed, of which their sources have not been told.
    unsaid: Unsaid,
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
            greeting: false,
            answered: false,
            failures: 0,
            lanes: LaneSet::new(settings.bulk_lanes),
            spare: Spare::default(),
            lost: BTreeMap::new(),
            transfers: Transfers::new(),
            deadlines: BTreeSet::new(),
            small: VecDeque::new(),
            bulk: VecDeque::new(),
            to_fence: VecDeque::new(),
            to_notify: VecDeque::new(),
            retries: VecDeque::new(),
            unsaid: Unsaid::default(),
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

    /// The lanes for large transfers that are open.
    pub fn bulk_lanes_up(&self) -> impl Iterator<Item = LaneId> + '_ {
        self.lanes.bulk_up()
    }

    /// How many answers matched nothing under way, and were ignored.
    #[must_use]
    pub fn stale_answers(&self) -> u64 {
        self.stale
    }

    /// The attachment of a read that waits for the payload of a slice on a lane.
    #[must_use]
    pub fn awaits(&self, lane: LaneId, transfer: TransferId, slice: u32) -> Option<&T> {
        let entry = self.transfers.get(transfer)?;
        entry.transfer.awaits(lane, slice).then_some(&entry.token)
    }

    /// The attachment of a transfer that has not ended.
    #[must_use]
    pub fn attachment(&self, transfer: TransferId) -> Option<&T> {
        self.transfers.get(transfer).map(|entry| &entry.token)
    }

    /// The lanes that answers to a transfer are to come on: those that its slices are out on, and the one
    /// for what has no payload.
    #[must_use]
    pub fn lanes_of(&self, transfer: TransferId) -> BTreeSet<LaneId> {
        let entry = self.transfers.get(transfer);
        let out = entry.iter().flat_map(|entry| entry.transfer.posted().map(|(lane, _)| lane));
        out.chain(self.lanes.control()).collect()
    }

    /// How many bytes are out on a lane: posted, and not known to have arrived.
    #[must_use]
    pub fn out_bytes(&self, lane: LaneId) -> u64 {
        self.lanes.out_bytes(lane)
    }

    /// Whether something has to be done now.
    #[must_use]
    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// What has to be done now, in order.
    pub fn take_actions(&mut self) -> VecDeque<Action<T>> {
        std::mem::take(&mut self.actions)
    }

    /// Wants the peer reachable, though there is nothing to transfer yet. Where it is not yet,
    /// [`Action::Connected`] or [`Action::Forget`] with a cause follows.
    pub fn connect(&mut self, now: Instant) -> Connection {
        match self.link {
            Link::Closed => return Connection::Closed,
            Link::Up { .. } if !self.greeting => return Connection::Up,
            Link::Up { .. } | Link::Shaking | Link::Down { .. } => {}
        }
        self.wanted = true;
        self.used = now;
        self.pump(now);
        Connection::Pending
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
        let is_nothing = spec.slice_bytes.is_empty() && !spec.notifies;
        let transfer = TransferState::new(spec);
        let deadline = transfer.deadline();
        let is_late = deadline <= now;
        let id = self.transfers.insert(Entry { transfer, token, queued: true });
        self.deadlines.insert((deadline, id));
        self.used = now;
        if is_nothing {
            self.end(id, Outcome::Done);
        } else if is_late {
            // Not even posted, so that no lane has to be reset for it.
            self.time_out(id);
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
            self.end_now(id, outcome);
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
        // What a stopped target has not stored yet it must not store any more.
        let reset = !self.transfers.is_empty();
        self.give_up_all(cause);
        self.link = Link::Closed;
        self.unsaid = Unsaid::default();
        for lane in self.lanes.clear() {
            self.actions.push_back(Action::CloseLane { lane, reset });
        }
    }

    /// A reply without a payload arrived on a lane.
    pub fn on_reply(&mut self, now: Instant, lane: LaneId, reply: Reply) {
        self.hear_answer(now);
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
            Reply::Pong { .. }
            | Reply::Data { .. }
            | Reply::Lent(_)
            | Reply::LentKey(_)
            | Reply::Recalled(_) => {}
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
        self.hear_answer(now);
        self.settle(lane, transfer, slice, |state| state.on_landed(lane, slice, landed));
        self.pump(now);
    }

    /// How many lanes for large transfers there are from the next handshake on, beside the one for
    /// small ones; and how many by the transport that takes the best's place, where there is one.
    pub fn set_bulk_lanes(&mut self, bulk: usize, spare: Option<usize>) {
        self.settings.bulk_lanes = bulk;
        self.spare.set_bulk_lanes(spare);
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
                let are_wanted = alive || self.has_work();
                let lane = self.lanes.next_retry().filter(|_| are_wanted);
                let spare = self.spare_timeout(are_wanted);
                [ping, dead, rest, lane, spare].into_iter().flatten().min()
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
}
