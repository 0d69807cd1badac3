//! `kvbench transfer`: every combination of what was asked for.

use std::fmt::Write as _;

use anyhow::bail;

use crate::cli::{MeasureArgs, TransferArgs};
use crate::iperf::Judge;
use crate::output::Outputs;
use crate::pattern::Mismatch;
use crate::report::Run;
use crate::series::FLOOR_WORTH;
use crate::sweep::{self, Swept};
use crate::table;

/// Fewer pairs than this make no ratio to rely on.
const PAIRS: u32 = 9;

/// Measures all combinations, and prints and writes their figures.
pub(crate) fn run(args: &TransferArgs) -> anyhow::Result<()> {
    let combinations = sweep::combinations(args)?;
    let outputs = Outputs::prepare(&args.output)?;
    let swept = sweep::measure(&combinations, &args.measure, &args.other.other(), &outputs)?;
    let page = page(&args.measure, &swept);
    outputs.finish(&swept.report, &page)?;
    fail_on(swept.mismatch)
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

/// All that is printed.
pub(crate) fn page(args: &MeasureArgs, swept: &Swept) -> String {
    let runs = &swept.report.runs;
    let mut text = heading(args, runs);
    text.push_str(&table::of_rates(runs));
    text.push_str(&table::of_latencies(runs));
    text.push_str(&table::of_floors(runs));
    text.push_str(&table::of_counts(runs));
    match &swept.judge {
        Judge::NotAsked => {}
        Judge::Missing => text.push_str("iperf3 is not installed: the floors are unchecked\n"),
        Judge::Elsewhere => {
            text.push_str("iperf3 is not asked between two hosts: the floors are unchecked\n");
        }
        Judge::Failed(error) => {
            // Writing to a string does not fail.
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

fn heading(args: &MeasureArgs, runs: &[Run]) -> String {
    let order = if args.contiguous { "contiguous" } else { "scattered" };
    let transport = runs.first().map_or("none", |run| run.transport);
    let lanes = runs.iter().map(|run| run.lanes).max().unwrap_or_default();
    let verified =
        if runs.iter().all(|run| run.verified) { "every byte verified" } else { "NOT VERIFIED" };
    let iterations = args.iterations;
    let plural = if iterations == 1 { "" } else { "s" };
    let memory = args.memory;
    format!(
        "{transport} between two processes, up to {lanes} lanes open, {order} blocks in {memory} \
         memory, {iterations} iteration{plural}, {verified}\n\n"
    )
}
