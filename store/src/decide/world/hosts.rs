//! Clients: each lends a segment of a few lines.

use kv_master::state::ALIGNMENT;
use kvferry_proto::RegionId;
use kvferry_proto::pool::{Beat, Changes, Follow, Join, Lent, SegmentId, Version, What};

use super::masters::{Answer, Request};
use super::{Bug, Call, Event, Ms, PATIENCE, Then, World, incarnation};
use crate::decide::inventory::Inventory;
use crate::decide::membership::{Membership, Verdict};

/// How many lines a segment has.
pub(super) const LINES: u64 = 24;

/// How often a client gives a sign of life, and how long it waits for the answer.
const BEAT: Ms = 200;
const BEAT_PATIENCE: Ms = 500;

/// A process of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LifeId {
    pub(super) host: usize,
    pub(super) number: u64,
}

/// A host, and its process while it lives.
#[derive(Debug)]
pub(super) struct Host {
    index: usize,
    pub(super) life: Option<u64>,
    lives: u64,
    /// It does nothing until then.
    pub(super) stopped: Ms,
    /// Nothing reaches the master or comes from it until then.
    pub(super) cut: Ms,
    /// When something happened last that its objects may be out of reach for.
    pub(super) disturbed: Ms,
    membership: Membership,
    pub(super) inventory: Inventory,
    pub(super) session: u64,
    /// How many regions the segment's memory has been.
    pub(super) generation: u32,
    /// Which master was told of it last, and whether it has answered.
    told: Option<u64>,
    is_placed: bool,
    /// What each line has.
    pub(super) memory: Vec<u64>,
}

impl Host {
    pub(super) fn new(index: usize) -> Self {
        Self {
            index,
            life: None,
            lives: 0,
            stopped: 0,
            cut: 0,
            disturbed: 0,
            membership: Membership::default(),
            inventory: Inventory::default(),
            session: 0,
            generation: 0,
            told: None,
            is_placed: false,
            memory: Vec::new(),
        }
    }

    pub(super) fn id(&self) -> Option<LifeId> {
        self.life.map(|number| LifeId { host: self.index, number })
    }

    /// A master gave out that version.
    pub(super) fn saw(&mut self, version: Version) {
        self.membership.on_version(version);
    }

    pub(super) fn segment(life: LifeId) -> SegmentId {
        SegmentId(incarnation(life).0)
    }
}

impl World {
    pub(super) fn start_host(&mut self, host: usize) {
        let now = self.now;
        let started = &mut self.hosts[host];
        started.lives += 1;
        let life = LifeId { host, number: started.lives };
        started.life = Some(life.number);
        (started.stopped, started.disturbed) = (0, started.disturbed.max(now));
        started.membership = Membership::default();
        started.inventory = Inventory::default();
        started.inventory.add(Host::segment(life), LINES * ALIGNMENT);
        (started.generation, started.told, started.is_placed) = (1, None, false);
        started.memory = vec![0; usize::try_from(LINES).unwrap()];
        self.start_session(host);
        self.at(now + BEAT, Event::Beat(life));
    }

    pub(super) fn kill(&mut self, host: usize) {
        if let Some(life) = self.hosts[host].id() {
            self.break_stream(life);
        }
        self.hosts[host].life = None;
    }

    pub(super) fn cut(&mut self, host: usize, until: Ms) {
        let cut = &mut self.hosts[host];
        cut.cut = cut.cut.max(until);
        cut.disturbed = cut.disturbed.max(until);
        let Some(life) = cut.id() else { return };
        self.break_stream(life);
        self.start_session(host);
    }

    pub(super) fn start_session(&mut self, host: usize) {
        let Some(life) = self.hosts[host].id() else { return };
        self.hosts[host].session += 1;
        let (session, epoch) = (self.hosts[host].session, self.hosts[host].membership.epoch());
        let join = Join { client: incarnation(life), host: String::new(), epoch };
        self.ask(host, Request::Join(join), PATIENCE, Then::Join(session));
    }

    fn session_failed(&mut self, life: LifeId, session: u64) {
        let host = &mut self.hosts[life.host];
        if host.session != session {
            return;
        }
        let wait = host.membership.on_failed();
        let at = self.now + u64::try_from(wait.as_millis()).unwrap();
        self.at(at, Event::Session(life, session));
    }

    pub(super) fn beat(&mut self, life: LifeId) {
        if !self.lives(life) {
            return;
        }
        let now = self.instant(self.now);
        if let Some(joined) = self.hosts[life.host].membership.joined(now) {
            let beat = Beat { client: incarnation(life), master: joined.master };
            self.ask(life.host, Request::Beat(beat), BEAT_PATIENCE, Then::Beat);
        }
        self.at(self.now + BEAT, Event::Beat(life));
    }

    /// An answer has come, or none will.
    pub(super) fn answered(&mut self, call: Call, answer: Option<Answer>) {
        let Call { from, sent, then } = call;
        if !self.lives(from) {
            return;
        }
        let (now, sent) = (self.instant(self.now), self.instant(sent));
        let host = &mut self.hosts[from.host];
        match (then, answer) {
            (Then::Join(session), Some(Answer::Joined(answer))) => {
                // Whoever joins anew does not wait for what it had asked before.
                if host.session == session {
                    host.membership.on_joined(sent, answer);
                    let follow = Request::Follow(from, session);
                    self.ask(from.host, follow, PATIENCE, Then::Follow(session));
                }
            }
            (Then::Follow(session), Some(Answer::Done(true))) => self.mount(from, session),
            (Then::Mount(session), Some(Answer::Done(true))) => {
                if host.session == session {
                    host.is_placed = true;
                }
            }
            (Then::Join(session) | Then::Follow(session) | Then::Mount(session), _) => {
                self.session_failed(from, session);
            }
            (Then::Beat, Some(Answer::Beat(answer))) => {
                if host.membership.on_beat(sent, answer) == Verdict::JoinAgain {
                    self.start_session(from.host);
                }
            }
            (Then::Beat, _) => {
                if host.membership.on_silence(now) == Verdict::JoinAgain {
                    self.start_session(from.host);
                }
            }
            (Then::Remove | Then::Nothing, _) => {}
            (then, answer) => self.job_answered(then, sent, answer),
        }
    }

    /// Tells the master of the segment and of what is in it. A new one is told once nothing can land
    /// any more that a former one allowed: the memory becomes another region.
    fn mount(&mut self, life: LifeId, session: u64) {
        let now = self.instant(self.now);
        let bug = self.bug;
        let host = &mut self.hosts[life.host];
        if host.session != session {
            return;
        }
        let Some(joined) = host.membership.joined(now) else {
            return self.session_failed(life, session);
        };
        if host.told.is_some_and(|former| former != joined.master.0) {
            if bug != Some(Bug::FalseFence) {
                host.generation += 1;
            }
            host.is_placed = false;
        }
        host.told = Some(joined.master.0);
        let segment = Host::segment(life);
        let lent = Lent {
            segment,
            name: String::new(),
            address: "a:1".to_owned(),
            region: RegionId { slot: 0, generation: host.generation },
            offset: 0,
            length: LINES * ALIGNMENT,
        };
        let (held, is_fenced) = (host.inventory.held(segment), !host.is_placed);
        let mount = Request::Mount { client: incarnation(life), lent, is_fenced, held };
        self.ask(life.host, mount, PATIENCE, Then::Mount(session));
    }

    /// An owner is told of changes.
    pub(super) fn told(&mut self, life: LifeId, session: u64, changes: Changes) {
        let is_cut = self.hosts[life.host].cut > self.now;
        if !self.lives(life) || self.hosts[life.host].session != session || is_cut {
            return;
        }
        for change in changes.changes {
            if let What::Keep(held) = &change.what {
                self.hosts[life.host].saw(held.version);
            }
            assert!(self.hosts[life.host].inventory.apply(change), "told what cannot be");
        }
        let follow = Follow { client: incarnation(life), applied: changes.number };
        self.ask(life.host, Request::Applied(follow), PATIENCE, Then::Nothing);
    }
}
