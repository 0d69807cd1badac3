//! `kvbench quickstart`: a model's KV cache from one process to another, for a first look.

use std::fmt::Write as _;
use std::io::{Write as _, stdout};

use crate::cli::{Op, QuickstartArgs, Transport};
use crate::pair::{Load, Pair};
use crate::progress::Progress;
use crate::report::{Report, Run};
use crate::series::Series;
use crate::shape::Shape;
use crate::side::Setup;
use crate::table::{Table, latency, rate, size};
use crate::transfer::fail_on;

// Llama 3.1 8B as its configuration on the model hub says, and vLLM's usual block of 16 tokens.
const LAYERS: u32 = 32;
const KV_HEADS: u32 = 8;
const HEAD_DIM: u32 = 128;
const BF16_BYTES: u32 = 2;
const BLOCK_TOKENS: u32 = 16;

/// Keys and values of one block in one layer.
const BLOCK_BYTES: u32 = 2 * KV_HEADS * HEAD_DIM * BF16_BYTES * BLOCK_TOKENS;

/// A prompt of 1,024 tokens.
const BLOCKS: u32 = 64;

const ITERATIONS: u32 = 9;
const SEED: u64 = 1;

/// Moves the cache by push and by pull, and says how that went.
pub(crate) fn run(args: &QuickstartArgs) -> anyhow::Result<()> {
    let shape = Shape { layers: LAYERS, blocks: BLOCKS, block_bytes: BLOCK_BYTES.into() };
    let mut report = Report { runs: Vec::new() };
    if let Some(path) = &args.json {
        report.write(path)?;
    }
    let setup = Setup { region_bytes: shape.bytes(), seed: SEED, contiguous: false };
    let mut pair = Pair::start(setup)?;
    pair.place(shape)?;
    let mut progress = Progress::start();
    let mut first_mismatch = None;
    for op in [Op::Write, Op::Read] {
        let series = Series {
            shape,
            load: Load { op, threads: 1, in_flight: 1 },
            transport: Transport::Auto,
            iterations: ITERATIONS,
            floor: false,
            contiguous: false,
            seed: SEED,
            iperf3_gbps: None,
        };
        let finished = series.measure(&mut pair, &mut progress)?;
        first_mismatch = first_mismatch.or(finished.mismatch);
        report.runs.push(finished.run);
    }
    drop(progress);
    if let Some(path) = &args.json {
        report.write(path)?;
    }
    stdout().write_all(page(shape, &report.runs).as_bytes())?;
    fail_on(first_mismatch)
}

fn page(shape: Shape, runs: &[Run]) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "KV cache of Llama 3.1 8B, {} tokens: {LAYERS} layers x {BLOCKS} blocks of {BLOCK_TOKENS} \
         tokens, {} each, {} in all.\nMoved between two processes on this host, from scattered \
         blocks to scattered blocks, all layers\nin one transfer. Medians of {ITERATIONS} \
         repetitions:\n",
        BLOCKS * BLOCK_TOKENS,
        size(shape.block_bytes),
        size(shape.bytes()),
    );
    let mut table = Table::new(&["how", "moved", "blocks", "over", "time", "GB/s", "verified"], 1);
    for run in runs {
        let how = match run.op {
            Op::Write => "push: the process that has it sends",
            Op::Read => "pull: the process that wants it asks",
        };
        table.row(vec![
            how.into(),
            size(run.total_bytes),
            shape.count().to_string(),
            run.transport.into(),
            latency(run.p50_us),
            rate(run.gbps),
            if run.verified { "every byte" } else { "NO" }.into(),
        ]);
    }
    text.push_str(&table.render());
    text.push_str(
        "\nNext: kvbench transfer --floor, which puts the machine's own limit beside it.\n",
    );
    text
}
