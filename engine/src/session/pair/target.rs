//! The target: the real state machine of what it remembers, and a model of its memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use kvferry_proto::frame::{Control, Reply, Status};
use kvferry_proto::{Incarnation, LaneId, TransferId};

use super::{Bug, Event, ToTarget, Token, World};
use crate::error::Remote;
use crate::serve::inbound::Inbound;
use crate::transfer::{Op, Outcome};

pub(super) struct Target {
    pub(super) incarnation: Incarnation,
    pub(super) inbound: Inbound,
    /// Every lane that was ever opened to it. What comes on another was meant for an incarnation
    /// whose sockets are gone.
    pub(super) lanes: BTreeSet<LaneId>,
    pub(super) stopped_until: Instant,
    /// What landed, by transfer: slices.
    pub(super) stored: HashMap<Token, BTreeSet<u32>>,
    pub(super) delivered: BTreeMap<Token, u32>,
    pub(super) fenced_lanes: BTreeSet<LaneId>,
    pub(super) fenced: BTreeSet<TransferId>,
    /// Read slices whose source waits to hear that they have landed.
    pub(super) holding: BTreeSet<(TransferId, u32)>,
}

impl Target {
    pub(super) fn new(incarnation: Incarnation, now: Instant) -> Self {
        Self {
            incarnation,
            inbound: Inbound::new(64),
            lanes: BTreeSet::new(),
            stopped_until: now,
            stored: HashMap::new(),
            delivered: BTreeMap::new(),
            fenced_lanes: BTreeSet::new(),
            fenced: BTreeSet::new(),
            holding: BTreeSet::new(),
        }
    }
}

impl World {
    /// The target deals with a request.
    pub(super) fn serve(&mut self, lane: LaneId, request: ToTarget) {
        if !self.target.lanes.contains(&lane) {
            return;
        }
        match request {
            ToTarget::Slice { transfer, slice, token, floor, inline } => {
                self.target.inbound.observe(transfer, floor).unwrap();
                match self.jobs[token].op {
                    Op::Write => self.serve_write(lane, transfer, slice, token, inline),
                    Op::Read => self.serve_read(lane, transfer, slice),
                }
            }
            ToTarget::Notify { transfer, token, floor } => {
                self.target.inbound.observe(transfer, floor).unwrap();
                let status = self.deliver(lane, transfer, token);
                self.reply(lane, Reply::Notified { transfer, status });
            }
            ToTarget::Control(Control::Cancel { transfer, floor }) => {
                self.target.inbound.observe(transfer, floor).unwrap();
                self.target.inbound.cancel(transfer);
                self.target.fenced.insert(transfer);
                self.reply(lane, Reply::Cancelled { transfer });
            }
            ToTarget::Control(Control::FenceLane { lane: lost }) => {
                if self.planted != Some(Bug::FalseFence) {
                    self.target.inbound.fence_lane(lost);
                }
                self.target.fenced_lanes.insert(lost);
                self.reply(lane, Reply::LaneFenced { lane: lost });
            }
            ToTarget::Control(Control::Ping { nonce, .. }) => {
                self.reply(lane, Reply::Pong { nonce });
            }
            ToTarget::Control(Control::Landed { transfer, slice }) => {
                let held = self.target.holding.remove(&(transfer, slice));
                let status = if held { Status::Done } else { Status::GrantGone };
                self.reply(lane, Reply::Held { transfer, slice, status });
            }
        }
    }

    /// The initiator's driver finds nothing more on a lane, or is faster than what is on its way.
    pub(super) fn look_for_more(&mut self, lane: LaneId) {
        let is_on_it =
            |event: &Event| matches!(event, Event::Reply { lane: on, .. } if *on == lane);
        if !self.events.values().any(is_on_it) || self.random.one_in(3) {
            self.session.on_lane_idle(lane);
        }
    }

    fn serve_write(
        &mut self,
        lane: LaneId,
        transfer: TransferId,
        slice: u32,
        token: Token,
        inline: bool,
    ) {
        // A repeat of what was announced: its memory may be somebody else's by now.
        if inline && self.target.inbound.is_delivered(transfer) {
            return self.reply(lane, Reply::Ack { transfer, slice, status: Status::Done });
        }
        let mut status = match self.target.inbound.check(lane, transfer) {
            Err(_) if self.planted == Some(Bug::LateWrite) => Ok(()),
            status => status,
        };
        if self.stormy && status.is_ok() && self.random.one_in(100) {
            status = Err(Status::OutOfBounds);
        }
        let status = match status {
            Err(status) => status,
            Ok(()) => {
                let false_ack = self.planted == Some(Bug::FalseAck) && self.random.one_in(10);
                if !false_ack {
                    self.store(lane, transfer, slice, token);
                }
                if inline { self.deliver(lane, transfer, token) } else { Status::Done }
            }
        };
        self.reply(lane, Reply::Ack { transfer, slice, status });
    }

    fn store(&mut self, lane: LaneId, transfer: TransferId, slice: u32, token: Token) {
        let target = &mut self.target;
        assert!(!target.fenced.contains(&transfer), "{transfer} is fenced and stores");
        assert!(!target.fenced_lanes.contains(&lane), "{lane} is fenced and stores");
        let ended = &self.jobs[token].ended;
        let harmless = matches!(ended, None | Some(Outcome::Failed(_, Remote::Unknown)));
        assert!(harmless, "{transfer} has ended {ended:?} and stores");
        let announced = target.delivered.contains_key(&token);
        assert!(!announced, "{transfer} was announced and stores");
        target.stored.entry(token).or_default().insert(slice);
    }

    fn serve_read(&mut self, lane: LaneId, transfer: TransferId, slice: u32) {
        let status = self.target.inbound.check(lane, transfer);
        if let Err(status) = status {
            return self.reply(lane, Reply::Held { transfer, slice, status });
        }
        let data = Reply::Data { transfer, slice, crc32c: 0 };
        self.send(lane, 1, Event::Reply { lane, reply: data });
        let status = match self.random.below(20) {
            0 if self.stormy => Status::GrantGone,
            1..=9 => {
                self.target.holding.insert((transfer, slice));
                Status::HeldUntilLanded
            }
            _ => Status::Done,
        };
        // Not repeated: that a slice is held is said once, by the lane that carried it.
        self.send(lane, 1, Event::Reply { lane, reply: Reply::Held { transfer, slice, status } });
    }

    fn deliver(&mut self, lane: LaneId, transfer: TransferId, token: Token) -> Status {
        let allowed = self.target.inbound.check(lane, transfer);
        if let (Err(status), false) = (allowed, self.target.inbound.is_delivered(transfer)) {
            return status;
        }
        if self.target.inbound.is_delivered(transfer)
            && self.planted != Some(Bug::RepeatedNotification)
        {
            return Status::Done;
        }
        if self.stormy && self.random.one_in(4) {
            return Status::Backpressure;
        }
        let job = &self.jobs[token];
        let there = self.target.stored.get(&token).map_or(0, BTreeSet::len);
        let complete = job.op == Op::Read || there == job.slices as usize;
        assert!(complete, "{transfer} is announced with {there} of {} slices", job.slices);
        let times = self.target.delivered.entry(token).or_default();
        *times += 1;
        assert_eq!(*times, 1, "{transfer} is announced again");
        self.target.inbound.delivered(transfer);
        Status::Done
    }
}
