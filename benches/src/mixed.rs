//! `kvbench mixed`: small transfers beside bulk ones, and each alone.
//!
//! Small transfers go one after another, 1 ms apart; bulk transfers follow each other without a
//! pause, as long as the small ones last. What a program sees whose requests share a machine with
//! the KV cache of others.

use std::fmt::Write as _;
use std::io::{Write as _, stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use kvferry_engine::Request;
use serde::Serialize;

use crate::cli::{Memory, MixedArgs, Op, OpChoice, Sink};
use crate::engine_run::{Carried, one_by_one};
use crate::measure::race;
use crate::output::write_json;
use crate::pair::Pair;
use crate::pattern::Mismatch;
use crate::progress::Progress;
use crate::report::SYSTEM;
use crate::shape::Shape;
use crate::side::Setup;
use crate::stats::{Percentiles, median};
use crate::table::{Table, latency, rate, size};
use crate::transfer::fail_on;

/// Between small transfers.
const PAUSE: Duration = Duration::from_millis(1);

/// The parts of the region.
const BULK: u32 = 0;
const SMALL: u32 = 1;

/// Blocks of the small transfers start on a page of their own.
const PAGE: u64 = 4096;

/// All figures of an invocation.
#[derive(Debug, Default, Serialize)]
struct Report {
    mixed: Vec<Mixed>,
}

/// One operation's figures.
#[derive(Debug, Serialize)]
struct Mixed {
    system: &'static str,
    op: Op,
    /// What carried the small ones.
    transport: &'static str,
    small_bytes: u64,
    /// In an iteration.
    small_transfers: u32,
    bulk_bytes: u64,
    block_bytes: u64,
    iterations: u32,
    seed: u64,
    verified: bool,
    /// Of small transfers without bulk ones, and beside them.
    small_alone: Percentiles,
    small_loaded: Percentiles,
    /// Medians, 1e9 bytes a second: without small transfers, and beside them.
    bulk_alone_gbps: f64,
    bulk_loaded_gbps: f64,
}

/// What is moved when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Small,
    Bulk,
    Both,
}

/// What a phase came to.
#[derive(Debug, Default)]
struct Moved {
    small: Vec<Duration>,
    small_transport: Option<&'static str>,
    bulk_gbps: Option<f64>,
}

/// Measures what was asked for, prints and writes it.
pub(crate) fn run(args: &MixedArgs) -> anyhow::Result<()> {
    let bulk = shape(0, args.total.bytes() / args.block_size.bytes(), args.block_size.bytes())
        .with_context(|| format!("--total {} in blocks of {}", args.total, args.block_size))?;
    let base = bulk.bytes().next_multiple_of(PAGE);
    let small = shape(base, args.small_transfers.into(), args.small.bytes())
        .with_context(|| format!("--small {}", args.small))?;
    let region_bytes = base.checked_add(small.bytes()).context("that is too much to be moved")?;
    if let Some(sink @ Sink::File(_)) = &args.json {
        // A path that cannot be written is found out now, not after the work.
        write_json(sink, &Report::default())?;
    }
    let setup = Setup {
        region_bytes,
        seed: args.seed,
        contiguous: false,
        transport: args.transport,
        memory: Memory::Shared,
    };
    let mut pair = Pair::start(setup, &args.other.other())?;
    pair.place(&[bulk, small])?;
    let ops = OpChoice::ops(&args.op);
    let mut progress = Progress::start(ops.len());
    let (mut report, mut mismatch) = (Report::default(), None);
    for op in ops {
        let (mixed, wrong) = measure(&mut pair, op, args, &mut progress)?;
        mismatch = mismatch.or(wrong);
        report.mixed.push(mixed);
    }
    drop(progress);
    if let Some(sink) = &args.json {
        write_json(sink, &report)?;
    }
    if args.json != Some(Sink::Output) {
        stdout().write_all(page(&report).as_bytes())?;
    }
    fail_on(mismatch.map(|mismatch| ("the engine", mismatch)))
}

fn shape(base: u64, blocks: u64, block_bytes: u64) -> anyhow::Result<Shape> {
    let shape = Shape { base, layers: 1, blocks: u32::try_from(blocks)?, block_bytes };
    shape.check(u64::MAX)?;
    Ok(shape)
}

fn measure(
    pair: &mut Pair,
    op: Op,
    args: &MixedArgs,
    progress: &mut Progress,
) -> anyhow::Result<(Mixed, Option<Mismatch>)> {
    let name = format!("{op} {} beside {}", args.small, args.total);
    progress.begin(&name);
    let mut mismatch = None;
    let mut moved = |phase| -> anyhow::Result<Moved> {
        let (moved, wrong) = run_phase(pair, op, phase)?;
        if mismatch.is_none() {
            mismatch = wrong;
        }
        Ok(moved)
    };
    moved(Phase::Both)?;
    let (mut alone, mut loaded, mut transport) = (Vec::new(), Vec::new(), None);
    let (mut bulk_alone, mut bulk_loaded) = (Vec::new(), Vec::new());
    for iteration in 0..args.iterations {
        progress.advance(&name, iteration, args.iterations);
        alone.append(&mut moved(Phase::Small)?.small);
        bulk_alone.extend(moved(Phase::Bulk)?.bulk_gbps);
        let both = moved(Phase::Both)?;
        loaded.extend(both.small);
        transport = both.small_transport;
        bulk_loaded.extend(both.bulk_gbps);
    }
    let mixed = Mixed {
        system: SYSTEM,
        op,
        transport: transport.context("no small transfer was timed")?,
        small_bytes: args.small.bytes(),
        small_transfers: args.small_transfers,
        bulk_bytes: args.total.bytes() / args.block_size.bytes() * args.block_size.bytes(),
        block_bytes: args.block_size.bytes(),
        iterations: args.iterations,
        seed: args.seed,
        verified: mismatch.is_none(),
        small_alone: Percentiles::of(&alone).context("no small transfer was timed")?,
        small_loaded: Percentiles::of(&loaded).context("no small transfer was timed")?,
        bulk_alone_gbps: median(&bulk_alone).context("no bulk transfer was timed")?,
        bulk_loaded_gbps: median(&bulk_loaded).context("no bulk transfer was timed")?,
    };
    Ok((mixed, mismatch))
}

/// Moves what belongs to a phase, filled before and verified after.
fn run_phase(pair: &mut Pair, op: Op, phase: Phase) -> anyhow::Result<(Moved, Option<Mismatch>)> {
    let parts: &[u32] = match phase {
        Phase::Small => &[SMALL],
        Phase::Bulk => &[BULK],
        Phase::Both => &[BULK, SMALL],
    };
    let mut rounds = Vec::new();
    for part in parts {
        rounds.push((*part, pair.fill(*part, op)?));
    }
    let moved = pair.attempt(|pair| both_sides(pair, op, phase))?;
    let mut mismatch = None;
    for (part, round) in rounds {
        let wrong = pair.verify(part, op, round)?;
        mismatch = mismatch.or(wrong);
    }
    Ok((moved, mismatch))
}

fn both_sides(pair: &Pair, op: Op, phase: Phase) -> anyhow::Result<Moved> {
    let (peer, small) = pair.blocks(SMALL)?;
    let (_, bulk) = pair.blocks(BULK)?;
    let transfers = small.here.shape().count();
    let smalls: Vec<Request> = (0..transfers)
        .map(|number| small.request(peer, op, number..number + 1))
        .collect::<Result<_, _>>()?;
    let blocks = bulk.here.shape().count();
    let next = || bulk.request(peer, op, 0..blocks);
    // Alone, bulk transfers go on for as long as the pauses of the small ones take.
    let alone_for = PAUSE * u32::try_from(transfers)?;
    let is_over = AtomicBool::new(false);

    let small_worker = || {
        let _over = Over(&is_over);
        let carried = one_by_one(smalls, PAUSE)?;
        let small = carried.iter().map(|carried| carried.latency).collect();
        let small_transport = carried.first().map(Carried::transport);
        Ok(Moved { small, small_transport, bulk_gbps: None })
    };
    let bulk_worker = || {
        let begun = Instant::now();
        let until = |spent: Duration| match phase {
            Phase::Bulk => spent >= alone_for,
            Phase::Small | Phase::Both => is_over.load(Ordering::Acquire),
        };
        let rate = in_a_row(next, bulk.here.shape().bytes(), begun, until)?;
        Ok(Moved { bulk_gbps: Some(rate), ..Moved::default() })
    };
    type Worker<'a> = Box<dyn FnOnce() -> anyhow::Result<Moved> + Send + 'a>;
    let mut workers: Vec<Worker<'_>> = Vec::new();
    match phase {
        Phase::Small => workers.push(Box::new(small_worker)),
        Phase::Bulk => workers.push(Box::new(bulk_worker)),
        Phase::Both => {
            workers.push(Box::new(bulk_worker));
            workers.push(Box::new(small_worker));
        }
    }
    let mut all = Moved::default();
    for moved in race(workers)?.results {
        all.small.extend(moved.small);
        all.small_transport = all.small_transport.or(moved.small_transport);
        all.bulk_gbps = all.bulk_gbps.or(moved.bulk_gbps);
    }
    Ok(all)
}

/// Bulk transfers one after the other, and their rate. The one that was under way when the small
/// ones ended had the machine for itself in part, so it counts only if it is the first.
fn in_a_row(
    next: impl Fn() -> anyhow::Result<Request>,
    bytes: u64,
    begun: Instant,
    is_over: impl Fn(Duration) -> bool,
) -> anyhow::Result<f64> {
    let mut done: Option<(u64, Duration)> = None;
    loop {
        let transfer = next()?.submit().context("submitting a bulk transfer")?;
        transfer.wait().context("waiting for a bulk transfer")?;
        let spent = begun.elapsed();
        let over = is_over(spent);
        if !over || done.is_none() {
            let moved = done.map_or(0, |(moved, _)| moved) + bytes;
            done = Some((moved, spent));
        }
        if let (true, Some((moved, spent))) = (over, done) {
            ensure!(!spent.is_zero(), "the clock stood still");
            return Ok(moved as f64 / spent.as_secs_f64() / 1e9);
        }
    }
}

/// Says so when the small transfers have ended, also by a failure.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn page(report: &Report) -> String {
    let mut text = String::new();
    if let Some(first) = report.mixed.first() {
        let verified = if report.mixed.iter().all(|mixed| mixed.verified) {
            "every byte verified"
        } else {
            "NOT VERIFIED"
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{} transfers of {}, {} ms apart, beside transfers of {} in blocks of {}, by {}: {} \
             iterations, {verified}\n",
            first.small_transfers,
            size(first.small_bytes),
            PAUSE.as_millis(),
            size(first.bulk_bytes),
            size(first.block_bytes),
            first.transport,
            first.iterations,
        );
    }
    let mut table = Table::new(&["op", "what", "alone", "under load", "change"], 2);
    for mixed in &report.mixed {
        let (alone, loaded) = (mixed.small_alone, mixed.small_loaded);
        let rows = [
            ("small p50", alone.p50_us, loaded.p50_us),
            ("small p99", alone.p99_us, loaded.p99_us),
            ("small p99.9", alone.p999_us, loaded.p999_us),
        ];
        let mut row = |what: &str, show: fn(f64) -> String, alone: f64, loaded: f64| {
            let change = format!("x {:.2}", loaded / alone);
            table.row(vec![mixed.op.to_string(), what.into(), show(alone), show(loaded), change]);
        };
        for (what, alone, loaded) in rows {
            row(what, latency, alone, loaded);
        }
        row("bulk GB/s", rate, mixed.bulk_alone_gbps, mixed.bulk_loaded_gbps);
    }
    text.push_str(&table.render());
    text
}
