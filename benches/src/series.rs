//! One combination: warm-up, calibration of the floor, and iterations of engine and floor in turn.

use std::time::Duration;

use anyhow::{Context, ensure};

use crate::cli::{Memory, Transport};
use crate::counted::Counted;
use crate::engine_run::EngineFacts;
use crate::floor::{Floor, Strategy};
use crate::pace::Pace;
use crate::pair::{Load, Pair, Sample};
use crate::pattern::Mismatch;
use crate::progress::Progress;
use crate::report::{Run, SYSTEM};
use crate::shape::Shape;
use crate::stats::{Percentiles, median, micros, range};
use kvferry_engine::RdmaCounts;
use kvferry_engine::size::Size;

/// How often a strategy is tried before one is chosen.
const TRIES: u32 = 3;

/// A floor below this share of iperf3's best is not the machine's.
pub(crate) const FLOOR_WORTH: f64 = 0.95;

/// What is measured below this is a round trip, of which the rate of a stream says nothing.
const RATE_BYTES: u64 = 1 << 20;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Series {
    pub(crate) shape: Shape,
    pub(crate) load: Load,
    pub(crate) transport: Transport,
    pub(crate) memory: Memory,
    pub(crate) iterations: u32,
    pub(crate) floor: bool,
    /// One more run is counted.
    pub(crate) counts: bool,
    pub(crate) contiguous: bool,
    pub(crate) seed: u64,
    pub(crate) iperf3_gbps: Option<f64>,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) run: Run,
    /// The first block that did not arrive, and who carried it.
    pub(crate) mismatch: Option<(&'static str, Mismatch)>,
}

/// All runs of a kind.
#[derive(Debug, Default)]
struct Samples(Vec<Sample>);

/// The floor's runs.
#[derive(Debug)]
struct FloorRuns {
    floor: Floor,
    samples: Samples,
    /// Of its transfers, run by run.
    latencies: Vec<Vec<Duration>>,
}

/// All that the figures are made of.
#[derive(Debug)]
struct Measured {
    engine: Samples,
    /// Of its transfers, run by run.
    latencies: Vec<Vec<Duration>>,
    posts: Vec<Duration>,
    /// Run by run.
    planning_shares: Vec<f64>,
    /// Of the last run: they are all alike.
    facts: EngineFacts,
    floor: Option<FloorRuns>,
    counted: Option<Counted>,
    page_bytes: usize,
    verified: bool,
}

impl Series {
    /// Measures it. The pair has the series' shape.
    pub(crate) fn measure(
        &self,
        pair: &mut Pair,
        progress: &mut Progress,
    ) -> anyhow::Result<Finished> {
        let name = self.name()?;
        let mut mismatch = None;
        let mut note = |carrier, sample: &Sample| {
            if mismatch.is_none() {
                mismatch = sample.mismatch.clone().map(|found| (carrier, found));
            }
        };

        progress.begin(&name);
        let (warm_up, mut facts) = pair.run_engine(&self.load)?;
        note("the engine", &warm_up);
        ensure!(
            self.transport.permits(facts.transport),
            "the engine used {} where {:?} was demanded",
            facts.transport,
            self.transport
        );
        let mut floor = None;
        if self.floor {
            let chosen = self.calibrate(pair, facts.slices, |floor, sample| {
                progress.show(format_args!("{name}: calibrating the floor, {floor}"));
                note("the floor", sample);
            })?;
            let (samples, latencies) = (Samples::default(), Vec::new());
            floor = Some(FloorRuns { floor: chosen, samples, latencies });
        }

        let (mut engine, mut latencies) = (Samples::default(), Vec::new());
        let (mut posts, mut planning_shares) = (Vec::new(), Vec::new());
        for iteration in 0..self.iterations {
            progress.advance(&name, iteration, self.iterations);
            // Whoever is first finds the caches as the last pair left them: they take turns.
            let floor_first = iteration % 2 == 1;
            if floor_first {
                self.add_floor(pair, &mut floor, &mut note)?;
            }
            let (sample, said) = pair.run_engine(&self.load)?;
            note("the engine", &sample);
            engine.0.push(sample);
            latencies.push(said.latencies.clone());
            posts.extend_from_slice(&said.posts);
            planning_shares.push(said.planning_share);
            facts = said;
            if !floor_first {
                self.add_floor(pair, &mut floor, &mut note)?;
            }
        }
        let mut counted = None;
        if self.counts {
            progress.show(format_args!("{name}: counting"));
            let (counts, found) = pair.count(&self.load)?;
            mismatch = mismatch.or(found.map(|found| ("the engine", found)));
            counted = Some(counts);
        }
        let measured = Measured {
            engine,
            latencies,
            posts,
            planning_shares,
            facts,
            floor,
            counted,
            page_bytes: pair.page_bytes(),
            verified: mismatch.is_none(),
        };
        Ok(Finished { run: self.figures(&measured)?, mismatch })
    }

    /// One more run of the floor, if there is one.
    fn add_floor(
        &self,
        pair: &mut Pair,
        floor: &mut Option<FloorRuns>,
        note: &mut impl FnMut(&'static str, &Sample),
    ) -> anyhow::Result<()> {
        if let Some(floor) = floor {
            let (sample, latencies) = pair.run_floor(&self.load, floor.floor)?;
            note("the floor", &sample);
            floor.samples.0.push(sample);
            floor.latencies.push(latencies);
        }
        Ok(())
    }

    fn name(&self) -> anyhow::Result<String> {
        let Load { op, threads, in_flight, pace, .. } = self.load;
        Ok(format!(
            "{op} {} in blocks of {}, {pace}, {threads} x {in_flight}",
            size(self.shape.bytes())?,
            size(self.shape.block_bytes)?
        ))
    }

    /// The strategy whose median is the shortest. Transfers one after another wait as the engine
    /// does: there is nothing to choose.
    fn calibrate(
        &self,
        pair: &mut Pair,
        slices: u64,
        mut tried: impl FnMut(Floor, &Sample),
    ) -> anyhow::Result<Floor> {
        if self.load.pace != Pace::Bulk {
            let paced = Floor::Tcp(Strategy::PACED);
            let (warm_up, _) = pair.run_floor(&self.load, paced)?;
            tried(paced, &warm_up);
            return Ok(paced);
        }
        let floors = pair.floors(&self.load, slices)?;
        // Its processes are new each time: there is nothing to warm up, or to choose from.
        if let [only @ Floor::Perftest] = floors[..] {
            return Ok(only);
        }
        let mut best: Option<(f64, Floor)> = None;
        for floor in floors {
            let mut samples = Samples::default();
            for _ in 0..TRIES {
                let (sample, _) = pair.run_floor(&self.load, floor)?;
                tried(floor, &sample);
                samples.0.push(sample);
            }
            let gbps = samples.gbps(self.shape.bytes())?;
            if best.is_none_or(|(best_gbps, _)| gbps > best_gbps) {
                best = Some((gbps, floor));
            }
        }
        best.map(|(_, floor)| floor).context("the floor has no strategy")
    }

    fn figures(&self, measured: &Measured) -> anyhow::Result<Run> {
        let Measured { engine, facts, .. } = measured;
        let floor = measured.floor.as_ref();
        let bytes = self.shape.bytes();
        let times = Percentiles::of(&measured.latencies.concat()).context("nothing was timed")?;
        let post = Percentiles::of(&measured.posts).context("nothing was submitted")?;
        let cpu = |sample: &Sample| sample.initiator_cpu + sample.target_cpu;
        let (gbps_min, gbps_max) = engine.gbps_range(bytes)?;
        let costed = floor.filter(|floor| floor.floor.is_costed());
        let of_floor = |figure: fn(&Samples, u64) -> anyhow::Result<f64>| {
            floor.map(|floor| figure(&floor.samples, bytes)).transpose()
        };
        let cost_of_floor = |figure: fn(&Samples, u64) -> anyhow::Result<f64>| {
            costed.map(|floor| figure(&floor.samples, bytes)).transpose()
        };
        let floor_gbps = of_floor(Samples::gbps)?;
        let floor_range = floor.map(|floor| floor.samples.gbps_range(bytes)).transpose()?;
        let ratios: Option<Vec<f64>> = floor.map(|floor| engine.ratios(&floor.samples));
        let ratio_range = ratios.as_deref().and_then(range);
        let paced = floor.filter(|_| self.load.pace != Pace::Bulk);
        let floor_times = paced.and_then(|floor| Percentiles::of(&floor.latencies.concat()));
        let p50_ratios =
            paced.and_then(|floor| ratios_of_medians(&measured.latencies, &floor.latencies));
        let p50_range = p50_ratios.as_deref().and_then(range);
        let per_gib = f64::from(1 << 30) / bytes as f64;
        let counted = measured.counted.as_ref();
        let adapters = counted.filter(|_| facts.transport == "rdma").map(|counted| counted.work);
        let adapters =
            |count: fn(RdmaCounts) -> u64| adapters.map(|work| count(work) as f64 * per_gib);
        let is_stream = bytes >= RATE_BYTES && self.load.pace == Pace::Bulk;
        let iperf3_gbps = self.iperf3_gbps.filter(|_| is_stream);
        let counts = |(floor, iperf3)| floor >= FLOOR_WORTH * iperf3;
        let transfers = facts.latencies.len();
        Ok(Run {
            system: SYSTEM,
            transport: facts.transport,
            lanes: facts.lanes,
            memory: self.memory,
            op: self.load.op,
            pace: self.load.pace,
            block_bytes: self.shape.block_bytes,
            total_bytes: bytes,
            transfers,
            transfer_blocks: self.shape.count().div_ceil(u64::try_from(transfers)?.max(1)),
            threads: self.load.threads,
            in_flight: self.load.in_flight,
            contiguous: self.contiguous,
            iterations: self.iterations,
            seed: self.seed,
            verified: measured.verified,
            gbps: engine.gbps(bytes)?,
            gbps_min,
            gbps_max,
            p50_us: times.p50_us,
            p99_us: times.p99_us,
            p999_us: times.p999_us,
            post_us: post.p50_us,
            planning_share: median(&measured.planning_shares).context("nothing was planned")?,
            block_us: engine.median_of(|sample| micros(sample.elapsed))?
                / self.shape.count() as f64,
            cpu_s_per_gib: engine.per_gib(bytes, cpu)?,
            initiator_cpu_s_per_gib: engine.initiator_cpu(bytes)?,
            target_cpu_s_per_gib: engine.target_cpu(bytes)?,
            descriptors: facts.descriptors,
            slices: facts.slices,
            page_kib: measured.page_bytes >> 10,
            floor_gbps,
            floor_gbps_min: floor_range.map(|(slowest, _)| slowest),
            floor_gbps_max: floor_range.map(|(_, fastest)| fastest),
            floor_ratio: ratios.as_deref().and_then(median),
            floor_ratio_min: ratio_range.map(|(smallest, _)| smallest),
            floor_ratio_max: ratio_range.map(|(_, largest)| largest),
            floor_p50_us: floor_times.map(|times| times.p50_us),
            floor_p99_us: floor_times.map(|times| times.p99_us),
            floor_p999_us: floor_times.map(|times| times.p999_us),
            p50_of_floor: p50_ratios.as_deref().and_then(median),
            p50_of_floor_min: p50_range.map(|(smallest, _)| smallest),
            p50_of_floor_max: p50_range.map(|(_, largest)| largest),
            p99_of_floor: floor_times.map(|floor| times.p99_us / floor.p99_us),
            floor_strategy: floor.map(|floor| floor.floor.to_string()),
            floor_cpu_s_per_gib: costed
                .map(|floor| floor.samples.per_gib(bytes, cpu))
                .transpose()?,
            floor_initiator_cpu_s_per_gib: cost_of_floor(Samples::initiator_cpu)?,
            floor_target_cpu_s_per_gib: cost_of_floor(Samples::target_cpu)?,
            iperf3_gbps,
            floor_counts: floor_gbps.zip(iperf3_gbps).map(counts),
            rdma_requests_per_gib: adapters(|work| work.requests),
            rdma_doorbells_per_gib: adapters(|work| work.doorbells),
            rdma_completions_per_gib: adapters(|work| work.completions),
            rdma_armed_per_gib: adapters(|work| work.armed),
            system_calls_per_gib: counted
                .and_then(Counted::calls)
                .map(|calls| calls as f64 * per_gib),
            system_calls: counted.map(|counted| counted.most_frequent(per_gib)),
        })
    }
}

/// How many times as long the median transfer took as the other's, pair by pair.
fn ratios_of_medians(own: &[Vec<Duration>], other: &[Vec<Duration>]) -> Option<Vec<f64>> {
    let p50 = |latencies: &Vec<Duration>| Percentiles::of(latencies).map(|times| times.p50_us);
    own.iter().zip(other).map(|(own, other)| Some(p50(own)? / p50(other)?)).collect()
}

impl Samples {
    /// 1e9 bytes a second.
    fn gbps(&self, bytes: u64) -> anyhow::Result<f64> {
        median(&self.rates(bytes)).context("nothing was measured")
    }

    fn gbps_range(&self, bytes: u64) -> anyhow::Result<(f64, f64)> {
        range(&self.rates(bytes)).context("nothing was measured")
    }

    fn rates(&self, bytes: u64) -> Vec<f64> {
        let rate = |sample: &Sample| bytes as f64 / sample.elapsed.as_secs_f64() / 1e9;
        self.0.iter().map(rate).collect()
    }

    fn initiator_cpu(&self, bytes: u64) -> anyhow::Result<f64> {
        self.per_gib(bytes, |sample| sample.initiator_cpu)
    }

    fn target_cpu(&self, bytes: u64) -> anyhow::Result<f64> {
        self.per_gib(bytes, |sample| sample.target_cpu)
    }

    /// Seconds for every 2^30 bytes.
    fn per_gib(&self, bytes: u64, spent: impl Fn(&Sample) -> Duration) -> anyhow::Result<f64> {
        let gib = bytes as f64 / f64::from(1 << 30);
        self.median_of(|sample| spent(sample).as_secs_f64() / gib)
    }

    fn median_of(&self, figure: impl Fn(&Sample) -> f64) -> anyhow::Result<f64> {
        median(&self.0.iter().map(figure).collect::<Vec<_>>()).context("nothing was measured")
    }

    /// How many times as fast as the other, pair by pair.
    fn ratios(&self, other: &Self) -> Vec<f64> {
        let pairs = self.0.iter().zip(&other.0);
        pairs.map(|(own, other)| other.elapsed.as_secs_f64() / own.elapsed.as_secs_f64()).collect()
    }
}

fn size(bytes: u64) -> anyhow::Result<Size> {
    let bytes = std::num::NonZeroU64::new(bytes).context("nothing to move")?;
    Ok(Size::from(bytes))
}
