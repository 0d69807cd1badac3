//! Both processes as one thing to measure: what is moved, by the engine or by the floor, is filled
//! before and verified after, outside the clock.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use kvferry_engine::{LayoutView, Peer, RdmaCounts, RemoteLayout};
use tokio::runtime::Runtime;

use crate::calls::CallCounter;
use crate::cli::{Op, Transport};
use crate::control::{Answer, Link, Order, Whereabouts, unexpected};
use crate::counted::Counted;
use crate::engine_run::{self, Blocks, Carried, EngineFacts};
use crate::floor::{Connections, Floor, Job, Messages, Strategy, Twin, Way};
use crate::measure::{Clocked, race};
use crate::memory;
use crate::pace::Pace;
use crate::pattern::Mismatch;
use crate::shape::{End, Placement, Shape};
use crate::side::{Setup, Side};

/// Up to so many bytes a transfer is small, to engines as they are by default.
const SMALL_BYTES: u64 = 64 << 10;

/// How long the other process may be silent unless somebody says otherwise, in seconds.
pub(crate) const PATIENCE_S: u64 = 10;

/// How the engine is asked to carry the blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) op: Op,
    /// Submitting threads.
    pub(crate) threads: u32,
    /// Transfers that each of them keeps open.
    pub(crate) in_flight: u32,
    pub(crate) pace: Pace,
    /// Blocks in each transfer, where they are moved one after another.
    pub(crate) transfer_blocks: Option<u64>,
}

impl Load {
    /// The floor's run of the same.
    pub(crate) fn job(&self, part: u32, strategy: Strategy) -> Job {
        let Self { op, threads, pace, transfer_blocks, .. } = *self;
        Job { part, op, strategy, threads, pace, transfer_blocks }
    }

    /// Without the pauses, where there are some.
    fn busy(&self, clocked: Duration, threads: impl Iterator<Item = Duration>) -> Duration {
        match self.pace {
            Pace::Bulk => clocked,
            Pace::Hot | Pace::Cold => threads.max().unwrap_or(clocked),
        }
    }
}

/// What one run came to.
#[derive(Debug)]
pub(crate) struct Sample {
    /// The pauses between transfers left out.
    pub(crate) elapsed: Duration,
    /// Processor time of this process.
    pub(crate) initiator_cpu: Duration,
    /// Processor time of the other.
    pub(crate) target_cpu: Duration,
    /// The first block that did not arrive as it should.
    pub(crate) mismatch: Option<Mismatch>,
}

/// Where the other process is, and how long it is waited for.
#[derive(Clone, Debug)]
pub(crate) struct Other {
    pub(crate) whereabouts: Whereabouts,
    pub(crate) patience: Duration,
}

impl Default for Other {
    /// A process that is started here.
    fn default() -> Self {
        Self { whereabouts: Whereabouts::here(), patience: Duration::from_secs(PATIENCE_S) }
    }
}

/// One shape of blocks in both regions.
#[derive(Debug)]
struct Part {
    here: Placement,
    there: Placement,
    locals: Vec<LayoutView>,
    remotes: Vec<RemoteLayout>,
}

/// The two processes.
#[derive(Debug)]
pub(crate) struct Pair {
    // Before the engine that it leads to, so that connections end at this end.
    peer: Peer,
    side: Side,
    target: Link,
    runtime: Runtime,
    connections: Connections,
    twin: Option<Twin>,
    parts: Vec<Part>,
    round: u64,
    page_bytes: usize,
    floor: FloorDoor,
    shapes: u64,
}

/// Where the target accepts the floor's connections.
#[derive(Clone, Copy, Debug)]
struct FloorDoor {
    address: SocketAddr,
    token: u64,
}

impl Pair {
    /// Finds the other process, and starts an engine in each.
    pub(crate) fn start(setup: Setup, other: &Other) -> anyhow::Result<Self> {
        // A child takes as much again.
        let here = match other.whereabouts {
            Whereabouts::Here { .. } => setup.region_bytes.saturating_mul(2),
            Whereabouts::There(_) => setup.region_bytes,
        };
        memory::ensure_room(here, None)?;
        let mut target = Link::open(&other.whereabouts, other.patience)?;
        target.order(&Order::Start(setup))?;
        // Both allocate at the same time.
        let side = Side::start(End::Initiator, setup, target.local())?;
        let (engine_port, target_page_bytes, floor) =
            match target.answer_after_work(setup.region_bytes)? {
                Answer::Started { engine_port, page_bytes, floor_port, floor_token } => {
                    let address = target.remote(floor_port);
                    (engine_port, page_bytes, FloorDoor { address, token: floor_token })
                }
                other => return Err(unexpected(&other)),
            };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("starting a runtime")?;
        let address = target.remote(engine_port).to_string();
        let peer = runtime
            .block_on(side.engine().connect(address.as_str()))
            .context("connecting to the target's engine")
            .map_err(|error| target.explain(error))?;
        let page_bytes = side.region().page_bytes().min(target_page_bytes);
        Ok(Self {
            peer,
            side,
            target,
            runtime,
            connections: Connections::default(),
            twin: None,
            parts: Vec::new(),
            round: 0,
            page_bytes,
            floor,
            shapes: 0,
        })
    }

    /// Divides both regions into blocks of these shapes, each a part.
    pub(crate) fn place(&mut self, shapes: &[Shape]) -> anyhow::Result<()> {
        self.parts.clear();
        for (part, shape) in (0..).zip(shapes) {
            self.shapes += 1;
            // A name is told to peers once.
            let name = format!("kvbench.{}", self.shapes);
            let order = Order::Place { name: name.clone(), part, shape: *shape };
            self.target.tell(&order, shape.bytes())?;
            self.side.place(part, *shape)?;
            self.runtime
                .block_on(self.peer.ready())
                .with_context(|| format!("asking {} for its layouts", self.target.name()))?;
            let remotes =
                (0..shape.layers).map(|layer| self.peer.layout(&format!("{name}.{layer}")));
            self.parts.push(Part {
                here: self.side.placement(part)?.clone(),
                there: self.side.order(*shape, End::Target),
                locals: self.side.layouts(part)?,
                remotes: remotes
                    .collect::<Result<_, _>>()
                    .context("finding the target's layouts")?,
            });
        }
        Ok(())
    }

    /// Opens the floor's connections, for up to so many threads.
    pub(crate) fn open_floor(&mut self, threads: u32) -> anyhow::Result<()> {
        let target = &mut self.target;
        let accept = |count| target.tell(&Order::Accept { count }, 0);
        self.connections =
            Connections::open(self.floor.address, self.floor.token, threads, accept)?;
        Ok(())
    }

    /// Makes what the floor copies to and from within this process.
    pub(crate) fn make_twin(&mut self) -> anyhow::Result<()> {
        memory::ensure_room(self.side.region().length(), None)?;
        self.twin = Some(self.side.twin()?);
        Ok(())
    }

    /// What the floor may do of what the engine did in so many slices.
    pub(crate) fn floors(&self, load: &Load, slices: u64) -> anyhow::Result<Vec<Floor>> {
        if self.side.transport() == Transport::Rdma {
            return Ok(vec![Floor::Perftest]);
        }
        if self.twin.is_none() {
            return Ok(Strategy::ALL.map(Floor::Tcp).into());
        }
        let bytes = self.parts.first().context("no part was placed")?.here.shape().bytes();
        let transfers = u64::from(load.threads) * u64::from(load.in_flight);
        // What is small goes by a lane of its own, which is one thread's.
        let is_small = bytes <= SMALL_BYTES * transfers;
        let threads = if is_small { 1 } else { self.peer.status().bulk_threads };
        let threads = u32::try_from(slices.clamp(1, threads.max(1).try_into()?))?;
        let ways = Way::of(self.side.memory()).iter();
        Ok(ways.map(|way| Floor::Local(*way, threads)).collect())
    }

    /// The size of the pages behind the regions: the smaller one where they differ.
    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// The peer, and what transfers of a part are made of.
    pub(crate) fn blocks(&self, part: u32) -> anyhow::Result<(&Peer, Blocks<'_>)> {
        let part = self.parts.get(usize::try_from(part)?).context("no such part was placed")?;
        let Part { here, there, locals, remotes } = part;
        Ok((&self.peer, Blocks { here, there, locals, remotes }))
    }

    /// Has the engine carry every block of the first part once.
    pub(crate) fn run_engine(&mut self, load: &Load) -> anyhow::Result<(Sample, EngineFacts)> {
        let round = self.fill(0, load.op)?;
        let (peer, blocks) = self.blocks(0)?;
        let workers = engine_run::workers(load, peer, &blocks)?;
        let clocked = self.clocked(|| race(workers))?;
        let busy = |thread: &Vec<Carried>| thread.iter().map(|carried| carried.latency).sum();
        let elapsed = load.busy(clocked.elapsed, clocked.results.iter().map(busy));
        let mismatch = self.verify(0, load.op, round)?;
        let sample = Sample { elapsed, mismatch, ..clocked.sample()? };
        let lanes = self.peer.status().open_lanes;
        Ok((sample, EngineFacts::sum(clocked.results, lanes)?))
    }

    /// Has the floor carry every block of the first part once. Beside the sample, how long each of
    /// its transfers took.
    pub(crate) fn run_floor(
        &mut self,
        load: &Load,
        floor: Floor,
    ) -> anyhow::Result<(Sample, Vec<Duration>)> {
        match floor {
            Floor::Tcp(strategy) => self.run_connections(load, strategy),
            Floor::Local(way, threads) => self.run_copies(load.op, way, threads),
            Floor::Perftest => self.run_perftest(load.op),
        }
    }

    fn run_perftest(&mut self, op: Op) -> anyhow::Result<(Sample, Vec<Duration>)> {
        let shape = self.parts.first().context("no part was placed")?.here.shape();
        let messages = Messages { op, bytes: shape.block_bytes, count: shape.count() };
        messages.check()?;
        let port = match self.target.ask_for_work(&Order::Perftest(messages), shape.bytes())? {
            Answer::Listening { port } => port,
            other => return Err(unexpected(&other)),
        };
        let server = self.target.remote(port).ip();
        let elapsed = messages.run(server, port).map_err(|error| self.target.explain(error))?;
        self.target.tell(&Order::PerftestOver, shape.bytes())?;
        let (initiator_cpu, target_cpu) = (Duration::ZERO, Duration::ZERO);
        let sample = Sample { elapsed, initiator_cpu, target_cpu, mismatch: None };
        Ok((sample, Vec::new()))
    }

    /// What the engine's adapters, and both processes of this host, have done to carry every block of
    /// the first part once.
    pub(crate) fn count(&mut self, load: &Load) -> anyhow::Result<(Counted, Option<Mismatch>)> {
        let round = self.fill(0, load.op)?;
        let (peer, blocks) = self.blocks(0)?;
        let workers = engine_run::workers(load, peer, &blocks)?;
        let before = self.work()?;
        let there = self.target.child().context("the target is not of this host");
        let counting = there.and_then(|there| Ok((CallCounter::start()?, there)));
        race(workers).map_err(|error| self.target.explain(error))?;
        let calls =
            counting.and_then(|(counter, there)| counter.stop(&[std::process::id(), there]));
        let after = self.work()?;
        let mismatch = self.verify(0, load.op, round)?;
        Ok((Counted { work: Counted::between(before, after), calls }, mismatch))
    }

    /// What the adapters of both engines were asked to do so far.
    fn work(&mut self) -> anyhow::Result<RdmaCounts> {
        match self.target.ask_for_work(&Order::Work, 0)? {
            Answer::Work { requests, doorbells, completions, armed } => {
                let there = RdmaCounts { requests, doorbells, completions, armed };
                Ok(there.plus(self.side.engine().status().rdma))
            }
            other => Err(unexpected(&other)),
        }
    }

    fn run_copies(
        &mut self,
        op: Op,
        way: Way,
        threads: u32,
    ) -> anyhow::Result<(Sample, Vec<Duration>)> {
        let twin = self.twin.as_ref().context("no twin was made")?;
        let part = self.parts.first().context("no part was placed")?;
        let other = self.side.region();
        self.round += 1;
        let pattern = self.side.pattern(self.round);
        let workers = twin.workers(op, (way, threads), (other, &part.here), &part.there)?;
        // In its order the content of a block is found by its number.
        let ((source, from), (target, to)) = match op {
            Op::Write => ((other, &part.here), (twin.region(), &part.there)),
            Op::Read => ((twin.region(), &part.there), (other, &part.here)),
        };
        pattern.fill(source, from.all())?;
        let clocked = race(workers.into_iter().map(|worker| move || worker.run()).collect())?;
        let mismatch = pattern.verify(target, to.all())?;
        let sample = Sample { mismatch, ..clocked.sample()? };
        Ok((sample, clocked.results.into_iter().flatten().collect()))
    }

    fn run_connections(
        &mut self,
        load: &Load,
        strategy: Strategy,
    ) -> anyhow::Result<(Sample, Vec<Duration>)> {
        let round = self.fill(0, load.op)?;
        let job = load.job(0, strategy);
        let (region, placement) = (self.side.region(), self.side.placement(0)?);
        let workers = self.connections.workers(&job, region, placement)?;
        self.target.order(&Order::Floor(job))?;
        let before = self.target.cpu_answer()?;
        let op = job.op;
        let workers = workers.into_iter().map(|mut worker| move || worker.run(op)).collect();
        let mut clocked = race(workers).map_err(|error| self.target.explain(error))?;
        let after = self.target.cpu_answer()?;
        clocked.target_cpu = after.saturating_sub(before);
        let busy = |thread: &Vec<Duration>| thread.iter().sum();
        let elapsed = load.busy(clocked.elapsed, clocked.results.iter().map(busy));
        let mismatch = self.verify(0, op, round)?;
        let sample = Sample { elapsed, mismatch, ..clocked.sample()? };
        Ok((sample, clocked.results.into_iter().flatten().collect()))
    }

    /// Does something under the clock, and adds the target's processor time meanwhile.
    fn clocked<T>(
        &mut self,
        work: impl FnOnce() -> anyhow::Result<Clocked<T>>,
    ) -> anyhow::Result<Clocked<T>> {
        self.target.order(&Order::Cpu)?;
        let before = self.target.cpu_answer()?;
        let mut clocked = work().map_err(|error| self.target.explain(error))?;
        self.target.order(&Order::Cpu)?;
        clocked.target_cpu = self.target.cpu_answer()?.saturating_sub(before);
        Ok(clocked)
    }

    /// Does something, and explains by what became of the target why that failed.
    pub(crate) fn attempt<T>(
        &mut self,
        work: impl FnOnce(&Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        work(self).map_err(|error| self.target.explain(error))
    }

    /// A new round's content at the source: the round.
    pub(crate) fn fill(&mut self, part: u32, op: Op) -> anyhow::Result<u64> {
        self.round += 1;
        let round = self.round;
        let bytes = self.side.placement(part)?.shape().bytes();
        match op {
            Op::Write => self.side.fill(part, round)?,
            Op::Read => self.target.tell(&Order::Fill { part, round }, bytes)?,
        }
        Ok(round)
    }

    /// Checks the destination of a round, once the clock has stopped.
    pub(crate) fn verify(
        &mut self,
        part: u32,
        op: Op,
        round: u64,
    ) -> anyhow::Result<Option<Mismatch>> {
        let bytes = self.side.placement(part)?.shape().bytes();
        match op {
            Op::Read => self.side.verify(part, round),
            Op::Write => match self.target.ask_for_work(&Order::Verify { part, round }, bytes)? {
                Answer::Verified { mismatch } => Ok(mismatch),
                other => Err(unexpected(&other)),
            },
        }
    }
}

impl<T> Clocked<T> {
    fn sample(&self) -> anyhow::Result<Sample> {
        ensure!(!self.elapsed.is_zero(), "the clock stood still");
        Ok(Sample {
            elapsed: self.elapsed,
            initiator_cpu: self.cpu,
            target_cpu: self.target_cpu,
            mismatch: None,
        })
    }
}
