//! Combinations: what is moved, in which shape, by how many threads; and one measurement of all.

use anyhow::{Context, ensure};

use crate::cli::{MeasureArgs, OpChoice, TransferArgs, Transport};
use crate::control::Whereabouts;
use crate::iperf::Judge;
use crate::output::Outputs;
use crate::pace::{MOST_TRANSFERS, Pace};
use crate::pair::{Load, Other, Pair};
use crate::pattern::Mismatch;
use crate::progress::Progress;
use crate::report::Report;
use crate::series::Series;
use crate::shape::{MOST_BLOCKS, Shape};
use crate::side::Setup;
use kvferry_engine::size::Size;

/// As many transfers as an engine keeps open to one peer.
const OPEN_TRANSFERS: u64 = 16_384;

/// What an iteration moves unless somebody says otherwise.
const TOTAL_BYTES: u64 = 256 << 20;

/// How many transfers one after another an iteration has unless a total says otherwise.
const PACED_TRANSFERS: u64 = 100;

/// How many transfers are timed for one row: their times are kept until its percentiles are known.
const MOST_TIMED: u64 = 20_000_000;

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Combination {
    pub(crate) shape: Shape,
    pub(crate) load: Load,
}

impl Combination {
    fn is_bulk(&self) -> bool {
        self.load.pace == Pace::Bulk
    }

    /// Transfers of an iteration, at most.
    fn transfers(&self) -> u64 {
        match self.load.transfer_blocks {
            Some(each) => self.shape.count().div_ceil(each),
            None => u64::from(self.load.threads) * u64::from(self.load.in_flight),
        }
    }
}

/// All combinations that were asked for, those of one shape behind each other.
pub(crate) fn combinations(args: &TransferArgs) -> anyhow::Result<Vec<Combination>> {
    let mut all = Vec::new();
    for pace in &args.pace {
        for (threads, in_flight) in concurrencies(&args.measure, *pace)? {
            for amount in amounts(args, *pace) {
                for block in &args.block_size {
                    let (shape, transfer_blocks) =
                        shape(amount, *block, *pace, u64::from(threads) * u64::from(in_flight))?;
                    for op in OpChoice::ops(&args.measure.op) {
                        let load = Load { op, threads, in_flight, pace: *pace, transfer_blocks };
                        all.push(Combination { shape, load });
                    }
                }
            }
        }
    }
    Ok(all)
}

/// Threads and transfers that each keeps open.
pub(crate) fn concurrencies(args: &MeasureArgs, pace: Pace) -> anyhow::Result<Vec<(u32, u32)>> {
    let mut all = Vec::new();
    for threads in &args.threads {
        for in_flight in &args.in_flight {
            let transfers = u64::from(*threads) * u64::from(*in_flight);
            ensure!(
                transfers <= OPEN_TRANSFERS,
                "--threads {threads} times --in-flight {in_flight} are {transfers} open \
                 transfers: at most {OPEN_TRANSFERS} can be"
            );
            ensure!(
                pace == Pace::Bulk || *in_flight == 1,
                "--pace {pace} moves one transfer after another: it goes with --in-flight 1 only"
            );
            all.push((*threads, *in_flight));
        }
    }
    Ok(all)
}

/// How much an iteration moves.
#[derive(Clone, Copy, Debug)]
enum Amount {
    Total(Size),
    /// In each transfer.
    Blocks(u32),
    Default,
}

fn amounts(args: &TransferArgs, pace: Pace) -> Vec<Amount> {
    let totals = args.total.iter().map(|total| Amount::Total(*total));
    let blocks = args.blocks.iter().map(|blocks| Amount::Blocks(*blocks));
    let all: Vec<Amount> = totals.chain(blocks).collect();
    match (all.is_empty(), pace) {
        (false, _) => all,
        (true, Pace::Bulk) => vec![Amount::Default],
        (true, Pace::Hot | Pace::Cold) => vec![Amount::Blocks(1)],
    }
}

/// The blocks of an iteration, and how many of them a transfer has where they are moved one after
/// another. `open` is how many transfers are under way at once.
fn shape(
    amount: Amount,
    block: Size,
    pace: Pace,
    open: u64,
) -> anyhow::Result<(Shape, Option<u64>)> {
    let paced = pace != Pace::Bulk;
    let (blocks, each) = match amount {
        Amount::Default => (TOTAL_BYTES / block.bytes(), 1),
        Amount::Total(total) => (total.bytes() / block.bytes(), 1),
        Amount::Blocks(each) => {
            let transfers = if paced { open * PACED_TRANSFERS } else { open };
            (u64::from(each) * transfers, u64::from(each))
        }
    };
    if let Amount::Total(total) = amount {
        ensure!(
            blocks > 0,
            "--total {total} holds no block of --block-size {block}: make the total larger"
        );
    }
    ensure!(blocks > 0, "--block-size {block} is more than an iteration moves: set --total");
    ensure!(
        blocks <= MOST_BLOCKS,
        "{blocks} blocks of {block} are too many at once, at most {MOST_BLOCKS} can be: make \
         --block-size larger, or --total, --blocks or --threads smaller"
    );
    ensure!(
        !paced || blocks.div_ceil(each) <= MOST_TRANSFERS,
        "{blocks} blocks in transfers of {each} are more than {MOST_TRANSFERS} transfers one after \
         another: make --total smaller"
    );
    let blocks = u32::try_from(blocks).context("too many blocks")?;
    let shape = Shape { base: 0, layers: 1, blocks, block_bytes: block.bytes() };
    shape.check(u64::MAX)?;
    Ok((shape, paced.then_some(each)))
}

/// What came of a sweep.
#[derive(Debug)]
pub(crate) struct Swept {
    pub(crate) report: Report,
    pub(crate) judge: Judge,
    /// The first block that did not arrive, and who carried it.
    pub(crate) mismatch: Option<(&'static str, Mismatch)>,
}

/// Measures combinations one after the other, and keeps the figures as they come.
pub(crate) fn measure(
    combinations: &[Combination],
    args: &MeasureArgs,
    other: &Other,
    outputs: &Outputs,
) -> anyhow::Result<Swept> {
    let region_bytes =
        combinations.iter().map(|one| one.shape.bytes()).max().context("nothing to move")?;
    let transfers = combinations.iter().map(Combination::transfers).max().unwrap_or_default();
    let timed = transfers.saturating_mul(args.iterations.into());
    ensure!(
        timed <= MOST_TIMED,
        "{timed} transfers are too many to be timed for one row, at most {MOST_TIMED} can be: set \
         fewer --iterations"
    );
    let transport = args.carrier();
    let (seed, contiguous, memory) = (args.seed, args.contiguous, args.memory);
    ensure!(
        !args.floor || transport == Transport::Tcp || combinations.iter().all(Combination::is_bulk),
        "--floor with --transport local or rdma moves bulk transfers: leave --pace out, or one of the two"
    );
    let setup = Setup { region_bytes, seed, contiguous, transport, memory };
    // First, for a pair that cannot start is found out at once.
    let mut pair = Pair::start(setup, other)?;
    let judge = match (&other.whereabouts, args.floor && transport == Transport::Tcp) {
        (_, false) => Judge::NotAsked,
        (Whereabouts::There(_), true) => Judge::Elsewhere,
        (Whereabouts::Here { .. }, true) => Judge::ask(),
    };
    if args.floor && transport == Transport::Local {
        pair.make_twin()?;
    } else if args.floor && transport == Transport::Tcp {
        let threads = combinations.iter().map(|one| one.load.threads).max();
        pair.open_floor(threads.context("nothing to move")?)?;
    }
    let mut progress = Progress::start(combinations.len());
    let (mut report, mut mismatch, mut placed) = (Report::default(), None, None);
    for Combination { shape, load } in combinations {
        if placed != Some(*shape) {
            pair.place(&[*shape])?;
            placed = Some(*shape);
        }
        let series = Series {
            shape: *shape,
            load: *load,
            transport,
            memory,
            iterations: args.iterations,
            floor: args.floor,
            counts: args.counts,
            contiguous: args.contiguous,
            seed: args.seed,
            iperf3_gbps: judge.best_gbps(),
        };
        let finished = series.measure(&mut pair, &mut progress)?;
        mismatch = mismatch.or(finished.mismatch);
        report.runs.push(finished.run);
        outputs.keep(&report)?;
    }
    Ok(Swept { report, judge, mismatch })
}
