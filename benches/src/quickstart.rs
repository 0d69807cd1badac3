//! `kvbench quickstart`: a model's KV cache from one process to another, and a pool, for a first look.

use std::fmt::Write as _;

use crate::cli::{MeasureArgs, Memory, Op, OpChoice, QuickstartArgs, Transport};
use crate::output::Outputs;
use crate::pace::Pace;
use crate::pair::{Load, Other};
use crate::report::Run;
use crate::shape::Shape;
use crate::sweep::{self, Combination};
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

/// Moves the cache by push and by pull, and says how that went.
pub(crate) fn run(args: &QuickstartArgs) -> anyhow::Result<()> {
    let shape = Shape { base: 0, layers: LAYERS, blocks: BLOCKS, block_bytes: BLOCK_BYTES.into() };
    let combination = |op| {
        let (pace, transfer_blocks) = (Pace::Bulk, None);
        let load = Load { op, threads: 1, in_flight: 1, pace, transfer_blocks };
        Combination { shape, load }
    };
    let measure = MeasureArgs {
        transport: Transport::Auto,
        op: vec![OpChoice::Both],
        threads: vec![1],
        in_flight: vec![1],
        contiguous: false,
        iterations: ITERATIONS,
        memory: Memory::Shared,
        floor: false,
        counts: false,
        seed: 1,
    };
    let outputs = Outputs::prepare(&args.output)?;
    let combinations = [Op::Write, Op::Read].map(combination);
    let swept = sweep::measure(&combinations, &measure, &Other::default(), &outputs)?;
    let pool = crate::pool::quick_page()?;
    outputs.finish(&swept.report, &page(shape, &swept.report.runs, &pool))?;
    fail_on(swept.mismatch)
}

fn page(shape: Shape, runs: &[Run], pool: &str) -> String {
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
    text.push_str(pool);
    text.push_str(
        "\nNext: kvbench transfer --floor, which puts the machine's own limit beside transfers, and \
         kvbench pool.\n",
    );
    text
}
