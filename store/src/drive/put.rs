//! Putting a batch: what the state machine decides, carried out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvferry_engine::{Incarnation, Remote, RemoteSpan, Span, TransferError};
use kvferry_proto::pool::{
    Ended, Key, Outcome, Put as Room, PutEnd, PutRevoke, PutStart, PutStartAnswer, Revoked, Tenant,
};
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};

use super::shared::Shared;
use crate::decide::load::Load;
use crate::decide::put::{Batch, Ending, NotWritten, Revoking, Step, Stored};
use crate::error::Error;
use crate::object::{Put, PutOptions, length};

/// Puts all of them. Each ends by itself.
pub(crate) async fn put(
    shared: Arc<Shared>,
    tenant: Tenant,
    puts: Vec<Put>,
    options: PutOptions,
) -> Vec<Result<Stored, Error>> {
    let puts = Arc::new(puts);
    let checksums = match checksums(&puts, options.checksum).await {
        Ok(checksums) => checksums,
        Err(error) => return puts.iter().map(|_| Err(error.clone())).collect(),
    };
    let batch = Batch::new(puts.iter().map(Put::check));
    let (batch, starting) = (Some(batch), None);
    let mut putting = Putting { shared, tenant, puts, options, checksums, batch, starting };
    putting.carry_out().await;
    putting.batch.take().map_or_else(Vec::new, Batch::into_results)
}

async fn checksums(puts: &Arc<Vec<Put>>, wanted: bool) -> Result<Vec<Option<u32>>, Error> {
    if !wanted {
        return Ok(vec![None; puts.len()]);
    }
    let puts = puts.clone();
    let sums = move || {
        let sum = |put: &Put| kvferry_engine::crc32c(&put.spans).map(Some);
        puts.iter().map(sum).collect::<Result<Vec<_>, _>>()
    };
    let sums = spawn_blocking(sums).await;
    Ok(sums.map_err(|error| Error::system("computing checksums", error))??)
}

struct Putting {
    shared: Arc<Shared>,
    tenant: Tenant,
    puts: Arc<Vec<Put>>,
    options: PutOptions,
    checksums: Vec<Option<u32>>,
    /// Until its results are taken.
    batch: Option<Batch>,
    /// While room is asked for.
    starting: Option<Starting>,
}

/// A call that reserves room: a task of its own, so that its answer is heard whoever still waits.
struct Starting {
    call: JoinHandle<Result<PutStartAnswer, Error>>,
    items: Vec<usize>,
    sent: Instant,
}

impl Starting {
    /// Hears the answer, and tells the batch. May be dropped while it waits, and called again.
    async fn hear(&mut self, batch: &mut Batch) -> bool {
        let answer = match (&mut self.call).await {
            Ok(answer) => answer,
            // Nothing in it panics; if it does, so does the call that it is a part of.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        let mut refusals = answer.iter().flat_map(|answer| &answer.reserved);
        let is_unknown = refusals.any(|reserved| matches!(reserved, Err(Outcome::NotJoined)));
        batch.started(&self.items, self.sent, answer);
        is_unknown
    }
}

impl Putting {
    async fn carry_out(&mut self) {
        loop {
            let Some(batch) = &self.batch else { return };
            match batch.step() {
                Step::Start(items) => self.start(&items).await,
                Step::Write(loads) => self.write(loads).await,
                Step::Settle { ended, revoked } => self.settle(&ended, &revoked).await,
                Step::Wait(time) => {
                    sleep(time).await;
                    self.tell(Batch::waited);
                }
                Step::Over => return,
            }
        }
    }

    fn tell(&mut self, what: impl FnOnce(&mut Batch)) {
        if let Some(batch) = &mut self.batch {
            what(batch);
        }
    }

    fn key(&self, item: usize) -> Key {
        self.puts[item].key.clone()
    }

    async fn start(&mut self, items: &[usize]) {
        let room = |item: &usize| {
            let put = &self.puts[*item];
            Room { key: put.key.clone(), length: length(&put.spans), group: put.group.clone() }
        };
        let start = PutStart {
            client: self.shared.engine.incarnation(),
            tenant: self.tenant.clone(),
            puts: items.iter().map(room).collect(),
            replicas: self.options.replicas.max(1),
            preferred: self.options.preferred.clone(),
            is_pinned: self.options.is_pinned,
            soft_pin: self.options.soft_pin,
            at_once: false,
        };
        let (shared, sent) = (self.shared.clone(), Instant::now());
        let call = tokio::spawn(async move {
            let answer = shared.master.put_start(start).await?;
            for reserved in answer.reserved.iter().flatten() {
                shared.membership.lock().on_version(reserved.version);
            }
            Ok(answer)
        });
        let starting = self.starting.insert(Starting { call, items: items.to_vec(), sent });
        if let Some(batch) = &mut self.batch
            && starting.hear(batch).await
        {
            self.shared.join_again.notify_one();
        }
        self.starting = None;
    }

    async fn write(&mut self, loads: Vec<Load>) {
        let mut writing = JoinSet::new();
        for load in loads {
            let (shared, puts) = (self.shared.clone(), self.puts.clone());
            writing.spawn(async move {
                let outcome = write(&shared, &puts, &load).await;
                (load, outcome)
            });
        }
        while let Some(written) = writing.join_next().await {
            match written {
                Ok((load, outcome)) => self.tell(|batch| batch.written(&load, &outcome)),
                // Nothing in it panics; if it does, so does the call that it is a part of.
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
    }

    async fn settle(&mut self, ended: &[Ending], revoked: &[Revoking]) {
        if !ended.is_empty() {
            let end = |ending: &Ending| Ended {
                key: self.key(ending.item),
                version: ending.version,
                checksum: self.checksums[ending.item],
                lost: ending.lost.clone(),
            };
            let (client, tenant) = (self.shared.engine.incarnation(), self.tenant.clone());
            let puts = ended.iter().map(end).collect();
            let mut owners: Vec<Incarnation> =
                ended.iter().flat_map(|ending| ending.owners.iter().copied()).collect();
            owners.sort_unstable();
            owners.dedup();
            let answer = self.shared.master.put_end(PutEnd { client, tenant, puts }, owners).await;
            for (index, ending) in ended.iter().enumerate() {
                let answer = match &answer {
                    Ok(answer) => Ok((answer.outcomes[index], answer.is_recorded)),
                    Err(error) => Err(error.clone()),
                };
                self.tell(|batch| batch.ended(ending, answer));
            }
        }
        if !revoked.is_empty() {
            let revoke = revoke(&self.shared, &self.tenant, &self.puts, revoked);
            if let Err(error) = self.shared.master.put_revoke(revoke).await {
                tracing::debug!(%error, "reservations are left to end by themselves");
            }
            for revoking in revoked {
                self.tell(|batch| batch.revoked(revoking));
            }
        }
    }
}

impl Drop for Putting {
    /// Whoever waited has gone: what is reserved, or is just being reserved, is given back.
    fn drop(&mut self) {
        let Some(mut batch) = self.batch.take() else { return };
        let starting = self.starting.take();
        if starting.is_none() && batch.reserved().is_empty() {
            return;
        }
        let (shared, tenant, puts) = (self.shared.clone(), self.tenant.clone(), self.puts.clone());
        let give_back = async move {
            if let Some(mut starting) = starting {
                starting.hear(&mut batch).await;
            }
            let reserved = batch.reserved();
            if !reserved.is_empty() {
                let revoke = revoke(&shared, &tenant, &puts, &reserved);
                if let Err(error) = shared.master.put_revoke(revoke).await {
                    tracing::debug!(%error, "reservations are left to end by themselves");
                }
            }
        };
        // Outside of a runtime the store itself is going, and says so to the master.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(give_back);
        }
    }
}

fn revoke(shared: &Shared, tenant: &Tenant, puts: &[Put], revoked: &[Revoking]) -> PutRevoke {
    let one = |revoking: &Revoking| Revoked {
        key: puts[revoking.item].key.clone(),
        version: revoking.version,
        is_fenced: revoking.is_fenced,
    };
    PutRevoke {
        client: shared.engine.incarnation(),
        tenant: tenant.clone(),
        puts: revoked.iter().map(one).collect(),
    }
}

async fn write(shared: &Shared, puts: &[Put], load: &Load) -> Result<(), NotWritten> {
    let written = write_in_time(shared, puts, load).await;
    if let Err(lost) = &written
        && let Some(part) = load.parts.first()
    {
        tracing::debug!(owner = %part.place.owner(), error = %lost.error, "a copy is lost");
        if !lost.is_untouched {
            shared.owners.suspect(part.place.owner());
        }
    }
    written
}

async fn write_in_time(shared: &Shared, puts: &[Put], load: &Load) -> Result<(), NotWritten> {
    let untouched = |error| NotWritten { error, is_fenced: true, is_untouched: true };
    // What is wrong with an owner is wrong with all that it should have.
    let unreached = |error| NotWritten { error, is_fenced: true, is_untouched: false };
    let remaining = left(load.until).map_err(unreached)?;
    let found = timeout(remaining, shared.owners.places(load)).await;
    let found = found.unwrap_or(Err(Error::LeaseOver));
    let (peer, places) = found.map_err(unreached)?;
    let mut local = Vec::new();
    let mut remote = Vec::new();
    for (part, place) in load.parts.iter().zip(places) {
        let spans = &puts[part.item].spans;
        pair(spans, part.length, place, &mut local, &mut remote)
            .map_err(|error| untouched(error.into()))?;
    }
    let remaining = left(load.until).map_err(unreached)?;
    let request = peer.write(local, remote).deadline(remaining.min(patience(load.bytes())));
    match request.await {
        Ok(_) => Ok(()),
        Err(error) => Err(not_written(error)),
    }
}

fn not_written(error: TransferError) -> NotWritten {
    let is_untouched = error.remote == Remote::Untouched;
    let is_fenced = is_untouched || error.remote == Remote::Fenced;
    NotWritten { error: error.into(), is_fenced, is_untouched }
}

/// What is left until then.
pub(crate) fn left(until: Instant) -> Result<Duration, Error> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(Error::LeaseOver) } else { Ok(left) }
}

/// How long a transfer may take: as the engine's own.
pub(crate) fn patience(bytes: u64) -> Duration {
    Duration::from_secs(10) + Duration::from_millis(bytes / ((64 << 20) / 1000))
}

/// Pairs the first bytes of scattered spans with one place.
pub(crate) fn pair(
    spans: &[Span],
    length: u64,
    place: RemoteSpan,
    local: &mut Vec<Span>,
    remote: &mut Vec<RemoteSpan>,
) -> Result<(), kvferry_engine::Error> {
    let mut done = 0;
    for span in spans {
        let bytes = span.length().min(length - done);
        if bytes == 0 {
            continue;
        }
        local.push(span.part(0, bytes)?);
        remote.push(place.part(done, bytes)?);
        done += bytes;
    }
    Ok(())
}
