//! One combination: warm-up, calibration of the floor, and iterations of engine and floor in turn.

use std::time::Duration;

use anyhow::{Context, ensure};

use crate::cli::Transport;
use crate::engine_run::EngineFacts;
use crate::floor::{Job, Strategy};
use crate::pair::{Load, Pair, Sample};
use crate::pattern::Mismatch;
use crate::progress::Progress;
use crate::report::Run;
use crate::shape::Shape;
use crate::size::Size;
use crate::stats::{median, percentile, range};

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
    pub(crate) iterations: u32,
    pub(crate) floor: bool,
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
    strategy: Strategy,
    samples: Samples,
}

/// All that the figures are made of.
#[derive(Debug)]
struct Measured {
    engine: Samples,
    latencies: Vec<Duration>,
    /// Of the last run: they are all alike.
    facts: EngineFacts,
    floor: Option<FloorRuns>,
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
        let name = format!(
            "{} {} in blocks of {}",
            self.load.op,
            size(self.shape.bytes())?,
            size(self.shape.block_bytes)?
        );
        let mut mismatch = None;
        let mut note = |carrier, sample: &Sample| {
            if mismatch.is_none() {
                mismatch = sample.mismatch.clone().map(|found| (carrier, found));
            }
        };

        progress.show(format_args!("{name}: warming up"));
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
            let strategy = self.calibrate(pair, |strategy, sample| {
                progress.show(format_args!("{name}: calibrating the floor, {strategy}"));
                note("the floor", sample);
            })?;
            floor = Some(FloorRuns { strategy, samples: Samples::default() });
        }

        let (mut engine, mut latencies) = (Samples::default(), Vec::new());
        for iteration in 0..self.iterations {
            progress.show(format_args!("{name}: {} of {}", iteration + 1, self.iterations));
            // Whoever is first finds the caches as the last pair left them: they take turns.
            let floor_first = iteration % 2 == 1;
            if floor_first {
                self.add_floor(pair, &mut floor, &mut note)?;
            }
            let (sample, said) = pair.run_engine(&self.load)?;
            note("the engine", &sample);
            engine.0.push(sample);
            latencies.extend_from_slice(&said.latencies);
            facts = said;
            if !floor_first {
                self.add_floor(pair, &mut floor, &mut note)?;
            }
        }
        let measured = Measured {
            engine,
            latencies,
            facts,
            floor,
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
            let sample = pair.run_floor(&self.job(floor.strategy))?;
            note("the floor", &sample);
            floor.samples.0.push(sample);
        }
        Ok(())
    }

    /// The strategy whose median is the shortest.
    fn calibrate(
        &self,
        pair: &mut Pair,
        mut tried: impl FnMut(Strategy, &Sample),
    ) -> anyhow::Result<Strategy> {
        let mut best: Option<(f64, Strategy)> = None;
        for strategy in Strategy::ALL {
            let mut samples = Samples::default();
            for _ in 0..TRIES {
                let sample = pair.run_floor(&self.job(strategy))?;
                tried(strategy, &sample);
                samples.0.push(sample);
            }
            let gbps = samples.gbps(self.shape.bytes())?;
            if best.is_none_or(|(best_gbps, _)| gbps > best_gbps) {
                best = Some((gbps, strategy));
            }
        }
        best.map(|(_, strategy)| strategy).context("the floor has no strategy")
    }

    fn job(&self, strategy: Strategy) -> Job {
        Job { op: self.load.op, strategy, threads: self.load.threads }
    }

    fn figures(&self, measured: &Measured) -> anyhow::Result<Run> {
        let Measured { engine, latencies, facts, .. } = measured;
        let floor = measured.floor.as_ref();
        let bytes = self.shape.bytes();
        let micros = |percent| -> anyhow::Result<f64> {
            let latency = percentile(latencies, percent).context("no transfer was timed")?;
            Ok(latency.as_secs_f64() * 1e6)
        };
        let cpu = |sample: &Sample| sample.initiator_cpu + sample.target_cpu;
        let floor_gbps = floor.map(|floor| floor.samples.gbps(bytes)).transpose()?;
        let ratios: Option<Vec<f64>> = floor.map(|floor| engine.ratios(&floor.samples));
        let ratio_range = ratios.as_deref().and_then(range);
        let iperf3_gbps = self.iperf3_gbps.filter(|_| bytes >= RATE_BYTES);
        let counts = |(floor, iperf3)| floor >= FLOOR_WORTH * iperf3;
        Ok(Run {
            transport: facts.transport,
            op: self.load.op,
            block_bytes: self.shape.block_bytes,
            total_bytes: bytes,
            gbps: engine.gbps(bytes)?,
            p50_us: micros(50)?,
            p99_us: micros(99)?,
            cpu_s_per_gib: engine.per_gib(bytes, cpu)?,
            initiator_cpu_s_per_gib: engine.per_gib(bytes, |sample| sample.initiator_cpu)?,
            target_cpu_s_per_gib: engine.per_gib(bytes, |sample| sample.target_cpu)?,
            floor_gbps,
            floor_ratio: ratios.as_deref().and_then(median),
            floor_ratio_min: ratio_range.map(|(smallest, _)| smallest),
            floor_ratio_max: ratio_range.map(|(_, largest)| largest),
            floor_strategy: floor.map(|floor| floor.strategy.to_string()),
            floor_cpu_s_per_gib: floor
                .map(|floor| floor.samples.per_gib(bytes, cpu))
                .transpose()?,
            iperf3_gbps,
            floor_counts: floor_gbps.zip(iperf3_gbps).map(counts),
            page_kib: measured.page_bytes >> 10,
            verified: measured.verified,
            iterations: self.iterations,
            threads: self.load.threads,
            transfers: facts.latencies.len(),
            contiguous: self.contiguous,
            descriptors: facts.descriptors,
            slices: facts.slices,
            seed: self.seed,
        })
    }
}

impl Samples {
    /// 1e9 bytes a second.
    fn gbps(&self, bytes: u64) -> anyhow::Result<f64> {
        let rate = |sample: &Sample| bytes as f64 / sample.elapsed.as_secs_f64() / 1e9;
        self.median_of(rate)
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
