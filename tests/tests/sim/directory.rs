//! How hosts find each other: a bootstrap server's table, and registrations that are lost, late and
//! repeated on their way to it.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use kvferry_engine::Incarnation;
use kvferry_engine::bootstrap::table::{Answer, Settings, Table};
use kvferry_engine::bootstrap::{Rank, Registration, Sizes, WorkerAddress};

use crate::host::{Host, LifeId};
use crate::world::{Event, World};

/// For how long a registration counts.
const LEASE: Duration = Duration::from_secs(3);

/// How often it is renewed.
const RENEWAL: Duration = Duration::from_secs(1);

/// The table, and what must be true of it.
#[derive(Debug)]
pub(crate) struct Directory {
    table: Table,
    /// Whether processes say how many of them there are.
    sized: bool,
    /// Whoever has registered.
    known: BTreeSet<LifeId>,
    /// By host: the process that was listed last, and when a registration of it last arrived.
    newest: Vec<Option<(LifeId, Instant)>>,
}

impl Directory {
    pub(crate) fn new(hosts: usize, sized: bool) -> Self {
        let (table, known) = (Table::new(Settings::default()), BTreeSet::new());
        Self { table, sized, known, newest: vec![None; hosts] }
    }
}

impl World {
    /// A process says that it is there, and will again.
    pub(crate) fn register(&mut self, life: LifeId) {
        if self.hosts[life.host].id() != Some(life) {
            return;
        }
        let (now, stormy) = (self.now, self.network.stormy);
        self.at(now + RENEWAL, Event::Register(life));
        let times = if stormy { [0, 1, 1, 1, 1, 2][self.random.below(6)] } else { 1 };
        for _ in 0..times {
            // One that is repeated may be very late.
            let most =
                if stormy { [3_000, 300_000, 5_000_000][self.random.below(3)] } else { 3_000 };
            let at = now + self.random.micros(10, most);
            self.at(at, Event::Registered(life));
        }
    }

    /// A registration arrives at the bootstrap server, from a process that may be gone by now.
    pub(crate) fn be_registered(&mut self, life: LifeId) {
        let hosts = u32::try_from(self.hosts.len()).expect("few hosts");
        let address = format!("tcp://{}", Host::address(life.host));
        let address: WorkerAddress = address.parse().expect("an address");
        let dp = u32::try_from(life.host).expect("few hosts");
        let sizes = Sizes {
            dp: self.directory.sized.then(|| NonZeroU32::new(hosts)).flatten(),
            ..Sizes::default()
        };
        let registration = Registration {
            incarnation: Some(life.incarnation()),
            sizes,
            lease: Some(LEASE),
            ..Registration::new(&format!("engine-{dp}"), Rank { dp, tp: 0, pp: 0 }, address)
        };
        let answer = self.directory.table.register(self.now, registration);
        let newest = &mut self.directory.newest[life.host];
        match answer {
            Answer::Accepted => {
                // Who was never heard of counts as new, and who goes on after all others have
                // stopped, as alive.
                let is_new = self.directory.known.insert(life);
                let is_held = newest.is_some_and(|(newest, renewed)| {
                    newest != life && self.now.duration_since(renewed) < LEASE
                });
                assert!(is_new || !is_held, "{life:?} has replaced {newest:?} again");
                *newest = Some((life, self.now));
            }
            Answer::Refused(refusal) => assert!(
                newest.is_some_and(|(newest, _)| newest != life)
                    && self.directory.known.contains(&life),
                "{life:?} was refused, of which {newest:?} is the newest: {refusal}"
            ),
            Answer::Probe(_) => panic!("{life:?} has an incarnation, as all have: nobody to try"),
        }
    }

    /// What the bootstrap server says of a host: who lives there.
    pub(crate) fn listed(&mut self, host: usize) -> Option<Incarnation> {
        let now = self.now;
        let listing = self.directory.table.query(now);
        let newest = &self.directory.newest;
        let is_listed = |host: &Option<(LifeId, Instant)>| {
            host.is_some_and(|(_, renewed)| now.duration_since(renewed) < LEASE)
        };
        let Ok(listing) = listing else {
            let missing = newest.iter().any(|host| !is_listed(host));
            assert!(self.directory.sized && missing, "all are there, and are not told: {newest:?}");
            return None;
        };
        for (index, known) in newest.iter().enumerate() {
            let dp = u32::try_from(index).expect("few hosts");
            let listed =
                listing.engines.get(&dp).and_then(|engine| engine.workers.get(&0)?.get(&0));
            let listed = listed.and_then(|worker| worker.incarnation);
            let expected = known.filter(|_| is_listed(known)).map(|(life, _)| life.incarnation());
            assert_eq!(listed, expected, "host {index} is listed, of which {known:?} is known");
            // Of an empty one nobody has said how many there are.
            assert!(
                !self.directory.sized || listed.is_some() || listing.engines.is_empty(),
                "the table counts as complete without host {index}"
            );
        }
        let (life, _) = newest[host].filter(|_| is_listed(&newest[host]))?;
        Some(life.incarnation())
    }

    /// Whoever lives is listed, and nobody else.
    pub(crate) fn check_directory(&mut self) {
        for host in 0..self.hosts.len() {
            let living = self.hosts[host].id().map(LifeId::incarnation);
            assert_eq!(self.listed(host), living, "host {host}");
        }
    }
}
