//! `kvbench matrix`: bytes between many processes of this host, pattern by pattern and all at once.
//!
//! | module | what stands there |
//! |---|---|
//! | `parse` | from a file to a square of bytes |
//! | `layout` | where each cell's bytes lie in the regions of both ranks |
//! | `ranks` | the processes, and one run of some patterns |

mod layout;
mod parse;
mod ranks;

use std::fs;
use std::io::{Write as _, stdout};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;

use crate::cli::{MatrixArgs, Sink};
use crate::output::write_json;
use crate::pattern::Mismatch;
use crate::progress::Progress;
use crate::report::SYSTEM;
use crate::stats::Percentiles;
use crate::table::{Table, latency, rate, size};
use crate::transfer::fail_on;
use layout::Plan;
use parse::Matrix;
use ranks::Ranks;

/// How many processes there may be: each has an engine with threads of its own.
pub(crate) const MOST_RANKS: usize = 32;

/// How many patterns may be moved at once.
pub(crate) const MOST_PATTERNS: usize = 8;

/// All figures of an invocation.
#[derive(Debug, Default, Serialize)]
struct Report {
    patterns: Vec<Pattern>,
}

/// One pattern's figures.
#[derive(Debug, Serialize)]
struct Pattern {
    system: &'static str,
    file: String,
    ranks: usize,
    senders: usize,
    total_bytes: u64,
    iterations: u32,
    seed: u64,
    verified: bool,
    /// Of the slowest rank: from its submission to the last end of its transfers.
    alone: Percentiles,
    /// The same while all patterns are moved; null where there is only one.
    loaded: Option<Percentiles>,
    /// All bytes in the time of the slowest rank, alone: 1e9 bytes a second.
    alone_gbps: f64,
}

/// Measures every pattern alone, and all at once.
pub(crate) fn run(args: &MatrixArgs) -> anyhow::Result<()> {
    let count = args.files.len();
    ensure!(
        count <= MOST_PATTERNS,
        "{count} patterns are too many: at most {MOST_PATTERNS} can be"
    );
    let matrices = args.files.iter().map(|path| {
        let read = || -> anyhow::Result<Matrix> { Ok(fs::read_to_string(path)?.parse()?) };
        read().with_context(|| format!("reading the matrix of {}", path.display()))
    });
    let matrices: Vec<Matrix> = matrices.collect::<Result<_, _>>()?;
    let plan = Plan::of(&matrices)?;
    if let Some(sink @ Sink::File(_)) = &args.json {
        // A path that cannot be written is found out now, not after the work.
        write_json(sink, &Report::default())?;
    }
    let mut ranks = Ranks::start(&plan, args.seed, Duration::from_secs(args.patience))?;
    let measured = measure(&plan, &mut ranks, args)?;
    drop(ranks);
    let report = report(args, &matrices, &measured)?;
    if let Some(sink) = &args.json {
        write_json(sink, &report)?;
    }
    if args.json != Some(Sink::Output) {
        stdout().write_all(page(args, &report).as_bytes())?;
    }
    fail_on(measured.mismatch.map(|mismatch| ("the engine", mismatch)))
}

/// Times of each pattern.
#[derive(Debug)]
struct Measured {
    alone: Vec<Vec<Duration>>,
    loaded: Vec<Vec<Duration>>,
    mismatch: Option<Mismatch>,
}

fn measure(plan: &Plan, ranks: &mut Ranks, args: &MatrixArgs) -> anyhow::Result<Measured> {
    let count = plan.patterns();
    let all: Vec<usize> = (0..count).collect();
    let nothing = vec![Vec::new(); count];
    let mut measured = Measured { alone: nothing.clone(), loaded: nothing, mismatch: None };
    let mut progress = Progress::start(1);
    progress.begin("patterns");
    // The first run of all warms up, and opens every lane.
    let warm_up = ranks.exchange(plan, &all)?;
    measured.mismatch = warm_up.mismatch;
    for iteration in 0..args.iterations {
        progress.advance("patterns", iteration, args.iterations);
        for pattern in &all {
            let ran = ranks.exchange(plan, &[*pattern])?;
            measured.alone[*pattern].push(ran.slowest(*pattern)?);
            measured.mismatch = measured.mismatch.or(ran.mismatch);
        }
        if count > 1 {
            let ran = ranks.exchange(plan, &all)?;
            for pattern in &all {
                measured.loaded[*pattern].push(ran.slowest(*pattern)?);
            }
            measured.mismatch = measured.mismatch.or(ran.mismatch);
        }
    }
    Ok(measured)
}

fn report(args: &MatrixArgs, matrices: &[Matrix], measured: &Measured) -> anyhow::Result<Report> {
    let pattern = |(number, matrix): (usize, &Matrix)| {
        let alone = Percentiles::of(&measured.alone[number]).context("nothing was timed")?;
        let total_bytes = matrix.total_bytes();
        Ok(Pattern {
            system: SYSTEM,
            file: args.files[number].display().to_string(),
            ranks: matrix.ranks(),
            senders: matrix.senders(),
            total_bytes,
            iterations: args.iterations,
            seed: args.seed,
            verified: measured.mismatch.is_none(),
            alone,
            loaded: Percentiles::of(&measured.loaded[number]),
            alone_gbps: total_bytes as f64 / alone.p50_us / 1e3,
        })
    };
    let patterns = matrices.iter().enumerate().map(pattern).collect::<anyhow::Result<_>>()?;
    Ok(Report { patterns })
}

fn page(args: &MatrixArgs, report: &Report) -> String {
    let ranks = report.patterns.first().map_or(0, |pattern| pattern.ranks);
    let verified = report.patterns.iter().all(|pattern| pattern.verified);
    let verified = if verified { "every byte verified" } else { "NOT VERIFIED" };
    let iterations = args.iterations;
    let several = report.patterns.len() > 1;
    let mut headings = vec!["pattern", "senders", "total", "GB/s", "alone p50", "p99"];
    if several {
        headings.extend(["at once p50", "p99", "change"]);
    }
    let mut table = Table::new(&headings, 1);
    for pattern in &report.patterns {
        let mut cells = vec![
            pattern.file.clone(),
            pattern.senders.to_string(),
            size(pattern.total_bytes),
            rate(pattern.alone_gbps),
            latency(pattern.alone.p50_us),
            latency(pattern.alone.p99_us),
        ];
        if let Some(loaded) = pattern.loaded {
            let change = format!("x {:.2}", loaded.p50_us / pattern.alone.p50_us);
            cells.extend([latency(loaded.p50_us), latency(loaded.p99_us), change]);
        }
        table.row(cells);
    }
    format!(
        "{ranks} processes of this host, time of the slowest rank, {iterations} iterations, \
         {verified}\n\n{}",
        table.render()
    )
}
