//! Puts and gets, and what they find in memory.

use std::time::Instant;

use kv_master::state::ALIGNMENT;
use kvferry_engine::Endpoint;
use kvferry_proto::pool::{
    Ended, Key, Locate, Outcome, Put, PutEnd, PutRevoke, PutStart, Remove, Revoked, SegmentId,
    Tenant,
};

use super::hosts::{Host, LINES, LifeId};
use super::masters::{Answer, Request};
use super::{Bug, Event, KEYS, Ms, PATIENCE, Recorded, Then, World, incarnation, key, life_of};
use crate::decide::choice::Reader;
use crate::decide::load::Load;
use crate::decide::put::{NotWritten, Revoking, Stored};
use crate::decide::{get, put};
use crate::error::Error;

/// A line of an owner's memory, as a transfer names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) generation: u32,
    pub(super) line: u64,
    /// Of its object: which, and which line of it.
    item: usize,
    index: usize,
    /// The owner takes it no later.
    until: Ms,
}

#[derive(Debug)]
enum Kind {
    Put(put::Batch),
    Get(get::Batch),
}

/// A transfer.
#[derive(Debug)]
struct Running {
    load: Load,
    lines: usize,
    done: usize,
    /// Nothing of it lands any more.
    is_fenced: bool,
    is_over: bool,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) by: LifeId,
    begun: Ms,
    kind: Option<Kind>,
    keys: Vec<Key>,
    lengths: Vec<u64>,
    /// Of a put: where each object is to go. Of a get: what was read of each.
    segments: Vec<Vec<SegmentId>>,
    ended: Vec<Vec<SegmentId>>,
    found: Vec<Vec<u64>>,
    loads: Vec<Running>,
    pub(super) over: bool,
}

fn lines(length: u64) -> u64 {
    length.div_ceil(ALIGNMENT)
}

fn unreachable() -> Error {
    Error::Master { master: Endpoint::new("master", 1), reason: "gone".into() }
}

impl World {
    /// Somebody puts, gets or removes something.
    pub(super) fn act(&mut self) {
        let host = self.random.usize(0..self.hosts.len());
        let Some(by) = self.hosts[host].id().filter(|_| self.hosts[host].stopped <= self.now)
        else {
            return;
        };
        let first = self.random.u32(0..KEYS);
        match self.random.u32(0..20) {
            0..9 => {
                let count = self.random.u32(1..3);
                let keys: Vec<Key> = (0..count).map(|at| key((first + at) % KEYS)).collect();
                let length = |_: &Key| self.random.u64(1..=3 * ALIGNMENT);
                let lengths: Vec<u64> = keys.iter().map(length).collect();
                let batch = put::Batch::new(lengths.iter().map(|length| Ok(*length)));
                self.begin(by, keys, lengths, Kind::Put(batch));
            }
            9..17 => {
                let keys = vec![key(first)];
                let batch = get::Batch::new([u64::MAX]);
                self.begin(by, keys, vec![u64::MAX], Kind::Get(batch));
            }
            _ => {
                let key = key(first);
                // It may arrive for as long as a master may be stopped.
                self.removing.insert(key.clone(), self.now + 6000);
                self.recorded.remove(&key);
                self.end("removed");
                let (tenant, force) = (Tenant::default(), self.random.bool());
                let remove = Remove { tenant, keys: vec![key], force };
                self.ask(host, Request::Remove(remove), PATIENCE, Then::Remove);
            }
        }
    }

    fn begin(&mut self, by: LifeId, keys: Vec<Key>, lengths: Vec<u64>, kind: Kind) {
        let count = keys.len();
        self.jobs.push(Job {
            by,
            begun: self.now,
            kind: Some(kind),
            keys,
            lengths,
            segments: vec![Vec::new(); count],
            ended: vec![Vec::new(); count],
            found: vec![Vec::new(); count],
            loads: Vec::new(),
            over: false,
        });
        self.step(self.jobs.len() - 1);
    }

    fn stamp(job: usize, item: usize) -> u64 {
        (job as u64) << 8 | (item as u64 + 1)
    }

    /// What a job does next.
    fn step(&mut self, number: usize) {
        let now = self.instant(self.now);
        let job = &mut self.jobs[number];
        let (host, client) = (job.by.host, incarnation(job.by));
        let tenant = Tenant::default();
        match &job.kind {
            Some(Kind::Put(batch)) => match batch.step() {
                put::Step::Start(items) => {
                    let put = |item: &usize| Put {
                        key: job.keys[*item].clone(),
                        length: job.lengths[*item],
                        group: None,
                    };
                    let start = PutStart {
                        client,
                        tenant,
                        puts: items.iter().map(put).collect(),
                        replicas: 1 + number % 2,
                        preferred: Vec::new(),
                        is_pinned: false,
                        soft_pin: std::time::Duration::ZERO,
                        at_once: false,
                    };
                    self.ask(host, Request::Start(start), PATIENCE, Then::Start(number, items));
                }
                put::Step::Write(loads) => {
                    for load in loads {
                        self.transfer(number, load, true);
                    }
                }
                put::Step::Settle { ended, revoked } if ended.is_empty() => {
                    self.revoke(number, revoked);
                }
                put::Step::Settle { ended, revoked } => {
                    let end = |ending: &put::Ending| Ended {
                        key: job.keys[ending.item].clone(),
                        version: ending.version,
                        checksum: None,
                        lost: ending.lost.clone(),
                    };
                    let puts = ended.iter().map(end).collect();
                    let end = Request::End(PutEnd { client, tenant, puts });
                    self.ask(host, end, PATIENCE, Then::End(number, ended, revoked));
                }
                put::Step::Wait(wait) => {
                    let wait = u64::try_from(wait.as_millis()).unwrap();
                    self.at(self.now + wait, Event::Waited(number));
                }
                put::Step::Over => self.put_over(number),
            },
            Some(Kind::Get(batch)) => match batch.step(now) {
                get::Step::Locate(items) => {
                    let keys = items.iter().map(|item| job.keys[*item].clone()).collect();
                    let locate = Request::Locate(Locate { tenant, keys });
                    self.ask(host, locate, PATIENCE, Then::Locate(number, items));
                }
                get::Step::Read(loads) => {
                    for load in loads {
                        self.transfer(number, load, false);
                    }
                }
                get::Step::Wait(wait) => {
                    let wait = u64::try_from(wait.as_millis()).unwrap();
                    self.at(self.now + wait, Event::Waited(number));
                }
                get::Step::Over => self.get_over(number),
            },
            None => {}
        }
    }

    fn revoke(&mut self, number: usize, revoked: Vec<Revoking>) {
        let job = &self.jobs[number];
        let one = |revoking: &Revoking| Revoked {
            key: job.keys[revoking.item].clone(),
            version: revoking.version,
            is_fenced: revoking.is_fenced,
        };
        let (client, tenant) = (incarnation(job.by), Tenant::default());
        let revoke = PutRevoke { client, tenant, puts: revoked.iter().map(one).collect() };
        self.ask(job.by.host, Request::Revoke(revoke), PATIENCE, Then::Revoke(number, revoked));
    }

    pub(super) fn waited(&mut self, number: usize) {
        if !self.lives(self.jobs[number].by) {
            return;
        }
        match &mut self.jobs[number].kind {
            Some(Kind::Put(batch)) => batch.waited(),
            Some(Kind::Get(batch)) => batch.waited(),
            None => {}
        }
        self.step(number);
    }

    pub(super) fn job_answered(&mut self, then: Then, sent: Instant, answer: Option<Answer>) {
        let number = match &then {
            Then::Start(job, _)
            | Then::End(job, ..)
            | Then::Revoke(job, _)
            | Then::Locate(job, _) => *job,
            _ => return,
        };
        let by = self.jobs[number].by;
        let turn = self.random.usize(0..8);
        let mut is_unknown = false;
        let mut to_revoke = Vec::new();
        let asked = self.ms(sent);
        let Some(mut kind) = self.jobs[number].kind.take() else { return };
        match (&mut kind, then) {
            (Kind::Put(batch), Then::Start(_, items)) => {
                let answer = match answer {
                    Some(Answer::Started(answer)) => Ok(answer),
                    _ => Err(unreachable()),
                };
                for (item, reserved) in
                    items.iter().zip(answer.iter().flat_map(|answer| &answer.reserved))
                {
                    is_unknown |= matches!(reserved, Err(Outcome::NotJoined));
                    let Ok(reserved) = reserved else { continue };
                    self.hosts[by.host].saw(reserved.version);
                    let key = self.jobs[number].keys[*item].clone();
                    assert!(
                        !self.has_to_be_found(&key, asked),
                        "{key} is lost: there is room for another of its name"
                    );
                    // It was out of reach: what is put now takes its place.
                    self.recorded.remove(&key);
                    let segments = answer.iter().flat_map(|answer| &answer.segments);
                    let segments: Vec<SegmentId> =
                        segments.map(|placed| placed.lent.segment).collect();
                    let replicas = reserved.replicas.iter();
                    self.jobs[number].segments[*item] =
                        replicas.map(|replica| segments[replica.segment]).collect();
                    let stamp = Self::stamp(number, *item);
                    let length = self.jobs[number].lengths[*item];
                    self.stamps.insert(stamp, (key, length));
                }
                batch.started(&items, sent, answer);
            }
            (Kind::Put(batch), Then::End(_, ended, revoked)) => {
                for (index, ending) in ended.iter().enumerate() {
                    let answer = match &answer {
                        Some(Answer::Ended(outcomes, is_recorded)) => {
                            Ok((outcomes[index], *is_recorded))
                        }
                        _ => Err(unreachable()),
                    };
                    let segments = self.jobs[number].segments[ending.item].clone();
                    let kept = segments.into_iter().filter(|it| !ending.lost.contains(it));
                    self.jobs[number].ended[ending.item] = kept.collect();
                    batch.ended(ending, answer);
                }
                to_revoke = revoked;
            }
            (Kind::Put(batch), Then::Revoke(_, revoked)) => {
                for revoking in &revoked {
                    batch.revoked(revoking);
                }
            }
            (Kind::Get(batch), Then::Locate(_, items)) => {
                let answer = match answer {
                    Some(Answer::Located(answer)) => Ok(answer),
                    _ => Err(unreachable()),
                };
                let reader = Reader { client: incarnation(by), host: String::new() };
                batch.located(&items, sent, answer, &reader, |_| false, turn);
            }
            (_, then) => panic!("{then:?} is for another kind of job"),
        }
        self.jobs[number].kind = Some(kind);
        if is_unknown {
            self.start_session(by.host);
        }
        if to_revoke.is_empty() {
            self.step(number);
        } else {
            self.revoke(number, to_revoke);
        }
    }

    /// A transfer begins: each line is stored or read at a time of its own.
    fn transfer(&mut self, number: usize, load: Load, is_write: bool) {
        let is_slow = self.random.u32(0..6) == 0;
        let span = if is_slow { self.random.u64(100..3000) } else { self.random.u64(1..30) };
        let due = self.ms(load.until);
        // What is left of a time counts from when it arrives.
        let until = due + self.delay();
        let running = self.jobs[number].loads.len();
        let mut count = 0;
        for part in &load.parts {
            let owner = life_of(part.place.owner().0);
            let generation = part.place.segment.lent.region.generation;
            let length = usize::try_from(lines(part.length)).unwrap();
            if !is_write {
                self.jobs[number].found[part.item] = vec![0; length];
            }
            for index in 0..length {
                count += 1;
                let line = part.place.offset / ALIGNMENT + index as u64;
                assert!(line < LINES);
                let at = self.now + self.random.u64(0..span);
                let line = Line { generation, line, item: part.item, index, until };
                let (job, load) = (number, running);
                self.at(
                    at,
                    match is_write {
                        true => Event::Store { job, load, owner, to: line },
                        false => Event::Fetch { job, load, owner, from: line },
                    },
                );
            }
        }
        let mut over = (self.now + span).min(due);
        if is_write && self.random.u32(0..10) == 0 {
            over = self.now + self.random.u64(0..span);
        }
        let (done, is_fenced, is_over) = (0, false, false);
        self.jobs[number].loads.push(Running { load, lines: count, done, is_fenced, is_over });
        self.at(over, Event::LoadOver(number, running));
    }

    /// Whether an owner lets a line be read or stored now.
    fn takes(&self, owner: LifeId, line: Line) -> bool {
        self.lives(owner) && self.hosts[owner.host].generation == line.generation
    }

    pub(super) fn store(&mut self, job: usize, load: usize, owner: LifeId, to: Line) {
        let is_late = self.now > to.until && self.bug != Some(Bug::LateWrite);
        if self.jobs[job].loads[load].is_fenced || is_late || !self.takes(owner, to) {
            return;
        }
        let stamp = Self::stamp(job, to.item);
        let at = to.line * ALIGNMENT;
        for held in self.hosts[owner.host].inventory.held(Host::segment(owner)) {
            if held.offset <= at && at < held.offset + held.length {
                let there = self.hosts[owner.host].memory[usize::try_from(to.line).unwrap()];
                let (name, _) = &self.stamps[&stamp];
                assert!(there == stamp, "{held:?} was stored over by a put of {name}, job {job}");
            }
        }
        self.hosts[owner.host].memory[usize::try_from(to.line).unwrap()] = stamp;
        self.jobs[job].loads[load].done += 1;
    }

    pub(super) fn fetch(&mut self, job: usize, load: usize, owner: LifeId, from: Line) {
        if !self.takes(owner, from) || self.jobs[job].loads[load].is_over {
            return;
        }
        let found = self.hosts[owner.host].memory[usize::try_from(from.line).unwrap()];
        self.jobs[job].found[from.item][from.index] = found;
        self.jobs[job].loads[load].done += 1;
    }

    pub(super) fn load_over(&mut self, number: usize, load: usize) {
        if !self.lives(self.jobs[number].by) {
            return;
        }
        let fences = self.random.bool();
        let (now, bug) = (self.now, self.bug);
        let due = self.ms(self.jobs[number].loads[load].load.until);
        let at = self.instant(if bug == Some(Bug::LateRead) { now.min(due - 1) } else { now });
        let mut end = None;
        let job = &mut self.jobs[number];
        let running = &mut job.loads[load];
        running.is_over = true;
        let is_whole = running.done == running.lines;
        match &mut job.kind {
            Some(Kind::Put(batch)) => {
                let outcome = if is_whole {
                    Ok(())
                } else {
                    running.is_fenced = fences && bug != Some(Bug::FalseRevoke);
                    end = fences.then_some("fenced");
                    let is_untouched = fences && running.done == 0;
                    Err(NotWritten { error: Error::LeaseOver, is_fenced: fences, is_untouched })
                };
                batch.written(&running.load, &outcome);
            }
            Some(Kind::Get(batch)) => {
                let outcome = if is_whole {
                    Ok(vec![true; running.load.parts.len()])
                } else {
                    Err(Error::LeaseOver)
                };
                end = (now >= due).then_some("read late");
                batch.read(&running.load, at, &outcome);
            }
            None => {}
        }
        let is_last = job.loads.iter().all(|running| running.is_over);
        if let Some(end) = end {
            self.end(end);
        }
        if is_last {
            self.step(number);
        }
    }

    fn put_over(&mut self, number: usize) {
        self.jobs[number].over = true;
        let Some(Kind::Put(batch)) = self.jobs[number].kind.take() else { return };
        for (item, result) in batch.into_results().into_iter().enumerate() {
            let key = self.jobs[number].keys[item].clone();
            match result {
                Ok(Stored::New { is_recorded: true, .. }) => {
                    self.end("put recorded");
                    let may_go = self.removing.get(&key).is_some_and(|until| *until > self.now);
                    let segments = self.jobs[number].ended[item].iter();
                    let owners = segments.map(|segment| life_of(segment.0)).collect();
                    if !may_go {
                        self.recorded.insert(key, Recorded { since: self.now, owners });
                    }
                }
                Ok(Stored::New { .. }) => self.end("put"),
                Ok(Stored::Existed | Stored::BeingWritten) => self.end("was there"),
                Err(_) => self.end("put failed"),
            }
        }
    }

    fn get_over(&mut self, number: usize) {
        self.jobs[number].over = true;
        let Some(Kind::Get(batch)) = self.jobs[number].kind.take() else { return };
        for (item, result) in batch.into_results().into_iter().enumerate() {
            let job = &self.jobs[number];
            let key = &job.keys[item];
            let end = match result {
                Ok(length) => {
                    let found = &job.found[item];
                    let put = found.first().and_then(|stamp| self.stamps.get(stamp));
                    let is_one = found.iter().all(|stamp| Some(stamp) == found.first());
                    assert!(
                        is_one && put == Some(&(key.clone(), length)),
                        "bytes of another: {key}, {length} bytes long, was read as {found:?}: {put:?}"
                    );
                    "got"
                }
                Err(Error::Outcome(Outcome::NotFound)) => {
                    assert!(!self.has_to_be_found(key, job.begun), "{key} is lost: not found");
                    "get failed"
                }
                Err(_) => "get failed",
            };
            self.end(end);
        }
    }
}
