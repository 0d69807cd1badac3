//! `kvbench model`: what the KV cache of a model consists of, as a transfer.
//!
//! | module | what stands there |
//! |---|---|
//! | `architecture` | models that are known, and files that describe others |
//! | `traffic` | sizes and numbers of I/Os |

mod architecture;
mod traffic;

use std::fmt::Write as _;
use std::io::{Write as _, stdout};

use anyhow::{Context, ensure};

use crate::cli::{Dtype, ModelArgs, OpChoice, PagePattern};
use crate::output::Outputs;
use crate::pace::Pace;
use crate::pair::Load;
use crate::shape::{MOST_BLOCKS, Shape};
use crate::sweep::{self, Combination};
use crate::transfer::{fail_on, page};
use architecture::Architecture;
use traffic::{Split, Traffic};

/// Says what would be moved, and moves it.
pub(crate) fn run(args: &ModelArgs) -> anyhow::Result<()> {
    let model = Architecture::find(&args.model)?;
    let split = Split { tp: args.tp, pp: args.pp };
    let traffic = Traffic::of(&model, split, args)?;
    let text = description(&model, args, &traffic);
    if args.dry_run {
        return Ok(stdout().write_all(text.as_bytes())?);
    }
    let combinations = combinations(args, &traffic)?;
    let outputs = Outputs::prepare(&args.output)?;
    let swept = sweep::measure(&combinations, &args.measure, &args.other.other(), &outputs)?;
    let page = format!("{text}\n{}", page(&args.measure, &swept));
    outputs.finish(&swept.report, &page)?;
    fail_on(swept.mismatch)
}

/// The I/Os of one rank, each a block.
fn combinations(args: &ModelArgs, traffic: &Traffic) -> anyhow::Result<Vec<Combination>> {
    ensure!(
        traffic.ios <= MOST_BLOCKS,
        "{} I/Os are too many at once, at most {MOST_BLOCKS} can be: set fewer --requests",
        traffic.ios
    );
    let blocks = u32::try_from(traffic.ios).context("too many I/Os")?;
    let shape = Shape { base: 0, layers: 1, blocks, block_bytes: traffic.io_bytes };
    shape.check(u64::MAX)?;
    let mut all = Vec::new();
    for (threads, in_flight) in sweep::concurrencies(&args.measure, Pace::Bulk)? {
        for op in OpChoice::ops(&args.measure.op) {
            let (pace, transfer_blocks) = (Pace::Bulk, None);
            let load = Load { op, threads, in_flight, pace, transfer_blocks };
            all.push(Combination { shape, load });
        }
    }
    Ok(all)
}

fn description(model: &Architecture, args: &ModelArgs, traffic: &Traffic) -> String {
    let dtype = match args.dtype {
        Dtype::Fp8 => "fp8",
        Dtype::Bf16 => "bf16",
    };
    let unit = match args.pattern {
        PagePattern::Block => "all layers of a stage",
        PagePattern::Layer => "one layer",
    };
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(text, "{}: {model}, {dtype}", model.name);
    let _ = writeln!(
        text,
        "{} request{} of {} tokens, pages of {}, tp {}, pp {}: {unit} an I/O",
        args.requests,
        if args.requests == 1 { "" } else { "s" },
        args.isl,
        args.page,
        args.tp,
        args.pp
    );
    let _ = writeln!(
        text,
        "a token takes {} bytes on a rank of tensor parallelism; {} bytes in all",
        traffic.token_bytes, traffic.total_bytes
    );
    let _ = writeln!(text, "{} bytes an I/O, {} I/Os", traffic.io_bytes, traffic.ios);
    text
}
