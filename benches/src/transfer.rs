//! `kvbench transfer`: every combination of what was asked for.

use std::fmt::Write as _;
use std::io::{Write as _, stdout};

use anyhow::{Context, bail, ensure};

use crate::cli::TransferArgs;
use crate::iperf::Iperf;
use crate::pair::{Load, Pair};
use crate::pattern::Mismatch;
use crate::progress::Progress;
use crate::report::{Report, Run};
use crate::series::{FLOOR_WORTH, Series};
use crate::shape::Shape;
use crate::side::Setup;
use crate::size::Size;
use crate::table;

/// As many transfers as an engine keeps open to one peer.
const OPEN_TRANSFERS: u32 = 16_384;

/// Fewer pairs than this make no ratio to rely on.
const PAIRS: u32 = 9;

/// Measures all combinations, and prints and writes their figures.
pub(crate) fn run(args: &TransferArgs) -> anyhow::Result<()> {
    let shapes = shapes(args)?;
    let mut report = Report { runs: Vec::new() };
    if let Some(path) = &args.json {
        // A path that cannot be written is found out now, not after the work.
        report.write(path)?;
    }
    let iperf = if args.floor { judge() } else { Judge::NotAsked };
    let region_bytes = shapes.iter().map(Shape::bytes).max().context("nothing to move")?;
    let setup = Setup { region_bytes, seed: args.seed, contiguous: args.contiguous };
    let mut pair = Pair::start(setup)?;
    if args.floor {
        pair.open_floor(args.threads)?;
    }

    let mut progress = Progress::start();
    let mut first_mismatch = None;
    for shape in shapes {
        pair.place(shape)?;
        for op in &args.op {
            let series = Series {
                shape,
                load: Load { op: *op, threads: args.threads, in_flight: args.in_flight },
                transport: args.transport,
                iterations: args.iterations,
                floor: args.floor,
                contiguous: args.contiguous,
                seed: args.seed,
                iperf3_gbps: iperf.best_gbps(),
            };
            let finished = series.measure(&mut pair, &mut progress)?;
            first_mismatch = first_mismatch.or(finished.mismatch);
            report.runs.push(finished.run);
            if let Some(path) = &args.json {
                report.write(path)?;
            }
        }
    }
    drop(progress);
    stdout().write_all(page(args, &report.runs, &iperf).as_bytes())?;
    fail_on(first_mismatch)
}

/// Bytes that did not arrive are an error of the whole invocation, whatever the figures.
pub(crate) fn fail_on(mismatch: Option<(&'static str, Mismatch)>) -> anyhow::Result<()> {
    match mismatch {
        None => Ok(()),
        Some((carrier, mismatch)) => {
            bail!("{carrier} did not move what it should: {mismatch}; do not rely on the figures")
        }
    }
}

fn shapes(args: &TransferArgs) -> anyhow::Result<Vec<Shape>> {
    let transfers = args.threads.saturating_mul(args.in_flight);
    ensure!(
        transfers <= OPEN_TRANSFERS,
        "--threads {} times --in-flight {} are {transfers} open transfers: at most \
         {OPEN_TRANSFERS} can be",
        args.threads,
        args.in_flight
    );
    let mut shapes = Vec::new();
    for total in &args.total {
        for block in &args.block_size {
            shapes.push(shape(*total, *block)?);
        }
    }
    Ok(shapes)
}

fn shape(total: Size, block: Size) -> anyhow::Result<Shape> {
    let blocks = total.bytes() / block.bytes();
    ensure!(
        blocks > 0,
        "--total {total} holds no block of --block-size {block}: make the total larger"
    );
    let blocks = u32::try_from(blocks).with_context(|| {
        format!("--total {total} in blocks of {block} are {blocks} blocks: at most 2^32 - 1 can be")
    })?;
    Ok(Shape { layers: 1, blocks, block_bytes: block.bytes() })
}

/// What iperf3 said.
enum Judge {
    NotAsked,
    Missing,
    Failed(anyhow::Error),
    Said(Iperf),
}

fn judge() -> Judge {
    match Iperf::measure() {
        Ok(Some(iperf)) => Judge::Said(iperf),
        Ok(None) => Judge::Missing,
        Err(error) => Judge::Failed(error),
    }
}

impl Judge {
    fn best_gbps(&self) -> Option<f64> {
        match self {
            Self::Said(iperf) => Some(iperf.best_gbps()),
            _ => None,
        }
    }
}

/// All that is printed.
fn page(args: &TransferArgs, runs: &[Run], judge: &Judge) -> String {
    let mut text = heading(args, runs);
    text.push_str(&table::of_runs(runs));
    text.push_str(&table::of_floors(runs));
    match judge {
        Judge::NotAsked => {}
        Judge::Missing => text.push_str("iperf3 is not installed: the floors are unchecked\n"),
        Judge::Failed(error) => {
            let _ = writeln!(text, "iperf3 failed, so the floors are unchecked: {error:#}");
        }
        Judge::Said(iperf) => {
            let (one, two) = (iperf.one_stream_gbps, iperf.two_streams_gbps);
            let _ = writeln!(
                text,
                "iperf3 -l 1M: {one:.2} GB/s with -P 1, {two:.2} with -P 2; a floor counts from \
                 {FLOOR_WORTH} of the better on"
            );
        }
    }
    if args.floor && args.iterations < PAIRS {
        let _ = writeln!(text, "fewer than {PAIRS} iterations: the ratios are an indication");
    }
    text
}

fn heading(args: &TransferArgs, runs: &[Run]) -> String {
    let order = if args.contiguous { "contiguous" } else { "scattered" };
    let transport = runs.first().map_or("none", |run| run.transport);
    let verified =
        if runs.iter().all(|run| run.verified) { "every byte verified" } else { "NOT VERIFIED" };
    let count =
        |number: u32, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    format!(
        "{transport} between two processes, {order} blocks, {} x {} in flight, {}, {verified}\n",
        count(args.threads, "thread"),
        args.in_flight,
        count(args.iterations, "iteration"),
    )
}
