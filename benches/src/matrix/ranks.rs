//! The processes, and one run of some patterns.

use std::time::Duration;

use anyhow::{Context, ensure};

use super::layout::Plan;
use crate::cli::{Memory, Transport};
use crate::control::{Answer, Cell, Link, Order, Whereabouts, unexpected};
use crate::memory;
use crate::pattern::Mismatch;
use crate::side::Setup;

/// One process for each rank. They end with this handle.
#[derive(Debug)]
pub(super) struct Ranks {
    links: Vec<Link>,
    round: u64,
}

/// What a run came to.
#[derive(Debug)]
pub(super) struct Ran {
    /// Of each rank, how long each pattern took there: 0 where it sent nothing.
    times: Vec<Vec<u64>>,
    pub(super) mismatch: Option<Mismatch>,
}

impl Ran {
    /// How long the slowest rank took for a pattern.
    pub(super) fn slowest(&self, pattern: usize) -> anyhow::Result<Duration> {
        let times = self.times.iter().filter_map(|rank| rank.get(pattern).copied());
        let slowest = times.max().filter(|nanoseconds| *nanoseconds > 0);
        slowest.map(Duration::from_nanos).context("no rank moved anything in a pattern")
    }
}

impl Ranks {
    /// Starts them, and has each connect to all.
    pub(super) fn start(plan: &Plan, seed: u64, patience: Duration) -> anyhow::Result<Self> {
        let total = plan.region_bytes().try_fold(0_u64, u64::checked_add);
        memory::ensure_room(total.context("that is more than can be counted")?, None)
            .context("the patterns of all files lie in memory together, at both ends")?;
        let mut links = Vec::new();
        for region_bytes in plan.region_bytes() {
            let mut link = Link::open(&Whereabouts::here(), patience)?;
            link.order(&Order::Start(Setup {
                region_bytes,
                seed,
                contiguous: true,
                transport: Transport::Auto,
                memory: Memory::Shared,
            }))?;
            links.push((link, region_bytes));
        }
        let mut ports = Vec::new();
        for (link, region_bytes) in &mut links {
            match link.answer_after_work(*region_bytes)? {
                Answer::Started { engine_port, .. } => ports.push(engine_port),
                other => return Err(unexpected(&other)),
            }
        }
        let links = links.into_iter().map(|(link, _)| link).collect();
        let mut ranks = Self { links, round: 0 };
        ranks.all(|_| (Order::Meet { ports: ports.clone() }, 0), done)?;
        Ok(ranks)
    }

    /// Moves these patterns at once: filled before, verified after.
    pub(super) fn exchange(&mut self, plan: &Plan, patterns: &[usize]) -> anyhow::Result<Ran> {
        self.round += 1;
        let round = self.round;
        let bytes = |cells: &[Cell]| cells.iter().map(|cell| cell.bytes).sum::<u64>();
        let prepare = |rank| {
            let cells = plan.sent(rank, patterns);
            let work = bytes(&cells);
            (Order::Prepare { round, cells }, work)
        };
        self.all(prepare, done)?;
        let go = |rank| (Order::Go, bytes(&plan.sent(rank, patterns)));
        let times = self.all(go, |answer| match answer {
            Answer::Moved { nanoseconds } => Ok(nanoseconds),
            other => Err(unexpected(&other)),
        })?;
        let check = |rank| {
            let cells = plan.received(rank, patterns);
            let work = bytes(&cells);
            (Order::Check { round, cells }, work)
        };
        let verified = self.all(check, |answer| match answer {
            Answer::Verified { mismatch } => Ok(mismatch),
            other => Err(unexpected(&other)),
        })?;
        ensure!(verified.len() == self.links.len(), "a rank did not verify");
        Ok(Ran { times, mismatch: verified.into_iter().flatten().next() })
    }

    /// Gives every rank an order that touches so many bytes, and then hears all answers.
    fn all<T>(
        &mut self,
        order: impl Fn(usize) -> (Order, u64),
        answer: impl Fn(Answer) -> anyhow::Result<T>,
    ) -> anyhow::Result<Vec<T>> {
        let mut work = Vec::with_capacity(self.links.len());
        for (rank, link) in self.links.iter_mut().enumerate() {
            let (order, bytes) = order(rank);
            link.order(&order).with_context(|| format!("rank {rank}"))?;
            work.push(bytes);
        }
        // Whoever is behind others waits for them, too.
        let slowest = work.iter().sum();
        let heard = self.links.iter_mut().enumerate().map(|(rank, link)| {
            let said = link.answer_after_work(slowest).with_context(|| format!("rank {rank}"))?;
            answer(said)
        });
        heard.collect()
    }
}

fn done(answer: Answer) -> anyhow::Result<()> {
    match answer {
        Answer::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}
