//! What a table answers, case by case.

mod life;
mod order;
mod sizes;

use std::num::NonZeroU32;
use std::time::Duration;

use kvferry_proto::Incarnation;

use super::*;
use crate::bootstrap::registration::Sizes;

const SECOND: Duration = Duration::from_secs(1);

fn rank(dp: u32, tp: u32, pp: u32) -> Rank {
    Rank { dp, tp, pp }
}

/// A worker as in-tree vLLM registers one.
fn plain(engine: &str, rank: Rank, port: u16) -> Registration {
    let address = format!("tcp://10.0.0.1:{port}").parse().expect("an address");
    Registration::new(engine, rank, address)
}

fn named(engine: &str, rank: Rank, port: u16, incarnation: u64) -> Registration {
    Registration { incarnation: Some(Incarnation(incarnation)), ..plain(engine, rank, port) }
}

fn sized(registration: Registration, dp: u32, tp: u32, pp: u32) -> Registration {
    let size = NonZeroU32::new;
    Registration { sizes: Sizes { dp: size(dp), tp: size(tp), pp: size(pp) }, ..registration }
}

struct World {
    table: Table,
    now: Instant,
    /// Ports that accept connections.
    alive: BTreeSet<u16>,
    probes: usize,
}

impl World {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        let (table, now) = (Table::new(settings), Instant::now());
        Self { table, now, alive: BTreeSet::new(), probes: 0 }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn verdict(&self, probe: &Probe) -> Verdict {
        let is_alive = self.alive.contains(&probe.address().endpoint().port());
        if is_alive { Verdict::Accepts } else { Verdict::Gone }
    }

    fn register(&mut self, registration: Registration) -> Result<(), Refusal> {
        let mut answer = self.table.register(self.now, registration);
        loop {
            match answer {
                Answer::Accepted => return Ok(()),
                Answer::Refused(refusal) => return Err(refusal),
                Answer::Probe(pending) => {
                    self.probes += pending.probes().len();
                    let found = pending.probes().iter();
                    let found = found.map(|probe| (probe.clone(), self.verdict(probe))).collect();
                    answer = self.table.resume(self.now, pending, found);
                }
            }
        }
    }

    /// Tries what is due.
    fn try_addresses(&mut self) {
        for probe in self.table.due(self.now) {
            let verdict = self.verdict(&probe);
            self.table.probed(self.now, &probe, verdict);
        }
    }

    fn listing(&mut self) -> Listing {
        self.table.query(self.now).expect("a complete table")
    }

    /// The port that a rank has.
    fn port(&mut self, rank: Rank) -> Option<u16> {
        let worker = self.table.worker(rank)?;
        Some(worker.address.endpoint().port())
    }
}
