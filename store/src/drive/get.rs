//! Getting a batch: what the state machine decides, carried out.

use std::sync::Arc;
use std::time::Instant;

use kvferry_engine::Span;
use kvferry_proto::pool::{Locate, Tenant};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};

use super::put::{left, pair, patience};
use super::shared::Shared;
use crate::decide::get::{Batch, Step};
use crate::decide::load::Load;
use crate::error::Error;
use crate::object::{Get, GetOptions, length};

/// Gets all of them. Each ends by itself.
pub(crate) async fn get(
    shared: Arc<Shared>,
    tenant: Tenant,
    gets: Vec<Get>,
    options: GetOptions,
) -> Vec<Result<u64, Error>> {
    let gets = Arc::new(gets);
    let mut batch = Batch::new(gets.iter().map(|get| length(&get.spans)));
    loop {
        match batch.step(Instant::now()) {
            Step::Locate(items) => {
                let keys = items.iter().map(|item| gets[*item].key.clone()).collect();
                let locate = Locate { tenant: tenant.clone(), keys };
                let sent = Instant::now();
                let answer = shared.master.locate(locate).await;
                // Any number spreads readers over replicas; a failure to draw one does not.
                let turn = getrandom::u32().map_or(0, |turn| turn as usize);
                let is_suspect = |owner| shared.owners.is_suspect(owner);
                batch.located(&items, sent, answer, &shared.reader, is_suspect, turn);
            }
            Step::Read(loads) => read_all(&shared, &gets, options, &mut batch, loads).await,
            Step::Wait(time) => {
                sleep(time).await;
                batch.waited();
            }
            Step::Over => return batch.into_results(),
        }
    }
}

async fn read_all(
    shared: &Arc<Shared>,
    gets: &Arc<Vec<Get>>,
    options: GetOptions,
    batch: &mut Batch,
    loads: Vec<Load>,
) {
    let mut reading = JoinSet::new();
    for load in loads {
        let (shared, gets) = (shared.clone(), gets.clone());
        let checksums = match options.verify {
            true => load.parts.iter().map(|part| batch.checksum(part)).collect(),
            false => Vec::new(),
        };
        reading.spawn(async move {
            let outcome = read(&shared, &gets, &load, checksums).await;
            // Before anything else: bytes count that were here while the lease ran.
            (load, Instant::now(), outcome)
        });
    }
    while let Some(read) = reading.join_next().await {
        match read {
            Ok((load, now, outcome)) => {
                if let (Err(error), Some(part)) = (&outcome, load.parts.first()) {
                    tracing::debug!(owner = %part.place.owner(), %error, "a copy cannot be read");
                    shared.owners.suspect(part.place.owner());
                }
                batch.read(&load, now, &outcome);
            }
            // Nothing in it panics; if it does, so does the call that it is a part of.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

/// Reads a load. For each of its parts: whether its bytes match, where there is a checksum.
async fn read(
    shared: &Shared,
    gets: &Arc<Vec<Get>>,
    load: &Load,
    checksums: Vec<Option<u32>>,
) -> Result<Vec<bool>, Error> {
    let found = timeout(left(load.until)?, shared.owners.places(load)).await;
    let (peer, places) = found.unwrap_or(Err(Error::LeaseOver))?;
    let mut local = Vec::new();
    let mut remote = Vec::new();
    for (part, place) in load.parts.iter().zip(places) {
        pair(&gets[part.item].spans, part.length, place, &mut local, &mut remote)?;
    }
    let remaining = left(load.until)?.min(patience(load.bytes()));
    peer.read(remote, local).deadline(remaining).await?;
    if checksums.iter().all(Option::is_none) {
        return Ok(vec![true; load.parts.len()]);
    }
    let (gets, load) = (gets.clone(), load.clone());
    let compare = move || {
        let parts = load.parts.iter().zip(checksums);
        parts
            .map(|(part, expected)| matches(&gets[part.item].spans, part.length, expected))
            .collect()
    };
    spawn_blocking(compare).await.map_err(|error| Error::system("computing checksums", error))?
}

fn matches(spans: &[Span], length: u64, expected: Option<u32>) -> Result<bool, Error> {
    let Some(expected) = expected else { return Ok(true) };
    let mut filled = Vec::with_capacity(spans.len());
    let mut left = length;
    for span in spans {
        let bytes = span.length().min(left);
        filled.push(span.part(0, bytes)?);
        left -= bytes;
    }
    Ok(kvferry_engine::crc32c(&filled)? == expected)
}
