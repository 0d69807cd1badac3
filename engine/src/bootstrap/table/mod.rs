//! Who has registered: a state machine without I/O.
//!
//! [`Table`] reads no clock, draws no randomness and never waits. It is given the time and what
//! happened, and returns the answer, or the addresses that have to be tried before there is one:
//!
//! ```
//! use std::time::Instant;
//! use kvferry_engine::bootstrap::table::{Answer, Settings, Table, Verdict};
//! use kvferry_engine::bootstrap::{Rank, Registration};
//!
//! let mut table = Table::new(Settings::default());
//! let now = Instant::now();
//! let first = Registration::new("a", Rank::default(), "tcp://10.0.0.1:5555".parse()?);
//! assert_eq!(table.register(now, first), Answer::Accepted);
//!
//! // Without an incarnation, nothing says which of two is the newer: is the first one gone?
//! let second = Registration::new("b", Rank::default(), "tcp://10.0.0.2:5555".parse()?);
//! let Answer::Probe(pending) = table.register(now, second) else { panic!() };
//! let found = pending.probes().iter().map(|probe| (probe.clone(), Verdict::Gone)).collect();
//! assert_eq!(table.resume(now, pending, found), Answer::Accepted);
//! assert_eq!(&*table.query(now)?.engines[&0].engine_id, "b");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Who gives way.** The same worker repeating itself is always accepted. Where both have an
//! incarnation, the one that *first* registered later is the newer, and takes the rank (or, with
//! another engine id, the whole `dp_rank`) at once; the table remembers the order, so that a late
//! repeat of the older is refused, also when the newer has gone meanwhile. Only one that goes on
//! registering for a vacant rank, for as long as its lease, has it back: it lives, and the other was
//! the late one. An engine that was
//! replaced gets its `dp_rank` back only where its successor is gone: a rank of the old engine
//! that is merely late has an incarnation that nobody has seen, too. Wherever one of the two has
//! no incarnation, or their sizes contradict each other, the one that is there stays for as long
//! as its address accepts connections.
//!
//! **Who is forgotten.** A worker with a lease, when it is over. One without, when its address has
//! accepted nothing for [`Settings::forget_after`]: [`Table::due`] says which to try, and
//! [`Table::probed`] takes what was found.
//!
//! **Concurrency.** A registration that waits for probes holds nothing. What was found counts only
//! for the very registration that was asked about: if anything has changed meanwhile, more probes
//! are asked for.

mod claims;
mod conflict;
mod history;
mod listing;
mod refusal;
mod settings;
mod worker;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use claims::Claims;
use history::History;
pub use listing::{ListedEngine, ListedWorker, Listing};
use refusal::millis;
pub use refusal::{Incomplete, Presence, Refusal};
pub use settings::{Limits, Settings};
use worker::{DP, Engine, Life, WITHIN_ENGINE, Worker};

use super::registration::{Rank, Registration, WorkerAddress};
use crate::time;

/// How many addresses are to be tried at once.
pub const PROBES_AT_ONCE: usize = 64;

/// How many changes wait to be asked for: of more, the oldest are dropped.
pub const CHANGES: usize = 4096;

/// How often a registration may ask for more probes: enough for as many workers as a table holds
/// by default, and no more, whatever others do meanwhile.
const ROUNDS: u32 = 256;

/// Which registration, of all that were ever accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u64);

/// An address to be tried: does it accept a TCP connection?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    rank: Rank,
    version: Version,
    address: WorkerAddress,
}

impl Probe {
    /// Where to connect to.
    #[must_use]
    pub fn address(&self) -> &WorkerAddress {
        &self.address
    }
}

/// What a probe found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The address accepts connections.
    Accepts,
    /// It refuses them, cannot be reached, does not answer in time, or its name is unknown.
    Gone,
    /// It could not be tried, for a reason of this host's: no descriptor was left, say.
    Unknown,
}

/// What becomes of a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The worker is in the table.
    Accepted,
    /// It is not, and why.
    Refused(Refusal),
    /// It depends on whether others are gone: [`Table::resume`] with what was found.
    Probe(Pending),
}

/// A registration that waits for probes. It can be dropped at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    registration: Registration,
    probes: Vec<Probe>,
    found: BTreeMap<Version, Verdict>,
    rounds: u32,
}

impl Pending {
    /// The addresses to be tried; at least one.
    #[must_use]
    pub fn probes(&self) -> &[Probe] {
        &self.probes
    }
}

/// What became of a worker, for whoever keeps a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The worker's rank.
    pub rank: Rank,
    /// Where it is, or was, reached.
    pub address: WorkerAddress,
    /// Its engine.
    pub engine_id: Arc<str>,
    /// What became of it.
    pub what: Happened,
}

/// What became of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// It registered, and was not there before.
    Joined,
    /// Another took its rank, or its engine's.
    Replaced,
    /// It did not renew its lease.
    Expired,
    /// Its address accepted nothing for too long.
    Silent,
}

/// Who has registered, and what is known of those before.
#[derive(Debug)]
pub struct Table {
    settings: Settings,
    engines: BTreeMap<u32, Engine>,
    /// When something is to be done about whom.
    due: BTreeSet<(Instant, Rank)>,
    history: History,
    claims: Claims,
    versions: u64,
    changes: VecDeque<Change>,
}

impl Table {
    /// An empty table.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            engines: BTreeMap::new(),
            due: BTreeSet::new(),
            history: History::default(),
            claims: Claims::default(),
            versions: 0,
            changes: VecDeque::new(),
        }
    }

    /// A worker registers, or repeats that it is there.
    #[must_use]
    pub fn register(&mut self, now: Instant, registration: Registration) -> Answer {
        let found = BTreeMap::new();
        self.decide(now, Pending { registration, probes: Vec::new(), found, rounds: 0 })
    }

    /// Goes on with a registration that waited for probes. A probe that nothing was found of is
    /// asked for again.
    #[must_use]
    pub fn resume(
        &mut self,
        now: Instant,
        mut pending: Pending,
        found: Vec<(Probe, Verdict)>,
    ) -> Answer {
        let found = found.into_iter().map(|(probe, verdict)| (probe.version, verdict));
        pending.found.extend(found);
        self.decide(now, pending)
    }

    fn decide(&mut self, now: Instant, mut pending: Pending) -> Answer {
        self.expire(now);
        let registration = &pending.registration;
        let checked =
            self.check(registration).and_then(|()| self.check_order(now, &pending.registration));
        if let Err(refusal) = checked {
            return Answer::Refused(refusal);
        }
        let registration = &pending.registration;
        let conflicts = self.conflicts(registration);
        let mut probes = Vec::new();
        for conflict in conflicts.iter().filter(|conflict| !conflict.yields) {
            let state = match pending.found.get(&conflict.version) {
                Some(Verdict::Gone) => continue,
                Some(Verdict::Accepts) => Presence::Accepts,
                Some(Verdict::Unknown) => Presence::Unknown,
                None => {
                    let (rank, version) = (conflict.rank, conflict.version);
                    probes.push(Probe { rank, version, address: conflict.address.clone() });
                    continue;
                }
            };
            return Answer::Refused(self.clash(conflict, registration, state));
        }
        if !probes.is_empty() {
            if pending.rounds == ROUNDS {
                return Answer::Refused(Refusal::Contended { rank: registration.rank });
            }
            pending.rounds += 1;
            probes.truncate(PROBES_AT_ONCE);
            pending.probes = probes;
            return Answer::Probe(pending);
        }
        let in_the_way: BTreeSet<Rank> = conflicts.iter().map(|conflict| conflict.rank).collect();
        if let Err(refusal) = self.has_room(registration.rank, &in_the_way) {
            return Answer::Refused(refusal);
        }
        for rank in in_the_way {
            self.lose(rank, Happened::Replaced);
        }
        self.insert(now, pending.registration);
        Answer::Accepted
    }

    /// What can be said of a registration by itself.
    fn check(&self, registration: &Registration) -> Result<(), Refusal> {
        let limits = &self.settings.limits;
        let within = |field, found: u64, least: u64, most: u64| {
            if (least..=most).contains(&found) {
                return Ok(());
            }
            Err(Refusal::OutOfBounds { field, found, least, most })
        };
        let id_bytes = registration.engine_id.len() as u64;
        within("the length of engine_id in bytes", id_bytes, 1, limits.engine_id_bytes as u64)?;
        let (rank, sizes) = (registration.rank, registration.sizes);
        for dimension in [DP].into_iter().chain(WITHIN_ENGINE) {
            let field = dimension.rank_field;
            let most = if field == DP.rank_field { limits.engines } else { limits.workers };
            within(field, dimension.rank(rank).into(), 0, u64::from(most).saturating_sub(1))?;
            if let Some(size) = dimension.size(&sizes) {
                within(dimension.size_field, size.get().into(), 1, most.into())?;
            }
            if let Some(size) = dimension.excess(rank, &sizes) {
                return Err(Refusal::OutsideOwnSize {
                    field,
                    rank: dimension.rank(rank),
                    size_field: dimension.size_field,
                    size,
                });
            }
        }
        let size = |size: Option<std::num::NonZeroU32>| size.map_or(1, |size| size.get().into());
        let ranks: u64 = size(sizes.tp) * size(sizes.pp);
        within("tp_size times pp_size", ranks, 1, limits.workers.into())?;
        if let Some(lease) = registration.lease {
            let (least, most) = (millis(limits.least_lease), millis(limits.most_lease));
            within("lease_ms", millis(lease), least, most)?;
        }
        Ok(())
    }

    /// Whether a later incarnation has its rank.
    fn check_order(&mut self, now: Instant, registration: &Registration) -> Result<(), Refusal> {
        let rank = registration.rank;
        let Some(incarnation) = registration.incarnation else { return Ok(()) };
        let Some(by) = self.history.successor(rank, incarnation) else { return Ok(()) };
        let long = registration.lease.unwrap_or(self.settings.forget_after);
        let most = self.settings.limits.workers as usize;
        let takes_back =
            self.worker(rank).is_none() && self.claims.renew(now, rank, incarnation, long, most);
        if takes_back { Ok(()) } else { Err(Refusal::Superseded { rank, incarnation, by }) }
    }

    /// Whether there is room for a worker once others are removed. For its engine there always is:
    /// as many may exist as there are ranks for.
    fn has_room(&self, rank: Rank, removed: &BTreeSet<Rank>) -> Result<(), Refusal> {
        let limits = &self.settings.limits;
        if self.worker(rank).is_some() {
            return Ok(());
        }
        if self.due.len() - removed.len() >= limits.workers as usize {
            return Err(Refusal::Full { limit: limits.workers });
        }
        Ok(())
    }

    fn insert(&mut self, now: Instant, registration: Registration) {
        let Registration { engine_id, rank, address, incarnation, sizes, lease } = registration;
        self.history.note(rank, incarnation, &engine_id);
        self.claims.clear(rank);
        // A repeat that does not say who it is comes from the one that is there.
        let known = self.remove(rank);
        if known.is_none() {
            self.note(rank, &address, &engine_id, Happened::Joined);
        }
        let known = known.filter(|known| known.address == address);
        let incarnation = incarnation.or(known.and_then(|known| known.incarnation));
        self.versions += 1;
        let version = Version(self.versions);
        let life = Life::new(now, lease, self.settings.probe_every);
        self.due.insert((life.due(), rank));
        let engine = self
            .engines
            .entry(rank.dp)
            .or_insert_with(|| Engine { id: engine_id, workers: BTreeMap::new() });
        let worker = Worker { address, incarnation, sizes, version, life };
        engine.workers.insert((rank.tp, rank.pp), worker);
        let engines = &self.engines;
        let remembered = self.settings.limits.workers as usize * 2;
        self.history.bound(remembered, |rank| {
            engines.get(&rank.dp).is_some_and(|own| own.workers.contains_key(&(rank.tp, rank.pp)))
        });
    }

    fn worker(&self, rank: Rank) -> Option<&Worker> {
        self.engines.get(&rank.dp)?.workers.get(&(rank.tp, rank.pp))
    }

    fn remove(&mut self, rank: Rank) -> Option<Worker> {
        let engine = self.engines.get_mut(&rank.dp)?;
        let removed = engine.workers.remove(&(rank.tp, rank.pp))?;
        if engine.workers.is_empty() {
            self.engines.remove(&rank.dp);
        }
        self.due.remove(&(removed.life.due(), rank));
        Some(removed)
    }

    fn lose(&mut self, rank: Rank, what: Happened) {
        let Some(engine) = self.engines.get(&rank.dp).map(|engine| engine.id.clone()) else {
            return;
        };
        if let Some(lost) = self.remove(rank) {
            self.note(rank, &lost.address, &engine, what);
        }
    }

    fn note(&mut self, rank: Rank, address: &WorkerAddress, engine: &Arc<str>, what: Happened) {
        if self.changes.len() == CHANGES {
            self.changes.pop_front();
        }
        let (address, engine_id) = (address.clone(), engine.clone());
        self.changes.push_back(Change { rank, address, engine_id, what });
    }

    /// What became of whom since this was last asked; the last [`CHANGES`] at the most.
    pub fn changes(&mut self) -> impl Iterator<Item = Change> {
        std::mem::take(&mut self.changes).into_iter()
    }

    /// Forgets whose lease is over.
    fn expire(&mut self, now: Instant) {
        let past: Vec<Rank> = self.due.range(..=(now, LAST)).map(|(_, rank)| *rank).collect();
        for rank in past {
            if let Some(Worker { life: Life::Leased { .. }, .. }) = self.worker(rank) {
                self.lose(rank, Happened::Expired);
            }
        }
    }

    /// When [`Table::due`] has something to do; `None` while nobody has registered.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Forgets whose lease is over, and returns the addresses to be tried now,
    /// [`PROBES_AT_ONCE`] at the most: each is tried again a while later, whatever becomes of it.
    #[must_use]
    pub fn due(&mut self, now: Instant) -> Vec<Probe> {
        self.expire(now);
        let next = time::after(now, self.settings.probe_every);
        let due = self.due.range(..=(now, LAST)).take(PROBES_AT_ONCE);
        let due: Vec<(Instant, Rank)> = due.copied().collect();
        let mut probes = Vec::new();
        for (at, rank) in due {
            let Some(worker) = worker_mut(&mut self.engines, rank) else { continue };
            let Life::Watched { next_probe, .. } = &mut worker.life else { continue };
            *next_probe = next;
            probes.push(Probe { rank, version: worker.version, address: worker.address.clone() });
            self.due.remove(&(at, rank));
            self.due.insert((next, rank));
        }
        probes
    }

    /// What was found by a probe that [`Table::due`] asked for.
    pub fn probed(&mut self, now: Instant, probe: &Probe, verdict: Verdict) {
        let Some(worker) = worker_mut(&mut self.engines, probe.rank) else { return };
        if worker.version != probe.version {
            return;
        }
        let Life::Watched { silent_since, .. } = &mut worker.life else { return };
        match verdict {
            Verdict::Accepts => *silent_since = None,
            Verdict::Unknown => {}
            Verdict::Gone => {
                let since = *silent_since.get_or_insert(now);
                if now.saturating_duration_since(since) >= self.settings.forget_after {
                    self.lose(probe.rank, Happened::Silent);
                }
            }
        }
    }

    /// Who has registered.
    ///
    /// # Errors
    /// [`Incomplete`] where ranks are missing that exist by the sizes that registrants gave.
    pub fn query(&mut self, now: Instant) -> Result<Listing, Incomplete> {
        self.expire(now);
        self.check_complete()?;
        Ok(self.listing())
    }
}

/// Behind every rank that a table can hold.
const LAST: Rank = Rank { dp: u32::MAX, tp: u32::MAX, pp: u32::MAX };

fn worker_mut(engines: &mut BTreeMap<u32, Engine>, rank: Rank) -> Option<&mut Worker> {
    engines.get_mut(&rank.dp)?.workers.get_mut(&(rank.tp, rank.pp))
}
