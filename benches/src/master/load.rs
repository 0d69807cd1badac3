//! Clients: one that owns all objects, and those that look for them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use kvferry_proto::pool::{
    BATCH, Exists, ExistsAnswer, Held, Join, Lent, MountPart, Presence, SegmentId, Tenant, Version,
};
use kvferry_proto::rpc::pool as rpc;
use kvferry_proto::rpc::pool::pool_client::PoolClient;
use kvferry_proto::{Incarnation, RegionId};
use tokio::task::JoinSet;
use tonic::transport::Channel;

use super::keys::Keys;
use crate::stats::{micros, percentile};

/// What each object takes of its segment, in bytes. None of them is ever written.
pub(super) const OBJECT_BYTES: u64 = 64;

/// How many different batches there are.
pub(super) const BATCHES: usize = 2048;

pub(super) fn lent(keys: &Keys) -> Lent {
    Lent {
        segment: SegmentId(1),
        name: "bench".to_owned(),
        address: "127.0.0.1:1".to_owned(),
        region: RegionId { slot: 0, generation: 1 },
        offset: 0,
        // Twice as long as what is in it: nothing is evicted.
        length: keys.count() as u64 * OBJECT_BYTES * 2,
    }
}

pub(super) fn held(keys: &Keys, index: usize) -> anyhow::Result<Held> {
    Ok(Held {
        tenant: Tenant::default(),
        key: keys.key(index)?,
        version: Version(index as u64 + 1),
        offset: index as u64 * OBJECT_BYTES,
        length: OBJECT_BYTES,
        checksum: None,
        is_pinned: false,
        group: None,
    })
}

async fn connect(address: SocketAddr) -> anyhow::Result<PoolClient<Channel>> {
    let channel = Channel::from_shared(format!("http://{address}"))?.connect().await;
    Ok(PoolClient::new(channel.context("connecting to the master")?))
}

/// Mounts a segment with all the objects, as an owner does after a master's restart. How long the
/// master took.
pub(super) async fn fill(address: SocketAddr, keys: &Keys) -> anyhow::Result<Duration> {
    let mut pool = connect(address).await?;
    let client = Incarnation(1);
    pool.join(rpc::JoinRequest::from(&Join { client, host: String::new(), epoch: 0 })).await?;
    let first = MountPart::First { client, lent: lent(keys), is_fenced: true, held: Vec::new() };
    let mut parts: Vec<rpc::MountPart> = vec![first.into()];
    for start in (0..keys.count()).step_by(BATCH) {
        let end = (start + BATCH).min(keys.count());
        let some = (start..end).map(|index| held(keys, index)).collect::<Result<_, _>>()?;
        parts.push(MountPart::More(some).into());
    }
    let begun = Instant::now();
    let mounted = pool.mount(tokio_stream::iter(parts)).await?.into_inner();
    ensure!(mounted.adopted == keys.count() as u64, "only {} were taken in", mounted.adopted);
    Ok(begun.elapsed())
}

/// Who looks, and how much at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) address: SocketAddr,
    pub(super) batch: usize,
    /// Connections.
    pub(super) clients: u32,
    /// Calls of each of them.
    pub(super) in_flight: u32,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) keys: u64,
    pub(super) elapsed: Duration,
    /// How long each call took.
    calls: Vec<Duration>,
}

impl Loaded {
    /// How long a call took that is longer than this share of them, in microseconds.
    pub(super) fn percentile_us(&self, per_mille: usize) -> f64 {
        percentile(&self.calls, per_mille).map_or(0.0, micros)
    }
}

impl Load {
    /// Looks for keys that are there for so long. Every answer is checked.
    pub(super) async fn run(&self, keys: &Keys, time: Duration) -> anyhow::Result<Loaded> {
        let request = |batch| {
            let tenant = Tenant::default();
            rpc::ExistsRequest::from(Exists { tenant, keys: batch, lease: false })
        };
        let batches = keys.batches(self.batch, BATCHES)?.into_iter().map(request);
        let requests: std::sync::Arc<[rpc::ExistsRequest]> = batches.collect();
        let mut callers = JoinSet::new();
        let begun = Instant::now();
        for client in 0..self.clients {
            let pool = connect(self.address).await?;
            for call in 0..self.in_flight {
                let (mut pool, requests) = (pool.clone(), requests.clone());
                let start = (client * self.in_flight + call) as usize * 37;
                callers.spawn(async move {
                    let mut calls = Vec::new();
                    for number in start.. {
                        if begun.elapsed() >= time {
                            break;
                        }
                        let request = requests[number % requests.len()].clone();
                        let expected = request.keys.len();
                        let asked = Instant::now();
                        let reply = pool.exists(request).await?.into_inner();
                        calls.push(asked.elapsed());
                        let answer = ExistsAnswer::from_wire(&reply, expected)?;
                        let all = answer.found.iter().all(|found| *found == Presence::There);
                        ensure!(all, "a key that is there was not found");
                    }
                    anyhow::Ok(calls)
                });
            }
        }
        let mut calls = Vec::new();
        while let Some(caller) = callers.join_next().await {
            calls.extend(caller.context("a client panicked")??);
        }
        let keys = calls.len() as u64 * self.batch as u64;
        Ok(Loaded { keys, elapsed: begun.elapsed(), calls })
    }
}
