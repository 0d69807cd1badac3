//! `kvbench pool`: objects put and got in batches, beside the same bytes without a pool.
//!
//! | module | what stands there |
//! |---|---|
//! | `parts` | the processes of the pool: its master, and those who lend |
//! | `client` | one iteration: put, get, and both without the pool, in turn |
//! | `calls` | single small objects, from one thread |
//! | `quick` | what `kvbench quickstart` shows of a pool |

mod calls;
mod client;
mod parts;
mod quick;

use std::io::{Write as _, stdout};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::cli::{PoolArgs, Sink};
use crate::memory::ensure_room;
use crate::output::write_json;
use crate::pattern::Mismatch;
use crate::progress::Progress;
use crate::report::SYSTEM;
use crate::stats::{median, micros, range};
use crate::table::{Table, latency, rate, size};
use crate::transfer::fail_on;
use calls::Calls;
use client::{Client, Took, Work};
pub(crate) use parts::be;
use parts::{LEASE, Part};
pub(crate) use quick::page as quick_page;

/// The most objects in a batch: what one call of the store takes to the master at once.
pub(crate) const MOST_BATCH: u32 = 4096;

/// How many batches the lent memory has room for at the least, and how much is lent for more of them:
/// what was removed is free when the leases of its readers are over.
const LEAST_BATCHES: u64 = 3;
const LENT_BYTES: u64 = 1 << 30;

/// Over how much memory of a lender transfers without the pool go, one round after the other: puts go to
/// other memory each time, too, that is in no processor's cache.
const RAW_BYTES: u64 = 256 << 20;

/// How long after a lease's end room is used again, at the most: the master looks now and then.
const FREE_AFTER: Duration = Duration::from_millis(500);

/// All figures of an invocation.
#[derive(Debug, Default, Serialize)]
struct Report {
    pool: Vec<Figures>,
    calls: Vec<Calls>,
}

/// The figures of one direction of one combination.
#[derive(Debug, Serialize)]
struct Figures {
    system: &'static str,
    op: &'static str,
    object_bytes: u64,
    batch: u32,
    clients: u32,
    replicas: u32,
    checksum: bool,
    iterations: u32,
    verified: bool,
    /// Of a batch, as its client saw it.
    p50_us: f64,
    /// 1e9 bytes a second, all clients together; each replica's bytes count.
    gbps: f64,
    /// The same bytes, spans and processes, without the pool.
    raw_gbps: f64,
    /// The median of the ratios of neighbouring runs, and their range.
    of_raw: f64,
    of_raw_range: (f64, f64),
}

/// Measures every size of object.
pub(crate) fn run(args: &PoolArgs) -> anyhow::Result<()> {
    if let Some(sink @ Sink::File(_)) = &args.json {
        // A path that cannot be written is found out now, not after the work.
        write_json(sink, &Report::default())?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut report = Report::default();
    let mut mismatch = None;
    let mut progress = Progress::start(args.object.len() + usize::from(args.calls > 0));
    for object in &args.object {
        progress.begin(&size(object.bytes()));
        let measured = runtime.block_on(measure(args, object.bytes()))?;
        mismatch = mismatch.or(measured.mismatch.clone());
        report.pool.extend(figures(args, object.bytes(), &measured)?);
    }
    if args.calls > 0 {
        progress.begin("calls");
        let thread = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        report.calls = thread.block_on(calls::measure(args))?;
    }
    drop(progress);
    if let Some(sink) = &args.json {
        write_json(sink, &report)?;
    }
    if args.json != Some(Sink::Output) {
        stdout().write_all(page(&report).as_bytes())?;
    }
    fail_on(mismatch.map(|mismatch| ("the pool", mismatch)))
}

/// What each client's batches took, by iteration.
#[derive(Debug)]
struct Measured {
    took: Vec<Vec<Took>>,
    mismatch: Option<Mismatch>,
}

async fn measure(args: &PoolArgs, object_bytes: u64) -> anyhow::Result<Measured> {
    let (batch, clients) = (u64::from(args.batch), u64::from(args.clients));
    let bytes = object_bytes.checked_mul(batch).context("a batch is too large")?;
    let all = bytes.checked_mul(clients).context("the batches are too large")?;
    let batches =
        (LENT_BYTES / all).clamp(LEAST_BATCHES, u64::from(args.iterations) + LEAST_BATCHES);
    let lent = all.checked_mul(batches).context("the batches are too large")?;
    let raws = (RAW_BYTES / all).clamp(1, batches);
    let raw = all * raws;
    let in_all =
        (raw + lent).checked_mul(args.replicas.into()).and_then(|lent| lent.checked_add(all));
    ensure_room(in_all.context("the batches are too large")?, None)?;

    let master = Part::master()?;
    let lenders = (0..args.replicas).map(|number| {
        let name = format!("lender-{number}");
        Part::lender(&master.address, &name, lent, raw, args.transport)
    });
    let lenders: Vec<Part> = lenders.collect::<anyhow::Result<_>>()?;
    let work = Work {
        object_bytes,
        batch,
        replicas: usize::try_from(args.replicas)?,
        verify: args.checksum,
        seed: args.seed,
        clients,
        raws,
    };
    let mut started = Vec::new();
    for number in 0..clients {
        let client = Client::start(number, &master.address, &lenders, bytes, args.transport);
        started.push(Arc::new(client.await?));
    }
    let mut measured = Measured { took: Vec::new(), mismatch: None };
    let outstanding = usize::try_from(batches - 2)?;
    let mut ended: Vec<Instant> = Vec::new();
    // The first warms up, and opens every lane.
    for round in 0..=u64::from(args.iterations) {
        // What earlier rounds have removed takes room for as long as it could be read; with one batch's
        // room to spare nothing is evicted meanwhile.
        if let Some(earlier) = ended.get(ended.len().wrapping_sub(outstanding)) {
            tokio::time::sleep_until((*earlier + LEASE + FREE_AFTER).into()).await;
        }
        let mut running = JoinSet::new();
        for client in &started {
            let client = client.clone();
            running.spawn(async move { client.iterate(work, round).await });
        }
        let mut took = Vec::new();
        while let Some(done) = running.join_next().await {
            let (one, mismatch) = done.context("a client panicked: see above")??;
            took.push(one);
            measured.mismatch = measured.mismatch.or(mismatch);
        }
        if round > 0 {
            measured.took.push(took);
        }
        ended.push(Instant::now());
    }
    // Before the runtime goes that they are told by.
    for client in started {
        tokio::task::spawn_blocking(move || drop(client)).await?;
    }
    tokio::task::spawn_blocking(move || drop((lenders, master))).await?;
    Ok(measured)
}

fn figures(
    args: &PoolArgs,
    object_bytes: u64,
    measured: &Measured,
) -> anyhow::Result<[Figures; 2]> {
    let one = |op, time: fn(&Took) -> Duration, raw: fn(&Took) -> Duration, copies: u32| {
        // An iteration is as long as its slowest client.
        let slowest = |time: fn(&Took) -> Duration| {
            let of = |took: &Vec<Took>| took.iter().map(time).max().unwrap_or_default();
            measured.took.iter().map(of).map(|time| time.as_secs_f64()).collect::<Vec<f64>>()
        };
        let (times, raws) = (slowest(time), slowest(raw));
        let batches = u64::from(args.batch) * u64::from(args.clients) * u64::from(copies);
        let moved = batches as f64 * object_bytes as f64;
        let ratios: Vec<f64> = times.iter().zip(&raws).map(|(time, raw)| raw / time).collect();
        let all = measured.took.iter().flatten().map(time).map(micros).collect::<Vec<f64>>();
        let figures = || {
            Some(Figures {
                system: SYSTEM,
                op,
                object_bytes,
                batch: args.batch,
                clients: args.clients,
                replicas: args.replicas,
                checksum: args.checksum,
                iterations: args.iterations,
                verified: measured.mismatch.is_none(),
                p50_us: median(&all)?,
                gbps: moved / median(&times)? / 1e9,
                raw_gbps: moved / median(&raws)? / 1e9,
                of_raw: median(&ratios)?,
                of_raw_range: range(&ratios)?,
            })
        };
        figures().context("nothing was measured: ask for an iteration")
    };
    ensure!(args.iterations > 0, "nothing was measured: ask for an iteration");
    Ok([
        one("put", |took| took.put, |took| took.raw_write, args.replicas)?,
        one("get", |took| took.get, |took| took.raw_read, 1)?,
    ])
}

fn page(report: &Report) -> String {
    let headings = [
        "op",
        "object",
        "batch",
        "clients",
        "replicas",
        "batch took",
        "GB/s",
        "raw GB/s",
        "of raw (range)",
        "verified",
    ];
    let mut table = Table::new(&headings, 1);
    for run in &report.pool {
        let (low, high) = run.of_raw_range;
        table.row(vec![
            run.op.into(),
            size(run.object_bytes),
            run.batch.to_string(),
            run.clients.to_string(),
            run.replicas.to_string(),
            latency(run.p50_us),
            rate(run.gbps),
            rate(run.raw_gbps),
            format!("{:.2} ({low:.2}-{high:.2})", run.of_raw),
            if run.verified { "every byte" } else { "NO" }.into(),
        ]);
    }
    let mut text = table.render();
    if !report.calls.is_empty() {
        text.push('\n');
        text.push_str(&calls::table(&report.calls));
    }
    text
}
