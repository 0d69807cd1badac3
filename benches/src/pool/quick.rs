//! The pool's part of `kvbench quickstart`: two processes lend, a third puts, finds, reads, and puts
//! more than there is room for.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use kvferry_engine::{Engine, Region, Registry};
use kvferry_store::{Get, GetOptions, Key, Put, PutOptions, Store, Stored};

use super::parts::Part;
use crate::cli::Transport;
use crate::pattern::Pattern;
use crate::shape::Block;
use crate::stats::micros;
use crate::table::{Table, latency, rate, size};

const OBJECT_BYTES: u64 = 1 << 20;
const BATCH: u64 = 32;

/// What each of the two lends: room for two batches.
const LENT_BYTES: u64 = 64 << 20;

/// How many batches are put: twice as many as there is room for.
const BATCHES: u64 = 8;

/// Shows a pool at work.
pub(crate) fn page() -> anyhow::Result<String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let master = Part::master()?;
    let lender = |name| Part::lender(&master.address, name, LENT_BYTES, 4096, Transport::Auto);
    let lenders = [lender("lender-0")?, lender("lender-1")?];
    let client = runtime.block_on(Quick::start(&master.address))?;
    let page = runtime.block_on(client.show());
    // Before those that it tells.
    drop(client);
    drop((lenders, master));
    page
}

struct Quick {
    store: Store,
    memory: Region,
}

impl Quick {
    async fn start(master: &str) -> anyhow::Result<Self> {
        let registry = Registry::new();
        let memory = registry.allocate(BATCH * OBJECT_BYTES)?;
        let engine = Engine::builder(registry).listen("127.0.0.1:0").start().await?;
        Ok(Self { store: Store::builder(Arc::new(engine), master).start().await?, memory })
    }

    async fn show(&self) -> anyhow::Result<String> {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "\nA pool: a master, two processes that lend {} each, a third that puts and gets objects \
             of {}\nin batches of {BATCH}:\n",
            size(LENT_BYTES),
            size(OBJECT_BYTES),
        );
        let mut table = Table::new(&["what", "objects", "time", "GB/s", "found out"], 1);
        let mut row = |what: &str, objects: u64, took: Duration, moves: bool, found: String| {
            let gbps = if moves { rate(gbps(objects, took)) } else { String::new() };
            let time = latency(micros(took));
            table.row(vec![what.into(), objects.to_string(), time, gbps, found]);
        };
        let (took, stored) = self.put(0).await?;
        row("put a batch", BATCH, took, true, format!("{stored} are new"));
        let (took, there) = self.find(0..BATCH).await?;
        row("find them", BATCH, took, false, format!("{there} are there"));
        let (took, is_whole) = self.get().await?;
        let whole = if is_whole { "every byte" } else { "NOT ALL AS THEY WERE PUT" };
        row("get them", BATCH, took, true, whole.into());
        let (mut took, mut stored) = (Duration::ZERO, 0);
        for batch in 1..BATCHES {
            let (more, new) = self.put(batch).await?;
            took += more;
            stored += new;
        }
        let more = (BATCHES - 1) * BATCH;
        row("put more than there is room for", more, took, true, format!("{stored} are new"));
        let (took, there) = self.find(0..BATCHES * BATCH).await?;
        let all = BATCHES * BATCH;
        row("find all of them", all, took, false, format!("{} gave way", all - there));
        let (took, there) = self.find(0..BATCH).await?;
        row("find those that were read", BATCH, took, false, format!("{there} are there"));
        text.push_str(&table.render());
        anyhow::ensure!(is_whole, "{text}");
        Ok(text)
    }

    fn blocks(batch: u64) -> impl Iterator<Item = Block> {
        (0..BATCH).map(move |object| Block {
            number: batch * BATCH + object,
            offset: object * OBJECT_BYTES,
            bytes: OBJECT_BYTES,
        })
    }

    async fn put(&self, batch: u64) -> anyhow::Result<(Duration, u64)> {
        let pattern = Pattern { seed: 1, round: batch };
        pattern.fill(&self.memory, Self::blocks(batch))?;
        let mut puts = Vec::new();
        for block in Self::blocks(batch) {
            let span = self.memory.span(block.offset, block.bytes)?;
            puts.push(Put::new(key(block.number)?, [span]));
        }
        let began = Instant::now();
        let stored = self.store.put_all(puts, &PutOptions::default()).await;
        let took = began.elapsed();
        let mut new = 0;
        for stored in stored {
            new += u64::from(matches!(stored.context("putting")?, Stored::New { .. }));
        }
        Ok((took, new))
    }

    async fn find(&self, numbers: std::ops::Range<u64>) -> anyhow::Result<(Duration, u64)> {
        let keys = numbers.map(key).collect::<anyhow::Result<_>>()?;
        let began = Instant::now();
        let found = self.store.exist(keys).await;
        let took = began.elapsed();
        let mut there = 0;
        for found in found {
            there += u64::from(found.context("finding")?);
        }
        Ok((took, there))
    }

    /// Gets the first batch, and says whether it is as it was put.
    async fn get(&self) -> anyhow::Result<(Duration, bool)> {
        let zeros = vec![0; 1 << 20];
        let mut gets = Vec::new();
        for block in Self::blocks(0) {
            self.memory.write_at(block.offset, &zeros)?;
            let span = self.memory.span(block.offset, block.bytes)?;
            gets.push(Get::new(key(block.number)?, [span]));
        }
        let began = Instant::now();
        let got = self.store.get_all(gets, GetOptions::default()).await;
        let took = began.elapsed();
        got.into_iter().try_for_each(|got| got.map(|_| ()).context("getting"))?;
        let mismatch = Pattern { seed: 1, round: 0 }.verify(&self.memory, Self::blocks(0))?;
        Ok((took, mismatch.is_none()))
    }
}

fn key(number: u64) -> anyhow::Result<Key> {
    Ok(Key::try_from(format!("quickstart/{number}").as_str())?)
}

/// 1e9 bytes a second.
fn gbps(objects: u64, took: Duration) -> f64 {
    (objects * OBJECT_BYTES) as f64 / took.as_secs_f64() / 1e9
}
