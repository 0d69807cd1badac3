//! The floor: code with one purpose that does the engine's work over plain TCP connections, with
//! everything known beforehand.
//!
//! Both ends know the list of blocks, so nothing but payload is on the wire, and one byte a
//! connection and transfer: from the target when the last block is in place (write), or to it to
//! begin, and from it when it has sent all (read). The blocks, the regions and their pages, the
//! processes and the number of threads are the engine's, and so is the pace.
//!
//! Where the engine moves blocks within one host, the floor is no connection but a copy within one
//! process, by as many threads as the engine's that copy at once: `copying`. Where it has adapters
//! read them, the floor is a program that others measure adapters by: `perftest`.

mod connections;
mod copying;
mod flow;
mod perftest;
mod slices;

use std::fmt;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use serde::{Deserialize, Serialize};

use crate::cli::Op;
use crate::pace::{MOST_TRANSFERS, Pace};
pub(crate) use connections::Connections;
pub(crate) use copying::{Twin, Way};
pub(crate) use flow::Worker;
pub(crate) use perftest::{Messages, Server as Perftest};

/// How the floor goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Strategy {
    /// How many connections each thread drives.
    pub(crate) connections: u32,
    /// Whether a receiver looks for more before it sleeps.
    pub(crate) spins: bool,
}

impl Strategy {
    /// All that are tried.
    pub(crate) const ALL: [Self; 4] = [
        Self { connections: 1, spins: false },
        Self { connections: 1, spins: true },
        Self { connections: 2, spins: false },
        Self { connections: 2, spins: true },
    ];

    /// As an engine waits, over one connection: for transfers one after another.
    pub(crate) const PACED: Self = Self { connections: 1, spins: true };

    /// The most connections that a thread drives.
    pub(crate) const MOST_CONNECTIONS: u32 = 2;

    /// How long a receiver looks for more before it sleeps: about what it costs to be woken.
    fn spin(self) -> Duration {
        if self.spins { Duration::from_micros(50) } else { Duration::ZERO }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connections = self.connections;
        let plural = if connections == 1 { "" } else { "s" };
        let wait = if self.spins { "spins 50 us, then polls" } else { "polls" };
        write!(f, "{connections} connection{plural} a thread, receiver {wait}")
    }
}

/// What the floor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Floor {
    /// Connections between the two processes.
    Tcp(Strategy),
    /// Copies within one, by so many threads.
    Local(Way, u32),
    /// Messages by perftest, one for each block.
    Perftest,
}

impl Floor {
    /// Whether it is known what it costs: of another program's processes it is not.
    pub(crate) fn is_costed(self) -> bool {
        self != Self::Perftest
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(strategy) => strategy.fmt(f),
            Self::Perftest => f.write_str("perftest, one queue pair, a message a block"),
            Self::Local(way, 1) => write!(f, "one process, {way}, 1 thread"),
            Self::Local(way, threads) => write!(f, "one process, {way}, {threads} threads"),
        }
    }
}

/// The most threads that either end may have.
pub(crate) const MOST_THREADS: u32 = 256;

/// One run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Which part of the region.
    pub(crate) part: u32,
    pub(crate) op: Op,
    pub(crate) strategy: Strategy,
    pub(crate) threads: u32,
    pub(crate) pace: Pace,
    /// Blocks that are acknowledged together; `None` for all of a connection's.
    pub(crate) transfer_blocks: Option<u64>,
}

impl Job {
    /// Refuses what no initiator asks for. `blocks` is how many the list has.
    fn check(&self, blocks: u64) -> anyhow::Result<()> {
        ensure!(
            (1..=MOST_THREADS).contains(&self.threads)
                && (1..=Strategy::MOST_CONNECTIONS).contains(&self.strategy.connections)
                && self.transfer_blocks != Some(0),
            "no run of the floor: {self:?}"
        );
        // Each transfer ends before the next begins, so they may not share a thread's connections.
        ensure!(
            self.transfer_blocks.is_none() || self.strategy.connections == 1,
            "transfers one after another take one connection a thread: {self:?}"
        );
        let transfers = self.transfer_blocks.map_or(1, |each| blocks.div_ceil(each));
        ensure!(transfers <= MOST_TRANSFERS, "{transfers} transfers are too many: {self:?}");
        Ok(())
    }
}

/// The target's part of a run. `armed` is called when every thread stands ready.
pub(crate) fn take_part(workers: Vec<Worker>, op: Op, armed: impl FnOnce()) -> anyhow::Result<()> {
    let ready = Barrier::new(workers.len() + 1);
    thread::scope(|scope| {
        let ready = &ready;
        let threads: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                scope.spawn(move || {
                    ready.wait();
                    worker.serve(op)
                })
            })
            .collect();
        ready.wait();
        armed();
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a thread of the floor panicked: see above"))??;
        }
        Ok(())
    })
}
