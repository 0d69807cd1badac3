//! Both processes as one thing to measure: what is moved, by the engine or by the floor, is filled
//! before and verified after, outside the clock.

use std::time::Duration;

use anyhow::{Context, ensure};
use kvferry_engine::{LayoutView, Peer, RemoteLayout};
use tokio::runtime::Runtime;

use crate::cli::Op;
use crate::engine_run::{self, Blocks, EngineFacts};
use crate::floor::{Connections, Job};
use crate::measure::{Clocked, race};
use crate::orders::{Answer, Order};
use crate::pattern::Mismatch;
use crate::shape::{End, Placement, Shape};
use crate::side::{Setup, Side};
use crate::target_process::{TargetProcess, unexpected};

/// How the engine is asked to carry the blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) op: Op,
    /// Submitting threads.
    pub(crate) threads: u32,
    /// Transfers that each of them keeps open.
    pub(crate) in_flight: u32,
}

/// What one run came to.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) elapsed: Duration,
    /// Processor time of this process.
    pub(crate) initiator_cpu: Duration,
    /// Processor time of the other.
    pub(crate) target_cpu: Duration,
    /// The first block that did not arrive as it should.
    pub(crate) mismatch: Option<Mismatch>,
}

/// The two processes.
#[derive(Debug)]
pub(crate) struct Pair {
    // Before the engine that it leads to, so that connections end at this end.
    peer: Peer,
    side: Side,
    target: TargetProcess,
    runtime: Runtime,
    connections: Connections,
    /// The order of the blocks at the target.
    there: Placement,
    locals: Vec<LayoutView>,
    remotes: Vec<RemoteLayout>,
    round: u64,
    page_bytes: usize,
    floor_port: u16,
    shapes: u64,
}

impl Pair {
    /// Starts the other process, and an engine in each.
    pub(crate) fn start(setup: Setup) -> anyhow::Result<Self> {
        let mut target = TargetProcess::spawn()?;
        target.order(&Order::Start(setup))?;
        // Both allocate at the same time.
        let side = Side::start(End::Initiator, setup)?;
        let (address, target_page_bytes, floor_port) = match target.answer()? {
            Answer::Started { address, page_bytes, floor_port } => {
                (address, page_bytes, floor_port)
            }
            other => return Err(unexpected(&other)),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("starting a runtime")?;
        let peer = runtime
            .block_on(side.engine().connect(address.as_str()))
            .context("connecting to the target's engine")?;
        let there = side.placement_at(End::Target);
        let page_bytes = side.region().page_bytes().min(target_page_bytes);
        Ok(Self {
            peer,
            side,
            target,
            runtime,
            connections: Connections::default(),
            there,
            locals: Vec::new(),
            remotes: Vec::new(),
            round: 0,
            page_bytes,
            floor_port,
            shapes: 0,
        })
    }

    /// Divides both regions into blocks of this shape.
    pub(crate) fn place(&mut self, shape: Shape) -> anyhow::Result<()> {
        self.shapes += 1;
        // A name is told to peers once.
        let name = format!("kvbench.{}", self.shapes);
        self.target.tell(&Order::Place { name: name.clone(), shape })?;
        self.side.place(shape)?;
        self.there = self.side.placement_at(End::Target);
        self.locals = self.side.layouts()?;
        self.runtime.block_on(self.peer.ready()).context("asking the target for its layouts")?;
        let remotes = (0..shape.layers).map(|layer| self.peer.layout(&format!("{name}.{layer}")));
        self.remotes = remotes.collect::<Result<_, _>>().context("finding the target's layouts")?;
        Ok(())
    }

    /// Opens the floor's connections, for up to so many threads.
    pub(crate) fn open_floor(&mut self, threads: u32) -> anyhow::Result<()> {
        let target = &mut self.target;
        let accept = |ports| target.tell(&Order::Accept { ports });
        self.connections = Connections::open(self.floor_port, threads, accept)?;
        Ok(())
    }

    /// The size of the pages behind the regions: the smaller one where they differ.
    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Has the engine carry every block once.
    pub(crate) fn run_engine(&mut self, load: &Load) -> anyhow::Result<(Sample, EngineFacts)> {
        self.fill(load.op)?;
        let here = self.side.placement();
        let (locals, remotes) = (&self.locals, &self.remotes);
        let blocks = Blocks { here, there: &self.there, locals, remotes };
        let workers = engine_run::workers(load, &self.peer, &blocks)?;
        self.target.order(&Order::Cpu)?;
        let before = self.target.cpu_answer()?;
        let clocked = race(workers).map_err(|error| self.target.explain(error))?;
        self.target.order(&Order::Cpu)?;
        let after = self.target.cpu_answer()?;
        let sample = self.sample(load.op, &clocked, after.saturating_sub(before))?;
        Ok((sample, EngineFacts::sum(clocked.results)?))
    }

    /// Has the floor carry every block once.
    pub(crate) fn run_floor(&mut self, job: &Job) -> anyhow::Result<Sample> {
        self.fill(job.op)?;
        let (region, placement) = (self.side.region(), self.side.placement());
        let workers = self.connections.workers(job, region, placement)?;
        self.target.order(&Order::Floor(*job))?;
        let before = self.target.cpu_answer()?;
        let op = job.op;
        let workers = workers.into_iter().map(|mut worker| move || worker.run(op)).collect();
        let clocked = race(workers).map_err(|error| self.target.explain(error))?;
        let after = self.target.cpu_answer()?;
        self.sample(job.op, &clocked, after.saturating_sub(before))
    }

    /// A new round's content at the source.
    fn fill(&mut self, op: Op) -> anyhow::Result<()> {
        self.round += 1;
        let round = self.round;
        match op {
            Op::Write => self.side.fill(round),
            Op::Read => self.target.tell(&Order::Fill { round }),
        }
    }

    /// Checks the destination, now that the clock has stopped.
    fn sample<T>(
        &mut self,
        op: Op,
        clocked: &Clocked<T>,
        target_cpu: Duration,
    ) -> anyhow::Result<Sample> {
        let round = self.round;
        let mismatch = match op {
            Op::Read => self.side.verify(round)?,
            Op::Write => match self.target.ask(&Order::Verify { round })? {
                Answer::Verified { mismatch } => mismatch,
                other => return Err(unexpected(&other)),
            },
        };
        ensure!(!clocked.elapsed.is_zero(), "the clock stood still");
        let (elapsed, initiator_cpu) = (clocked.elapsed, clocked.cpu);
        Ok(Sample { elapsed, initiator_cpu, target_cpu, mismatch })
    }
}
