//! A pool in virtual time: a master's real state, and what its clients really decide, on a network
//! that delays and cuts, between processes that are stopped, woken, killed and started again.
//!
//! | file | what stands there |
//! |---|---|
//! | `masters` | the master: what it does with a request, and whom it tells of changes |
//! | `hosts` | clients: memory that is lent, line by line, and how they stay in the pool |
//! | `jobs` | puts and gets, and what each store and each read finds |
//!
//! After every store: what an owner's inventory has there is what is stored. After every get: its
//! bytes are those of one put of its key. Always: an object that was recorded is found while one of
//! its owners lives and is undisturbed. A run is its seed: `KVFERRY_SEED=n` repeats one.

mod hosts;
mod jobs;
mod masters;

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use kvferry_proto::Incarnation;
use kvferry_proto::pool::{Changes, Exists, Key, Presence, Tenant};

use hosts::{Host, LifeId};
use jobs::Job;
use masters::{Answer, Master, Request};

use super::put::{Ending, Revoking};

/// Milliseconds since the start.
type Ms = u64;

const HOSTS: usize = 3;
const KEYS: u32 = 12;

/// How long things go wrong, and how long everything may take to end after that.
const STORM: Ms = 20_000;
const CALM: Ms = 15_000;

/// After how long a client does not wait for an answer any more.
const PATIENCE: Ms = 3000;
/// After how long of nothing going wrong an owner counts as undisturbed: longer than it takes to be
/// suspected, to join again, and to mount.
const STEADY: Ms = 8000;

/// How many seeds are run where nothing else is said: a few seconds.
const SEEDS: u64 = 150;

/// A guard that is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A reader counts bytes that arrived after its lease.
    LateRead,
    /// An owner takes writes after their deadline.
    LateWrite,
    /// An owner says that writes of a former master cannot land any more, and they can.
    FalseFence,
    /// A writer gives room back as if nothing could land in it any more.
    FalseRevoke,
}

/// Whom an answer is for.
#[derive(Debug)]
enum Then {
    Join(u64),
    Follow(u64),
    Mount(u64),
    Beat,
    Start(usize, Vec<usize>),
    End(usize, Vec<Ending>, Vec<Revoking>),
    Revoke(usize, Vec<Revoking>),
    Locate(usize, Vec<usize>),
    Remove,
    Nothing,
}

#[derive(Debug)]
struct Call {
    from: LifeId,
    sent: Ms,
    then: Then,
}

#[derive(Debug)]
enum Event {
    /// A request arrives at the master that it was sent to.
    Ask(u64, u64, Request),
    Answer(u64, Answer),
    Overdue(u64),
    /// An owner is told of changes, in that session.
    Told(LifeId, u64, Changes),
    Tick,
    Beat(LifeId),
    Session(LifeId, u64),
    Store {
        job: usize,
        load: usize,
        owner: LifeId,
        to: jobs::Line,
    },
    Fetch {
        job: usize,
        load: usize,
        owner: LifeId,
        from: jobs::Line,
    },
    LoadOver(usize, usize),
    Waited(usize),
    Act,
    Fault,
    StartMaster,
    StartHost(usize),
}

/// An object that outlives masters.
#[derive(Debug)]
struct Recorded {
    since: Ms,
    owners: Vec<LifeId>,
}

struct World {
    random: fastrand::Rng,
    now: Ms,
    origin: Instant,
    queue: BTreeMap<(Ms, u64), Event>,
    count: u64,
    master: Option<Master>,
    masters: u64,
    /// It does nothing until then.
    master_stopped: Ms,
    hosts: Vec<Host>,
    calls: HashMap<u64, Call>,
    jobs: Vec<Job>,
    /// What was put where it says so: key and length.
    stamps: HashMap<u64, (Key, u64)>,
    recorded: BTreeMap<Key, Recorded>,
    /// Until then a removal may arrive.
    removing: BTreeMap<Key, Ms>,
    ends: BTreeMap<String, u32>,
    bug: Option<Bug>,
}

fn key(number: u32) -> Key {
    Key::try_from(format!("m@{number}").as_str()).unwrap()
}

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            now: 0,
            origin: Instant::now(),
            queue: BTreeMap::new(),
            count: 0,
            master: None,
            masters: 0,
            master_stopped: 0,
            hosts: (0..HOSTS).map(Host::new).collect(),
            calls: HashMap::new(),
            jobs: Vec::new(),
            stamps: HashMap::new(),
            recorded: BTreeMap::new(),
            removing: BTreeMap::new(),
            ends: BTreeMap::new(),
            bug,
        }
    }

    fn instant(&self, at: Ms) -> Instant {
        self.origin + Duration::from_millis(at)
    }

    fn ms(&self, at: Instant) -> Ms {
        u64::try_from((at - self.origin).as_millis()).unwrap()
    }

    fn at(&mut self, at: Ms, event: Event) {
        self.count += 1;
        self.queue.insert((at.max(self.now), self.count), event);
    }

    fn delay(&mut self) -> Ms {
        if self.random.u32(0..20) == 0 { self.random.u64(20..400) } else { self.random.u64(1..8) }
    }

    fn run(&mut self) {
        self.start_master();
        for host in 0..HOSTS {
            self.start_host(host);
        }
        for at in (0..STORM + CALM).step_by(25) {
            self.at(at, Event::Tick);
        }
        for at in (500..STORM).step_by(15) {
            self.at(at, Event::Act);
        }
        for _ in 0..self.random.u32(4..14) {
            let at = self.random.u64(2000..STORM - 2000);
            self.at(at, Event::Fault);
        }
        while let Some(entry) = self.queue.first_entry() {
            if entry.key().0 > STORM + CALM {
                break;
            }
            let ((at, number), event) = entry.remove_entry();
            self.now = at;
            match self.stopped_until(&event) {
                // What has waited for it keeps its order.
                until if until > at => drop(self.queue.insert((until, number), event)),
                _ => self.happen(event),
            }
        }
        self.check_in_the_end();
    }

    /// Until when whoever an event happens to does nothing.
    fn stopped_until(&self, event: &Event) -> Ms {
        let host = match event {
            Event::Ask(..) | Event::Tick => return self.master_stopped,
            Event::Answer(call, _) | Event::Overdue(call) => {
                self.calls.get(call).map(|call| call.from.host)
            }
            Event::Told(life, ..) | Event::Beat(life) | Event::Session(life, _) => Some(life.host),
            Event::Store { owner, .. } | Event::Fetch { owner, .. } => Some(owner.host),
            Event::LoadOver(job, _) | Event::Waited(job) => Some(self.jobs[*job].by.host),
            Event::Act | Event::Fault | Event::StartMaster | Event::StartHost(_) => None,
        };
        host.map_or(0, |host| self.hosts[host].stopped)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Ask(master, call, request) if master == self.masters => {
                self.serve(call, request);
            }
            Event::Ask(..) => {}
            Event::Answer(call, answer) => {
                if let Some(call) = self.calls.remove(&call) {
                    self.answered(call, Some(answer));
                }
            }
            Event::Overdue(call) => {
                if let Some(call) = self.calls.remove(&call) {
                    self.answered(call, None);
                }
            }
            Event::Told(life, session, changes) => self.told(life, session, changes),
            Event::Tick => self.tick(),
            Event::Beat(life) => self.beat(life),
            Event::Session(life, session) => {
                if self.lives(life) && self.hosts[life.host].session == session {
                    self.start_session(life.host);
                }
            }
            Event::Store { job, load, owner, to } => self.store(job, load, owner, to),
            Event::Fetch { job, load, owner, from } => self.fetch(job, load, owner, from),
            Event::LoadOver(job, load) => self.load_over(job, load),
            Event::Waited(job) => self.waited(job),
            Event::Act => self.act(),
            Event::Fault => self.fault(),
            Event::StartMaster => self.start_master(),
            Event::StartHost(host) => self.start_host(host),
        }
    }

    fn lives(&self, life: LifeId) -> bool {
        self.hosts[life.host].life == Some(life.number)
    }

    /// A client asks its master, if it is not cut off.
    fn ask(&mut self, host: usize, request: Request, patience: Ms, then: Then) {
        let Some(number) = self.hosts[host].life else { return };
        self.count += 1;
        let (call, from) = (self.count, LifeId { host, number });
        self.calls.insert(call, Call { from, sent: self.now, then });
        let delay = self.delay();
        if self.hosts[host].cut <= self.now && self.master.is_some() {
            self.at(self.now + delay, Event::Ask(self.masters, call, request));
        }
        self.at(self.now + patience, Event::Overdue(call));
    }

    fn fault(&mut self) {
        let host = self.random.usize(0..HOSTS);
        let until = self.now + self.random.u64(300..4000);
        match self.random.u32(0..6) {
            0 if self.master.is_some() => {
                self.end("master killed");
                self.master = None;
                let again = self.now + self.random.u64(30..1500);
                self.at(again, Event::StartMaster);
                self.disturb_all();
            }
            1 => {
                self.end("master stopped");
                self.master_stopped = self.master_stopped.max(until);
                self.disturb_all();
                for host in &mut self.hosts {
                    host.disturbed = host.disturbed.max(until);
                }
            }
            2 if self.hosts[host].life.is_some() => {
                self.end("host killed");
                self.kill(host);
                self.at(until, Event::StartHost(host));
            }
            3 => {
                self.end("host cut off");
                self.cut(host, until);
            }
            _ => {
                self.end("host stopped");
                let stopped = &mut self.hosts[host];
                stopped.stopped = stopped.stopped.max(until);
                stopped.disturbed = stopped.disturbed.max(until);
            }
        }
    }

    fn disturb_all(&mut self) {
        for host in 0..HOSTS {
            self.hosts[host].disturbed = self.hosts[host].disturbed.max(self.now);
            // Connections break, and that is noticed.
            let session = self.hosts[host].session;
            if let Some(life) = self.hosts[host].id() {
                let at = self.now + self.random.u64(1..300);
                self.at(at, Event::Session(life, session));
            }
        }
    }

    fn end(&mut self, what: &str) {
        *self.ends.entry(what.to_owned()).or_default() += 1;
    }

    /// Whether a key has to be found by whoever asked for it then.
    fn has_to_be_found(&self, key: &Key, asked: Ms) -> bool {
        let Some(recorded) = self.recorded.get(key) else { return false };
        recorded.since < asked
            && recorded.owners.iter().any(|owner| {
                self.lives(*owner) && self.hosts[owner.host].disturbed + STEADY < asked
            })
    }

    fn check_in_the_end(&self) {
        let master = self.master.as_ref().expect("it was started again");
        for (key, recorded) in &self.recorded {
            if !recorded.owners.iter().any(|owner| self.lives(*owner)) {
                continue;
            }
            let (tenant, keys) = (Tenant::default(), vec![key.clone()]);
            let exists = Exists { tenant, keys, lease: false };
            let found = master.pool.exists(master.moment(self.now), &exists).found;
            assert_eq!(found, [Presence::There], "{key} is lost: {recorded:?}");
        }
        let open = self.jobs.iter().enumerate().filter(|(_, job)| !job.over);
        let open: Vec<usize> =
            open.filter(|(_, job)| self.lives(job.by)).map(|(number, _)| number).collect();
        assert_eq!(open, [0_usize; 0], "jobs that never end");
    }
}

/// A run; what ended how often, or what was found.
fn run(seed: u64, bug: Option<Bug>) -> Result<BTreeMap<String, u32>, String> {
    let ran = std::panic::catch_unwind(|| {
        let mut world = World::new(seed, bug);
        world.run();
        world.ends
    });
    ran.map_err(|panic| match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => panic.downcast::<&str>().map_or("a panic".into(), |text| (*text).into()),
    })
}

/// `KVFERRY_SEED` runs one seed, `KVFERRY_SEEDS` so many.
#[test]
fn a_pool_loses_nothing_and_mixes_nothing_up_whatever_happens() {
    let number = |name| std::env::var(name).ok().map(|value| value.parse().unwrap());
    let seeds = match number("KVFERRY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("KVFERRY_SEEDS").unwrap_or(SEEDS),
    };
    let is_default = seeds == (0..SEEDS);
    let mut ends: BTreeMap<String, u32> = BTreeMap::new();
    for seed in seeds {
        let ran = run(seed, None).unwrap_or_else(|found| {
            panic!("seed {seed}: {found}\nreplay: KVFERRY_SEED={seed} cargo test -p kvferry-store world")
        });
        for (end, times) in ran {
            *ends.entry(end).or_default() += times;
        }
    }
    println!("{ends:#?}");
    // A world in which nothing fails, or nothing works, tests nothing.
    for end in ["put recorded", "put failed", "got", "get failed", "removed", "read late", "fenced"]
    {
        assert!(!is_default || ends.contains_key(end), "never {end}: {ends:#?}");
    }
}

#[test]
fn a_guard_that_is_taken_away_is_missed() {
    for (bug, finding) in [
        (Bug::LateRead, "bytes of another"),
        (Bug::LateWrite, "was stored over"),
        (Bug::FalseFence, "was stored over"),
        (Bug::FalseRevoke, "was stored over"),
    ] {
        let found = (0..2000).find_map(|seed| Some((seed, run(seed, Some(bug)).err()?)));
        let (seed, found) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: seed {seed}: {found}");
        assert!(found.contains(finding), "{bug:?} was taken for something else: {found}");
    }
}

/// The client that a process is to the master.
fn incarnation(life: LifeId) -> Incarnation {
    Incarnation((life.host as u64 + 1) << 32 | life.number)
}

/// The process that an incarnation names.
fn life_of(incarnation: u64) -> LifeId {
    let host = usize::try_from((incarnation >> 32) - 1).unwrap();
    LifeId { host, number: incarnation & 0xffff_ffff }
}
