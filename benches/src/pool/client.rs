//! A client of the pool: puts and gets batches, and moves the same bytes without a pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kvferry_engine::{Engine, Peer, Region, Registry, RemoteSpan, Span, Transfer};
use kvferry_store::{Get, GetOptions, Key, Put, PutOptions, Store, Stored};

use super::parts::{Part, RAW};
use crate::cli::Transport;
use crate::pattern::{Mismatch, Pattern};
use crate::shape::Block;

/// How each batch is put and got, and for which content.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) object_bytes: u64,
    pub(super) batch: u64,
    pub(super) replicas: usize,
    pub(super) verify: bool,
    pub(super) seed: u64,
    pub(super) clients: u64,
    /// For how many rounds of all clients the raw memory of a lender has room.
    pub(super) raws: u64,
}

/// An engine, a store, memory for one batch, and the raw memory of the lenders.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) store: Store,
    number: u64,
    memory: Region,
    raw: Vec<(Peer, RemoteSpan)>,
}

/// What an iteration took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Took {
    pub(super) put: Duration,
    pub(super) get: Duration,
    pub(super) raw_write: Duration,
    pub(super) raw_read: Duration,
}

impl Client {
    pub(super) async fn start(
        number: u64,
        master: &str,
        lenders: &[Part],
        bytes: u64,
        transport: Transport,
    ) -> anyhow::Result<Self> {
        let registry = Registry::new();
        let memory = registry.allocate(bytes)?;
        let engine = Engine::builder(registry)
            .listen("127.0.0.1:0")
            .transports(transport.setting())
            .start()
            .await?;
        let engine = Arc::new(engine);
        let mut raw = Vec::with_capacity(lenders.len());
        for lender in lenders {
            let peer = engine.connect(&lender.address).await?;
            let span = peer.layout(RAW)?.block(0)?;
            raw.push((peer, span));
        }
        let host = format!("client-{number}");
        let store = Store::builder(engine, master).host(host).start().await?;
        Ok(Self { store, number, memory, raw })
    }

    pub(super) fn memory(&self) -> &Region {
        &self.memory
    }

    fn span(&self, work: Work, object: u64) -> anyhow::Result<Span> {
        Ok(self.memory.span(object * work.object_bytes, work.object_bytes)?)
    }

    fn blocks(&self, work: Work) -> impl Iterator<Item = Block> + use<> {
        let first = self.number * work.batch;
        (0..work.batch).map(move |object| Block {
            number: first + object,
            offset: object * work.object_bytes,
            bytes: work.object_bytes,
        })
    }

    pub(super) fn key(&self, round: u64, object: u64) -> anyhow::Result<Key> {
        // As long as the keys of vLLM's store connector are.
        let key = format!(
            "llama-3.1-8b@cfg:0123456789ab@tp_rank:{}@pcp0@dcp0@pp_rank:0@group:0@{:032x}{:032x}",
            self.number, round, object
        );
        Ok(Key::try_from(key.as_str())?)
    }

    /// Puts a batch, gets it back, and moves the same bytes in both directions without the pool, in
    /// turn. The content is new, and compared after each; neither is timed.
    pub(super) async fn iterate(
        &self,
        work: Work,
        round: u64,
    ) -> anyhow::Result<(Took, Option<Mismatch>)> {
        let mut took = Took::default();
        let pattern = Pattern { seed: work.seed, round };
        pattern.fill(&self.memory, self.blocks(work))?;
        let keys = (0..work.batch).map(|object| self.key(round, object));
        let keys: Vec<Key> = keys.collect::<anyhow::Result<_>>()?;

        let mut puts = Vec::with_capacity(keys.len());
        for (object, key) in (0..).zip(&keys) {
            puts.push(Put::new(key.clone(), [self.span(work, object)?]));
        }
        let options =
            PutOptions { replicas: work.replicas, checksum: work.verify, ..PutOptions::default() };
        let began = Instant::now();
        let stored = self.store.put_all(puts, &options).await;
        took.put = began.elapsed();
        for stored in stored {
            match stored.context("putting")? {
                Stored::New { replicas, .. } if replicas == work.replicas => {}
                other => bail!("an object was not put as often as asked for: {other:?}"),
            }
        }
        let began = Instant::now();
        self.raw(work, round, true).await?;
        took.raw_write = began.elapsed();

        self.clear(work)?;
        let mut gets = Vec::with_capacity(keys.len());
        for (object, key) in (0..).zip(&keys) {
            gets.push(Get::new(key.clone(), [self.span(work, object)?]));
        }
        let began = Instant::now();
        let got = self.store.get_all(gets, GetOptions { verify: work.verify }).await;
        took.get = began.elapsed();
        got.into_iter().try_for_each(|got| got.map(|_| ()).context("getting"))?;
        let mismatch = pattern.verify(&self.memory, self.blocks(work))?;

        self.clear(work)?;
        let began = Instant::now();
        self.raw(work, round, false).await?;
        took.raw_read = began.elapsed();
        let raw_mismatch = pattern.verify(&self.memory, self.blocks(work))?;
        for removed in self.store.remove(keys, true).await {
            removed.context("removing")?;
        }
        Ok((took, mismatch.or(raw_mismatch)))
    }

    /// Takes away what was there, so that only what arrives can be found.
    fn clear(&self, work: Work) -> anyhow::Result<()> {
        let zeros = vec![0; 1 << 16];
        let bytes = work.object_bytes * work.batch;
        for start in (0..bytes).step_by(zeros.len()) {
            let length = usize::try_from(bytes - start)?.min(zeros.len());
            self.memory.write_at(start, &zeros[..length])?;
        }
        Ok(())
    }

    /// The same bytes as one transfer to each of as many lenders as there are replicas; read from one.
    /// Each round has other memory of theirs.
    async fn raw(&self, work: Work, round: u64, is_write: bool) -> anyhow::Result<()> {
        let count = if is_write { work.replicas } else { 1 };
        let first = (round % work.raws * work.clients + self.number) * work.batch;
        let mut transfers: Vec<Transfer> = Vec::with_capacity(count);
        for (peer, raw) in self.raw.iter().take(count) {
            let mut local = Vec::new();
            let mut remote = Vec::new();
            for object in 0..work.batch {
                local.push(self.span(work, object)?);
                remote.push(raw.part((first + object) * work.object_bytes, work.object_bytes)?);
            }
            let request =
                if is_write { peer.write(local, remote) } else { peer.read(remote, local) };
            transfers.push(request.submit()?);
        }
        for transfer in transfers {
            transfer.await?;
        }
        Ok(())
    }
}
