//! What hosts say to each other beside their lanes: handshakes, tables that change, hellos of lanes.

use std::time::{Duration, Instant};

use kvferry_engine::simulation::{Errand, Followed, Follower, Handshake, Opening};
use kvferry_proto::frame::{Hello, Welcome};

use crate::host::LifeId;
use crate::network::ConnectionId;
use crate::world::{Event, World};

/// How long an engine waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(3);

/// One host follows the table of another.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) by: LifeId,
    of: LifeId,
    followed: Followed,
    follower: Follower,
    last_arrival: Instant,
}

pub(crate) type ControlId = u64;

/// Something said beside lanes that is on its way.
#[derive(Debug)]
pub(crate) enum Message {
    Hello {
        by: LifeId,
        to: usize,
        handshake: Handshake,
        asked: Instant,
    },
    HelloReply {
        by: LifeId,
        of: LifeId,
        handshake: Handshake,
        reply: Vec<u8>,
        updates: Vec<Vec<u8>>,
        follower: Follower,
    },
    NoReply {
        by: LifeId,
        handshake: Handshake,
        why: &'static str,
    },
    TableUpdate {
        control: ControlId,
        update: Vec<u8>,
    },
    ControlLost {
        control: ControlId,
    },
    LaneHello {
        by: LifeId,
        to: usize,
        opening: Opening,
        asked: Instant,
    },
    LaneWelcome {
        by: LifeId,
        opening: Opening,
        connection: ConnectionId,
        stream: std::os::fd::OwnedFd,
        welcome: [u8; Welcome::BYTES],
    },
    NoLane {
        by: LifeId,
        opening: Opening,
        why: &'static str,
    },
}

fn host_of(endpoint: &kvferry_engine::Endpoint) -> usize {
    let number = endpoint.host().strip_prefix("host-").map(str::parse);
    number.expect("a host's name").expect("a host's number")
}

impl World {
    /// A process wants something that takes its time.
    pub(crate) fn run_errand(&mut self, by: LifeId, errand: Errand) {
        let now = self.now;
        let to = host_of(&match &errand {
            Errand::Handshake(handshake) => handshake.endpoint(),
            Errand::OpenLane(opening) => opening.endpoint(),
        });
        let arrives = self.network.arrival(&mut self.random, now, by.host, to);
        let arrives = arrives.max(self.hosts[to].stopped_until);
        let in_time = arrives <= now + TIMEOUT;
        let message = match errand {
            Errand::Handshake(handshake) if in_time => {
                Message::Hello { by, to, handshake, asked: now }
            }
            Errand::Handshake(handshake) => {
                Message::NoReply { by, handshake, why: "no answer in time" }
            }
            Errand::OpenLane(opening) if in_time => {
                Message::LaneHello { by, to, opening, asked: now }
            }
            Errand::OpenLane(opening) => Message::NoLane { by, opening, why: "no answer in time" },
        };
        let at = if in_time { arrives } else { now + TIMEOUT };
        self.at(at, Event::Message(message));
    }

    /// Whether a message has to wait until the host that it goes to is awake.
    pub(crate) fn waits_for(&self, message: &Message) -> Option<usize> {
        match message {
            Message::Hello { to, .. } | Message::LaneHello { to, .. } => Some(*to),
            Message::HelloReply { by, .. }
            | Message::NoReply { by, .. }
            | Message::LaneWelcome { by, .. }
            | Message::NoLane { by, .. } => Some(by.host),
            Message::TableUpdate { control, .. } | Message::ControlLost { control } => {
                self.controls.get(control).map(|control| control.by.host)
            }
        }
    }

    pub(crate) fn receive(&mut self, message: Message) {
        let now = self.now;
        match message {
            Message::Hello { by, to, handshake, asked } => {
                self.answer_hello(by, to, handshake, asked);
            }
            Message::HelloReply { by, of, handshake, reply, updates, follower } => {
                if self.hosts[by.host].id() != Some(by) {
                    return;
                }
                if let Some(followed) = handshake.answered(&reply, &updates) {
                    let id = self.next_control;
                    self.next_control += 1;
                    let control = Control { by, of, followed, follower, last_arrival: now };
                    self.controls.insert(id, control);
                    if self.hosts[of.host].id() != Some(of) {
                        self.at(now, Event::Message(Message::ControlLost { control: id }));
                    }
                }
                self.settle(by.host);
            }
            Message::NoReply { by, handshake, why } => {
                if self.hosts[by.host].id() == Some(by) {
                    handshake.failed(why);
                    self.settle(by.host);
                }
            }
            Message::TableUpdate { control, update } => {
                let Some(control) = self.controls.get(&control) else { return };
                let by = control.by;
                control.followed.update(&update);
                self.settle(by.host);
            }
            Message::ControlLost { control } => {
                let Some(control) = self.controls.remove(&control) else { return };
                control.followed.lost();
                self.settle(control.by.host);
            }
            Message::LaneHello { by, to, opening, asked } => {
                self.answer_lane(by, to, opening, asked);
            }
            Message::LaneWelcome { by, opening, connection, stream, welcome } => {
                // Without its opener the connection is closed by dropping its end.
                if self.hosts[by.host].id() == Some(by) {
                    self.trace(&[2, connection]);
                    opening.welcomed(&welcome, stream);
                } else {
                    drop(stream);
                }
                self.settle(by.host);
            }
            Message::NoLane { by, opening, why } => {
                if self.hosts[by.host].id() == Some(by) {
                    opening.failed(why);
                    self.settle(by.host);
                }
            }
        }
    }

    /// When an answer arrives; too late is as good as never.
    fn answer_arrives(
        &mut self,
        from: usize,
        to: usize,
        asked: Instant,
    ) -> Result<Instant, Instant> {
        let at = self.network.arrival(&mut self.random, self.now, from, to);
        if at <= asked + TIMEOUT { Ok(at) } else { Err(asked + TIMEOUT) }
    }

    fn answer_hello(&mut self, by: LifeId, to: usize, handshake: Handshake, asked: Instant) {
        let arrives = self.answer_arrives(to, by.host, asked);
        let of = self.hosts[to].id();
        let (at, message) = match (arrives, of.zip(self.hosts[to].life.as_ref())) {
            (Err(at), _) => (at, Message::NoReply { by, handshake, why: "no answer in time" }),
            (Ok(at), None) => (at, Message::NoReply { by, handshake, why: "refused" }),
            (Ok(at), Some((of, life))) => {
                let mut follower = Follower::default();
                let reply = life.node.hello_reply();
                let mut updates = Vec::new();
                while let Some(update) = life.node.next_update(&mut follower) {
                    updates.push(update);
                }
                (at, Message::HelloReply { by, of, handshake, reply, updates, follower })
            }
        };
        self.at(at, Event::Message(message));
    }

    fn answer_lane(&mut self, by: LifeId, to: usize, opening: Opening, asked: Instant) {
        let (now, stormy) = (self.now, self.network.stormy);
        let arrives = self.answer_arrives(to, by.host, asked);
        let hello = opening.hello().filter(|_| self.hosts[to].life.is_some());
        let Some(hello) = hello else {
            let at = arrives.unwrap_or_else(|at| at);
            return self.at(at, Event::Message(Message::NoLane { by, opening, why: "refused" }));
        };
        let (connection, [stream, accepted]) = self.network.connect(now, by.host, to);
        let life = self.hosts[to].life.as_ref().expect("looked at above");
        let welcome = life.node.accept(&hello, accepted).expect("it is a hello");
        let meant = Hello::decode(&hello).expect("it is a hello").target;
        let refused = Welcome::decode(&welcome).map(|welcome| welcome.refusal.is_some());
        assert!(
            meant == life.node.incarnation() || refused == Ok(true),
            "a lane to {meant} was accepted by {}",
            life.node.incarnation()
        );
        let lost = stormy && self.random.one_in(15);
        let (at, message) = match arrives {
            Ok(at) if !lost => {
                (at, Message::LaneWelcome { by, opening, connection, stream, welcome })
            }
            // Its end of the connection is dropped here, and closed.
            Ok(at) | Err(at) => (at, Message::NoLane { by, opening, why: "no answer in time" }),
        };
        self.at(at, Event::Message(message));
        self.settle(to);
        self.settle(by.host);
    }

    /// Sends on what has changed in a host's table.
    pub(crate) fn tell_followers(&mut self, host: usize) {
        let Some(of) = self.hosts[host].id() else { return };
        let mut on_their_way = Vec::new();
        let Some(life) = self.hosts[host].life.as_ref() else { return };
        self.controls.retain(|_, control| control.followed.is_wanted());
        for (id, control) in self.controls.iter_mut().filter(|(_, control)| control.of == of) {
            while let Some(update) = life.node.next_update(&mut control.follower) {
                let to = control.by.host;
                let at = self.network.arrival(&mut self.random, self.now, host, to);
                let at = at.max(control.last_arrival + Duration::from_nanos(1));
                control.last_arrival = at;
                on_their_way.push((at, Message::TableUpdate { control: *id, update }));
            }
        }
        for (at, message) in on_their_way {
            self.at(at, Event::Message(message));
        }
    }

    /// The control connections of a process that is gone, or one that breaks.
    pub(crate) fn lose_controls(&mut self, gone: impl Fn(LifeId, LifeId) -> bool) {
        self.controls.retain(|_, control| control.followed.is_wanted());
        let lost: Vec<(ControlId, usize, usize)> = self
            .controls
            .iter()
            .filter(|(_, control)| gone(control.by, control.of))
            .map(|(id, control)| (*id, control.of.host, control.by.host))
            .collect();
        for (control, from, to) in lost {
            let at = self.network.arrival(&mut self.random, self.now, from, to);
            self.at(at, Event::Message(Message::ControlLost { control }));
        }
    }
}
