//! The world: hosts, a network, a clock that jumps from one event to the next, and what goes wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kvferry_engine::plan::PlanLimits;
use kvferry_engine::session;
use kvferry_engine::simulation::{NodeSettings, set_time};

use crate::control::{Control, ControlId, Message};
use crate::directory::Directory;
use crate::host::{Host, LifeId};
use crate::jobs::{Job, JobId, Kind};
use crate::network::{Arrival, Network};
use crate::random::Random;

/// How long things go wrong.
const STORM: Duration = Duration::from_secs(8);

/// How long after it everything may take to end: the longest deadline, and some.
const CALM: Duration = Duration::from_secs(12);

/// After how long engines close lanes that nobody needs.
const IDLE: Duration = Duration::from_secs(6);

/// How often in a row a timer may be due at the same time.
const SAME_TIME: u32 = 1000;

#[derive(Debug)]
pub(crate) enum Event {
    Arrival(Arrival),
    Message(Message),
    /// A worker hears of its job, or tries again.
    Ticket(JobId),
    /// An owner has waited long enough.
    Patience(JobId),
    Cancel(JobId),
    Begin,
    /// A process takes its notifications, and will again.
    ReadInbox(LifeId),
    Sweep(usize),
    /// A process renews its registration.
    Register(LifeId),
    /// A registration arrives.
    Registered(LifeId),
    Fault,
    Start(usize),
    /// Nothing: a host that was stopped goes on.
    Wake(usize),
}

pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) random: Random,
    pub(crate) now: Instant,
    queue: BTreeMap<(Instant, u64), Event>,
    sequence: u64,
    pub(crate) hosts: Vec<Host>,
    pub(crate) network: Network,
    pub(crate) controls: BTreeMap<ControlId, Control>,
    pub(crate) next_control: ControlId,
    pub(crate) directory: Directory,
    pub(crate) jobs: Vec<Job>,
    /// Jobs whose transfers are under way.
    pub(crate) open: BTreeSet<JobId>,
    pub(crate) ends: BTreeMap<(Kind, String), u32>,
    /// Somebody who is no engine is about: nothing is shared with everybody.
    has_strangers: bool,
    /// A sum over what has happened: the same seed gives the same.
    pub(crate) trace_sum: u64,
    pub(crate) events: u64,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let now = Instant::now();
        set_time(Some(now));
        let settings = NodeSettings {
            session: session::Settings {
                bulk_lanes: random.below(3),
                small_bytes: 2 << 10,
                window_bytes: 6 << 10,
                ping_interval: Duration::from_millis(500),
                dead_after: random.millis(1500, 5000),
                idle_after: IDLE,
                open_transfers: 8,
                ..session::Settings::default()
            },
            // Many small ones, or few that are long half sent.
            plan: PlanLimits {
                slice_bytes: [3 << 10, 12 << 10][random.below(2)],
                ..PlanLimits::default()
            },
            notifications: random.between(1, 4),
            max_lanes_per_peer: 8,
        };
        let count = random.between(2, 4);
        let most = [2 << 10, 12 << 10][random.below(2)];
        let window_bytes = random.between(512, most);
        let (has_strangers, sized) = (random.one_in(4), random.one_in(3));
        let hosts = (0..count).map(|index| Host::new(index, count, settings, now)).collect();
        Self {
            seed,
            random,
            now,
            queue: BTreeMap::new(),
            sequence: 0,
            hosts,
            network: Network::new(window_bytes),
            controls: BTreeMap::new(),
            next_control: 1,
            directory: Directory::new(count, sized),
            jobs: Vec::new(),
            open: BTreeSet::new(),
            ends: BTreeMap::new(),
            has_strangers,
            trace_sum: 0,
            events: 0,
        }
    }

    pub(crate) fn at(&mut self, at: Instant, event: Event) {
        self.sequence += 1;
        self.queue.insert((at.max(self.now), self.sequence), event);
    }

    pub(crate) fn trace(&mut self, what: &[u64]) {
        for word in what {
            self.trace_sum = (self.trace_sum ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// A storm, the calm after it, and the end.
    pub(crate) fn run(&mut self) {
        for host in 0..self.hosts.len() {
            self.start(host);
            for second in 0..40 {
                let at = self.now + Duration::from_secs(second) + self.random.millis(0, 999);
                self.at(at, Event::Sweep(host));
            }
        }
        for _ in 0..60 {
            let at = self.now + self.random.millis(0, 7500);
            self.at(at, Event::Begin);
        }
        for _ in 0..self.random.between(4, 14) {
            let at = self.now + self.random.millis(0, 7500);
            self.at(at, Event::Fault);
        }
        self.run_for(STORM);
        self.calm_down();
        self.run_for(CALM);
        self.check_over();
        self.check_directory();
        self.check_that_all_works();
        self.run_for(IDLE * 2);
        self.check_at_rest();
        self.shut_down();
    }

    fn start(&mut self, host: usize) {
        if self.hosts[host].life.is_none() {
            let life = LifeId::of(self.hosts[host].start().node.incarnation());
            self.trace(&[1, life.incarnation().0]);
            let at = self.now + self.random.millis(1, 200);
            self.at(at, Event::ReadInbox(life));
            self.register(life);
        }
    }

    fn run_for(&mut self, span: Duration) {
        let end = self.now + span;
        let mut at_once = 0;
        loop {
            let event_at = self.queue.first_key_value().map(|((at, _), _)| *at);
            let timers = self.hosts.iter().filter_map(|host| {
                let due = host.life.as_ref()?.node.next_timeout()?;
                Some((due.max(host.stopped_until).max(self.now), host.index))
            });
            let timer = timers.min();
            let next = event_at.into_iter().chain(timer.map(|(at, _)| at)).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            at_once = if next == self.now { at_once + 1 } else { 0 };
            assert!(at_once < SAME_TIME, "time stands still: {timer:?}, {event_at:?}");
            self.now = next;
            set_time(Some(next));
            self.events += 1;
            match timer {
                Some((at, host)) if at == next && event_at != Some(next) => {
                    if let Some(life) = &self.hosts[host].life {
                        life.node.on_timeout();
                    }
                    self.settle(host);
                }
                _ => {
                    if let Some((_, event)) = self.queue.pop_first() {
                        self.happen(event);
                    }
                }
            }
        }
        self.now = end;
        set_time(Some(end));
    }

    /// The host that an event needs awake.
    fn needs_awake(&self, event: &Event) -> Option<usize> {
        match event {
            Event::Message(message) => self.waits_for(message),
            Event::Ticket(job) | Event::Cancel(job) => Some(self.jobs[*job].worker),
            Event::Patience(job) => Some(self.jobs[*job].owner.host),
            Event::Sweep(host) => Some(*host),
            Event::ReadInbox(life) | Event::Register(life) => Some(life.host),
            Event::Arrival(_)
            | Event::Registered(_)
            | Event::Begin
            | Event::Fault
            | Event::Start(_)
            | Event::Wake(_) => None,
        }
    }

    fn happen(&mut self, event: Event) {
        let asleep = self.needs_awake(&event).filter(|host| self.hosts[*host].is_stopped(self.now));
        if let Some(host) = asleep {
            let wait = self.hosts[host].wakes_in(self.now);
            return self.at(self.now + wait, event);
        }
        match event {
            Event::Arrival(arrival) => {
                if let Some(host) = self.network.arrive(arrival) {
                    self.settle(host);
                }
            }
            Event::Message(message) => self.receive(message),
            Event::Ticket(job) => {
                if self.jobs[job].worked_by.is_none() {
                    self.work(job);
                }
            }
            Event::Patience(job) => self.take_back(job),
            Event::Cancel(job) => self.cancel(job),
            Event::Begin => self.begin_any(),
            Event::ReadInbox(life) => self.read_inbox(life),
            Event::Sweep(host) => {
                if let Some(life) = &self.hosts[host].life {
                    life.node.sweep();
                }
                self.settle(host);
            }
            Event::Register(life) => self.register(life),
            Event::Registered(life) => self.be_registered(life),
            Event::Fault => self.go_wrong(),
            Event::Start(host) => self.start(host),
            Event::Wake(host) => self.settle(host),
        }
    }

    fn begin_any(&mut self) {
        let owner = self.random.below(self.hosts.len());
        let worker = (owner + 1 + self.random.below(self.hosts.len() - 1)) % self.hosts.len();
        let kind = match self.random.below(10) {
            0..=3 => Kind::Push,
            4..=6 => Kind::Pull,
            7..=8 if !self.has_strangers => Kind::Board,
            _ => Kind::Note,
        };
        if !self.hosts[owner].is_stopped(self.now) {
            self.begin_job(kind, owner, worker);
        }
    }

    /// Something goes wrong.
    fn go_wrong(&mut self) {
        let host = self.random.below(self.hosts.len());
        match self.random.below(12) {
            // What is shared with everybody is shared with strangers too.
            0..=4 if self.has_strangers => self.attack(host),
            0..=2 => {
                let until = self.now + self.random.millis(1, 4000);
                self.hosts[host].stop(until);
                self.at(until, Event::Wake(host));
            }
            3..=4 => self.crash(host),
            5..=6 => {
                let other = (host + 1) % self.hosts.len();
                let until = self.now + self.random.millis(10, 4000);
                self.network.cut(host, other, until);
            }
            7..=8 => {
                if let Some(connection) = self.network.any(&mut self.random) {
                    let arrivals = self.network.break_off(&mut self.random, self.now, connection);
                    self.schedule(arrivals);
                }
            }
            9 => {
                let unlucky = self.random.below(self.hosts.len());
                self.lose_controls(|by, of| by.host == host && of.host == unlucky);
            }
            _ => {
                if !self.hosts[host].is_stopped(self.now) {
                    self.sleep_and_wake(host);
                }
            }
        }
    }

    /// A host's process is killed, and started again on the same address.
    fn crash(&mut self, host: usize) {
        let Some(id) = self.hosts[host].id() else { return };
        self.trace(&[3, host as u64]);
        let arrivals = self.network.crash(&mut self.random, self.now, host);
        self.schedule(arrivals);
        // Its sockets lead nowhere any more, so nobody hears what becomes of it.
        if let Some(life) = self.hosts[host].life.take() {
            life.node.drain();
            let _ = life.node.close();
        }
        self.controls.retain(|_, control| control.by != id);
        self.lose_controls(|_, of| of == id);
        self.open.retain(|job| self.jobs[*job].worked_by != Some(id));
        self.abandon(id);
        let at = self.now + self.random.millis(1, 3000);
        self.at(at, Event::Start(host));
    }

    fn schedule(&mut self, arrivals: Vec<(Instant, Arrival)>) {
        for (at, arrival) in arrivals {
            self.at(at, Event::Arrival(arrival));
        }
    }

    /// Lets a host do all that it can do now, and looks at what came of it.
    pub(crate) fn settle(&mut self, host: usize) {
        if self.hosts[host].is_stopped(self.now) {
            return;
        }
        let mut arrivals = Vec::new();
        loop {
            if let Some(life) = &self.hosts[host].life {
                life.node.run_lanes().expect("epoll");
            }
            if !self.network.pump(&mut self.random, self.now, host, &mut arrivals) {
                break;
            }
        }
        self.schedule(arrivals);
        self.check_memory(host);
        self.check_inbox(host);
        self.poll_transfers(host);
        let Some(id) = self.hosts[host].id() else { return };
        let errands = self.hosts[host].living(id).map(|life| life.node.take_errands());
        for errand in errands.into_iter().flatten() {
            self.run_errand(id, errand);
        }
        self.tell_followers(host);
    }

    /// Nothing goes wrong any more.
    fn calm_down(&mut self) {
        self.network.stormy = false;
        self.network.heal();
        for host in 0..self.hosts.len() {
            self.hosts[host].stopped_until = self.now;
            self.start(host);
            self.settle(host);
        }
    }

    /// Everything that was begun has ended.
    fn check_over(&mut self) {
        let open: Vec<_> = self.open.iter().map(|id| (id, &self.jobs[*id])).collect();
        assert!(open.is_empty(), "not ended: {open:?}");
        for host in &self.hosts {
            let life = host.life.as_ref().expect("all hosts are up");
            let status = life.node.status();
            assert_eq!(status.open_transfers, 0, "host {} has {status:?}", host.index);
        }
    }

    /// Whoever was away, everybody can work with everybody now.
    fn check_that_all_works(&mut self) {
        let hosts = self.hosts.len();
        let pairs: Vec<_> = (0..hosts)
            .flat_map(|owner| (0..hosts).map(move |worker| (owner, worker)))
            .filter(|(owner, worker)| owner != worker)
            .collect();
        for (owner, worker) in pairs {
            for kind in [Kind::Push, Kind::Pull] {
                // The first may find that its peer has restarted.
                let mut works = false;
                for _ in 0..3 {
                    let Some(job) = self.begin_job(kind, owner, worker) else { continue };
                    self.run_for(Duration::from_millis(2500));
                    works = matches!(self.jobs[job].ended, Some(Ok(_)));
                    if works {
                        break;
                    }
                }
                let last = self.jobs.last().map(|job| &job.ended);
                assert!(works, "host {worker} cannot work with host {owner} any more: {last:?}");
            }
        }
        self.check_told();
    }

    /// Nobody needs anything any more, so nothing is left open.
    fn check_at_rest(&mut self) {
        for host in &self.hosts {
            let life = host.life.as_ref().expect("all hosts are up");
            let status = life.node.status();
            let lanes = status.lanes_opened + status.lanes_accepted;
            assert_eq!(lanes, 0, "host {} is at rest, with {status:?}", host.index);
            let timer = life.node.next_timeout();
            assert_eq!(timer, None, "host {} is at rest, and has timers", host.index);
        }
        assert_eq!(self.network.count(), 0, "all are at rest, and there are connections");
    }

    /// Every process ends, with work under way: nothing is left of it.
    fn shut_down(&mut self) {
        for _ in 0..10 {
            self.begin_any();
        }
        let soon = self.random.millis(1, 60);
        self.run_for(soon);
        for host in 0..self.hosts.len() {
            let Some(id) = self.hosts[host].id() else { continue };
            if let Some(life) = &self.hosts[host].life {
                life.node.drain();
            }
            self.settle(host);
            self.run_for(Duration::from_millis(500));
            let Some(life) = self.hosts[host].life.take() else { continue };
            self.controls.retain(|_, control| control.by != id);
            let remains = life.node.close();
            let mut arrivals = Vec::new();
            self.network.pump(&mut self.random, self.now, host, &mut arrivals);
            self.schedule(arrivals);
            assert_eq!(self.network.open_ends(host), 0, "host {host} has shut down");
            for job in self.open.clone() {
                if self.jobs[job].worked_by == Some(id) {
                    let ended = self.jobs[job].has_ended();
                    assert!(ended, "host {host} has shut down, and job {job} goes on");
                }
            }
            self.open.retain(|job| self.jobs[*job].worked_by != Some(id));
            self.abandon(id);
            self.lose_controls(|_, of| of == id);
            assert!(remains.is_nothing(), "host {host} has shut down, and holds its engine");
        }
        self.run_for(Duration::from_secs(2));
        assert_eq!(self.network.count(), 0, "all have shut down, and there are connections");
    }
}
