//! `kvbench ways`: by which way memory is copied fastest between processes of one host, for kinds of
//! memory and sizes of blocks. What the engine chooses follows from it.

use std::io::{Write as _, stdout};

use anyhow::Context;
use kvferry_engine::Registry;

use crate::cli::{Memory, Op, WaysArgs};
use crate::floor::{Twin, Way};
use crate::measure::race;
use crate::memory;
use crate::pattern::Pattern;
use crate::shape::{End, Placement, Shape};
use crate::stats::median;
use crate::table::{Table, rate, size};

const KINDS: [Memory; 3] = [Memory::Foreign, Memory::ForeignHuge, Memory::Shared];

/// Measures every way, in turn, and prints what came of it.
pub(crate) fn run(args: &WaysArgs) -> anyhow::Result<()> {
    // Two regions of each kind, one kind after the other.
    memory::ensure_room(args.total.bytes().saturating_mul(2), None)?;
    let mut table = Table::new(&["memory", "block", "way", "GB/s", "CPU s/GiB"], 3);
    for kind in KINDS {
        let region = kind.region(&Registry::new(), args.total.bytes())?;
        let twin = Twin::of(&region, kind)?;
        for block in &args.block_size {
            let blocks = u32::try_from(args.total.bytes() / block.bytes())
                .context("too many blocks: make --block-size larger")?;
            let shape = Shape { base: 0, layers: 1, blocks, block_bytes: block.bytes() };
            shape.check(region.length())?;
            let here = Placement::new(shape, args.seed, End::Initiator, false);
            let there = Placement::new(shape, args.seed, End::Target, false);
            let mut found: Vec<(Way, Vec<f64>, Vec<f64>)> =
                Way::of(kind).iter().map(|way| (*way, Vec::new(), Vec::new())).collect();
            for round in 0..args.iterations {
                for (way, rates, cpu) in &mut found {
                    let pattern = Pattern { seed: args.seed, round: round.into() };
                    pattern.fill(&region, here.all())?;
                    let how = (*way, args.threads);
                    let workers = twin.workers(Op::Write, how, (&region, &here), &there)?;
                    let workers = workers.into_iter().map(|worker| move || worker.run());
                    let clocked = race(workers.collect())?;
                    if let Some(mismatch) = pattern.verify(twin.region(), there.all())? {
                        anyhow::bail!("{way} did not copy what it should: {mismatch}");
                    }
                    let bytes = shape.bytes() as f64;
                    rates.push(bytes / clocked.elapsed.as_secs_f64() / 1e9);
                    cpu.push(clocked.cpu.as_secs_f64() * f64::from(1 << 30) / bytes);
                }
            }
            for (way, rates, cpu) in &found {
                let cell = |figures: &[f64]| median(figures).context("nothing was measured");
                table.row(vec![
                    kind.to_string(),
                    size(block.bytes()),
                    way.to_string(),
                    rate(cell(rates)?),
                    format!("{:.3}", cell(cpu)?),
                ]);
            }
        }
    }
    Ok(stdout().write_all(table.render().as_bytes())?)
}
