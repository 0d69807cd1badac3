//! The driver of a table: the one place where it meets the clock and the network.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout_at};

use super::probe;
use crate::bootstrap::registration::Registration;
use crate::bootstrap::table::{
    Answer, Happened, Incomplete, Listing, PROBES_AT_ONCE, Probe, Refusal, Settings, Table, Verdict,
};

/// How long a registration may wait for what probes find: less than the 5 s after which in-tree
/// callers give up.
const PATIENCE: Duration = Duration::from_secs(3);

/// How many registrations may wait for probes at once. More would keep connections from others.
const WAITING: usize = 64;

/// A table, and what it needs to answer.
#[derive(Debug)]
pub(super) struct Desk {
    table: Mutex<Table>,
    /// Something may be due earlier than before.
    changed: Notify,
    waiting: Semaphore,
    probing: Arc<Semaphore>,
}

/// What becomes of a registration.
#[derive(Debug)]
pub(super) enum Outcome {
    Accepted,
    Refused(Refusal),
    /// Too many others wait for probes.
    Busy,
}

impl Desk {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            table: Mutex::new(Table::new(settings)),
            changed: Notify::new(),
            waiting: Semaphore::new(WAITING),
            probing: Arc::new(Semaphore::new(PROBES_AT_ONCE)),
        }
    }

    pub(super) fn query(&self) -> Result<Listing, Incomplete> {
        self.with_table(|table, now| table.query(now))
    }

    pub(super) async fn register(&self, registration: Registration) -> Outcome {
        let mut answer = self.with_table(|table, now| table.register(now, registration));
        let deadline = Instant::now() + PATIENCE;
        let mut permit = None;
        loop {
            let pending = match answer {
                Answer::Accepted => {
                    self.changed.notify_one();
                    return Outcome::Accepted;
                }
                Answer::Refused(refusal) => return Outcome::Refused(refusal),
                Answer::Probe(pending) => pending,
            };
            if permit.is_none() {
                let Ok(got) = self.waiting.try_acquire() else { return Outcome::Busy };
                permit = Some(got);
            }
            let found = self.try_all(pending.probes(), deadline).await;
            answer = self.with_table(|table, now| table.resume(now, pending, found));
        }
    }

    /// Does what is due, for ever.
    pub(super) async fn keep(&self) {
        loop {
            let next = self.table.lock().next_due();
            let changed = self.changed.notified();
            match next {
                None => changed.await,
                Some(next) => {
                    tokio::select! {
                        () = sleep_until(next.into()) => {}
                        () = changed => continue,
                    }
                }
            }
            let probes = self.with_table(Table::due);
            let found = self.try_all(&probes, Instant::now() + PATIENCE).await;
            self.with_table(|table, now| {
                for (probe, verdict) in &found {
                    table.probed(now, probe, *verdict);
                }
            });
        }
    }

    /// Tries addresses at the same time. Of those that had no turn by the deadline, nothing is
    /// known.
    async fn try_all(&self, probes: &[Probe], deadline: Instant) -> Vec<(Probe, Verdict)> {
        let mut tries = JoinSet::new();
        for (index, probe) in probes.iter().enumerate() {
            let (probing, address) = (self.probing.clone(), probe.address().clone());
            tries.spawn(async move {
                let attempt = async {
                    // It is never closed.
                    let Ok(turn) = probing.acquire_owned().await else { return Verdict::Unknown };
                    probe::accepts(address.endpoint(), turn).await
                };
                let verdict = timeout_at(deadline.into(), attempt).await;
                (index, verdict.unwrap_or(Verdict::Unknown))
            });
        }
        let mut found = vec![Verdict::Unknown; probes.len()];
        while let Some(tried) = tries.join_next().await {
            // One that panicked has found nothing.
            if let Ok((index, verdict)) = tried {
                found[index] = verdict;
            }
        }
        probes.iter().cloned().zip(found).collect()
    }

    fn with_table<T>(&self, act: impl FnOnce(&mut Table, Instant) -> T) -> T {
        let mut table = self.table.lock();
        let result = act(&mut table, Instant::now());
        for change in table.changes() {
            let (rank, address, engine) = (change.rank, change.address, change.engine_id);
            match change.what {
                Happened::Joined => tracing::info!(%rank, %address, ?engine, "worker registered"),
                Happened::Replaced => tracing::info!(%rank, %address, ?engine, "worker replaced"),
                Happened::Expired => {
                    tracing::warn!(%rank, %address, ?engine, "worker forgotten: its lease is over");
                }
                Happened::Silent => {
                    tracing::warn!(%rank, %address, ?engine, "worker forgotten: nothing is there");
                }
            }
        }
        result
    }
}
