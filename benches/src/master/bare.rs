//! The state machine alone: the same keys in the same batches, without a server.

use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use kv_master::state::{Moment, Pool, Settings, Told};
use kvferry_proto::Incarnation;
use kvferry_proto::pool::{Exists, Join, Presence, Tenant};

use super::keys::Keys;
use super::load::{BATCHES, held, lent};
use crate::measure::cpu_spent;

/// Keys looked up per second of a processor.
pub(super) fn run(keys: &Keys, batch: usize, time: Duration) -> anyhow::Result<f64> {
    let pool = Pool::new(Settings { recovery: Duration::ZERO, ..Settings::default() }, 1);
    let (client, now) = (Incarnation(1), Moment(1));
    pool.join(now, &Join { client, host: String::new(), epoch: 0 })
        .map_err(|outcome| anyhow!("{outcome}"))?;
    let mounting = pool.mount(now, client, lent(keys), true)?;
    let mut mounting = mounting.ok_or_else(|| anyhow!("the segment was there already"))?;
    for index in 0..keys.count() {
        pool.adopt(now, &mut mounting, vec![held(keys, index)?], &mut Told::default())?;
    }
    pool.mounted(&mounting)?;
    let batches = keys.batches(batch, BATCHES)?;
    let request = |keys| Exists { tenant: Tenant::default(), keys, lease: false };
    let batches: Vec<Exists> = batches.into_iter().map(request).collect();
    let (begun, cpu_before, mut looked) = (Instant::now(), cpu_spent(), 0_u64);
    while begun.elapsed() < time {
        for exists in &batches {
            let found = pool.exists(now, exists).found;
            ensure!(found.iter().all(|found| *found == Presence::There), "a key was not found");
            looked += found.len() as u64;
        }
    }
    Ok(looked as f64 / cpu_spent().saturating_sub(cpu_before).as_secs_f64())
}
