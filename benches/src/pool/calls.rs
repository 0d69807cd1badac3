//! Calls for single small objects, from one thread: one after the other, and with some in flight.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use kvferry_engine::Span;
use kvferry_store::{Key, Stored};
use serde::Serialize;
use tokio::task::JoinSet;

use super::client::Client;
use super::parts::Part;
use crate::cli::PoolArgs;
use crate::pattern::Pattern;
use crate::report::SYSTEM;
use crate::shape::Block;
use crate::stats::Percentiles;
use crate::table::{Table, latency, size};

const OBJECT_BYTES: u64 = 4096;

/// How many calls are in flight, where not one follows the other.
const IN_FLIGHT: u32 = 32;

/// The figures of one kind of call.
#[derive(Debug, Serialize)]
pub(super) struct Calls {
    system: &'static str,
    op: &'static str,
    object_bytes: u64,
    in_flight: u32,
    calls: u32,
    verified: bool,
    per_s: f64,
    #[serde(flatten)]
    took: Percentiles,
}

/// Objects of one series of calls: which, and how they are put and got.
struct Series<'a> {
    client: &'a Client,
    calls: u32,
    in_flight: u32,
}

/// Measures every kind of call.
pub(super) async fn measure(args: &PoolArgs) -> anyhow::Result<Vec<Calls>> {
    let bytes = u64::from(args.calls) * OBJECT_BYTES;
    let master = Part::master()?;
    // What is removed is free after its readers; there is room for both series, below the watermark.
    let lent = (bytes * 4).max(64 << 20);
    let lender = Part::lender(&master.address, "lender-0", lent, OBJECT_BYTES, args.transport)?;
    let lenders = [lender];
    let client = Client::start(0, &master.address, &lenders, bytes, args.transport).await?;
    let mut found = Vec::new();
    for in_flight in [1, IN_FLIGHT] {
        found.extend(Series { client: &client, calls: args.calls, in_flight }.measure(args).await?);
    }
    // Before those go that they are told by.
    tokio::task::spawn_blocking(move || drop((client, lenders, master))).await?;
    Ok(found)
}

impl Series<'_> {
    async fn measure(&self, args: &PoolArgs) -> anyhow::Result<[Calls; 3]> {
        let pattern = Pattern { seed: args.seed, round: self.in_flight.into() };
        let block = |number: u32| {
            let (number, bytes) = (u64::from(number), OBJECT_BYTES);
            Block { number, offset: number * bytes, bytes }
        };
        let blocks = || (0..self.calls).map(block);
        let memory = self.client.memory();
        pattern.fill(memory, blocks())?;
        let put = |key: Key, span: Span| {
            let store = self.client.store.clone();
            async move {
                let stored = store.put(key, [span]).await.context("putting")?;
                ensure!(matches!(stored, Stored::New { .. }), "an object was not put: {stored:?}");
                Ok(())
            }
        };
        let put = self.each("put", put).await?;
        memory.write_at(0, &vec![0; usize::try_from(memory.length())?])?;
        let get = |key: Key, span: Span| {
            let store = self.client.store.clone();
            async move {
                let got = store.get(key, [span]).await.context("getting")?;
                ensure!(got == OBJECT_BYTES, "an object has {got} bytes");
                Ok(())
            }
        };
        let mut get = self.each("get", get).await?;
        get.verified = pattern.verify(memory, blocks())?.is_none();
        ensure!(get.verified, "an object is not as it was put");
        let exists = |key: Key, _| {
            let store = self.client.store.clone();
            async move {
                let is_there = store.exists(key).await.context("asking")?;
                ensure!(is_there, "an object is not there");
                Ok(())
            }
        };
        let exists = self.each("exists", exists).await?;
        Ok([put, get, exists])
    }

    /// Makes a call for each object.
    async fn each<Call>(
        &self,
        op: &'static str,
        call: impl Fn(Key, Span) -> Call,
    ) -> anyhow::Result<Calls>
    where
        Call: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let mut calls = Vec::new();
        for number in 0..self.calls {
            let key = self.client.key(self.in_flight.into(), number.into())?;
            let offset = u64::from(number) * OBJECT_BYTES;
            calls.push(call(key, self.client.memory().span(offset, OBJECT_BYTES)?));
        }
        let mut took = Vec::with_capacity(calls.len());
        let mut calls = calls.into_iter();
        let began = Instant::now();
        if self.in_flight == 1 {
            for call in calls {
                took.push(timed(call).await?);
            }
        } else {
            let mut running = JoinSet::new();
            loop {
                while running.len() < usize::try_from(self.in_flight)?
                    && let Some(call) = calls.next()
                {
                    running.spawn(timed(call));
                }
                let Some(done) = running.join_next().await else { break };
                took.push(done.context("a call panicked: see above")??);
            }
        }
        let elapsed = began.elapsed();
        Ok(Calls {
            system: SYSTEM,
            op,
            object_bytes: OBJECT_BYTES,
            in_flight: self.in_flight,
            calls: self.calls,
            verified: true,
            per_s: f64::from(self.calls) / elapsed.as_secs_f64(),
            took: Percentiles::of(&took).context("nothing was measured: ask for a call")?,
        })
    }
}

async fn timed(call: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<Duration> {
    let began = Instant::now();
    call.await?;
    Ok(began.elapsed())
}

/// The figures, for people.
pub(super) fn table(calls: &[Calls]) -> String {
    let mut table = Table::new(&["call", "object", "in flight", "per second", "p50", "p99"], 1);
    for one in calls {
        table.row(vec![
            one.op.into(),
            size(one.object_bytes),
            one.in_flight.to_string(),
            format!("{:.0}", one.per_s),
            latency(one.took.p50_us),
            latency(one.took.p99_us),
        ]);
    }
    table.render()
}
