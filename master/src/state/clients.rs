//! Clients: joining, signs of life, leaving; and what becomes of what they hold.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvferry_proto::Incarnation;
use kvferry_proto::pool::{Changes, Follow, Join, Outcome, SegmentId};
use parking_lot::Mutex;

use super::lease::{Became, LeaseTimes, Leases};
use super::moment::Moment;
use super::segment::{Owner, Segment, State};
use super::{Pool, Told};

/// What a client is told that joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The master's epoch.
    pub epoch: u32,
    /// How long the client may be silent.
    pub lease: Duration,
    /// Whether not all owners have been heard yet.
    pub is_recovering: bool,
}

/// Why an owner cannot follow what changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FollowError {
    /// It has to join first.
    #[error("client {client} is not known: join, and mount its segments")]
    NotJoined {
        /// Who.
        client: Incarnation,
    },
    /// It has applied what it was never told.
    #[error("client {client} has applied change {applied}, but there are only {last}: join anew")]
    Ahead {
        /// Who.
        client: Incarnation,
        /// What it says that it has applied.
        applied: u64,
        /// The last change that there is.
        last: u64,
    },
}

/// What is known of a client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) owner: Arc<Owner>,
    pub(super) segments: Vec<Arc<Segment>>,
}

/// All that have joined.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) leases: Leases,
    pub(super) known: HashMap<Incarnation, Client>,
}

impl Clients {
    pub(super) fn new(times: LeaseTimes) -> Self {
        Self { leases: Leases::new(times), known: HashMap::new() }
    }

    /// Whether an owner has this change. `None` where it has not, and cannot be expected to.
    pub(super) fn has_applied(&self, owner: Incarnation, number: u64) -> Option<bool> {
        let has = self.known.get(&owner)?.owner.feed.lock().applied() >= number;
        (has || self.leases.is_live(owner)).then_some(has)
    }

    pub(super) fn segment(&self, client: Incarnation, segment: SegmentId) -> Option<&Arc<Segment>> {
        let segments = &self.known.get(&client)?.segments;
        segments.iter().find(|found| found.placed.lent.segment == segment)
    }

    /// Segments follow what becomes of their owner, those apart that are coming or going anyway.
    fn apply(&self, client: Incarnation, became: Became) {
        let state = match became {
            Became::Live => State::Alive,
            Became::Suspect => State::Suspect,
            Became::Expired => State::Expired,
            Became::Forgotten => State::Gone,
        };
        let segments = self.known.get(&client).map_or(&[][..], |client| &client.segments);
        for segment in segments {
            match segment.state() {
                State::Mounting | State::Leaving if state != State::Gone => {}
                State::Gone => {}
                _ => segment.set_state(state),
            }
        }
    }
}

impl Pool {
    /// A client joins, or joins again.
    ///
    /// # Errors
    /// [`Outcome::Full`] where there are too many.
    pub fn join(&self, now: Moment, join: &Join) -> Result<Joined, Outcome> {
        self.raise_epoch(join.epoch);
        let mut clients = self.clients.lock();
        let is_there = clients.known.contains_key(&join.client);
        if !is_there && clients.known.len() >= self.settings.limits.clients {
            return Err(Outcome::Full);
        }
        let (is_new, became) = clients.leases.grant(now, join.client);
        if is_new {
            let (incarnation, host) = (join.client, join.host.clone());
            let owner = Arc::new(Owner { incarnation, host, feed: Mutex::default() });
            clients.known.insert(join.client, Client { owner, segments: Vec::new() });
        }
        if let Some(became) = became {
            clients.apply(join.client, became);
        }
        drop(clients);
        Ok(Joined {
            epoch: self.epoch(),
            lease: self.settings.clients.expire,
            is_recovering: self.is_recovering(now),
        })
    }

    /// A client gives a sign of life. What is left of its lease by that; `None` where it has to join.
    pub fn beat(&self, now: Moment, client: Incarnation) -> Option<Duration> {
        let mut clients = self.clients.lock();
        if let Some(became) = clients.leases.renew(now, client)? {
            clients.apply(client, became);
        }
        Some(self.settings.clients.expire)
    }

    /// A client leaves: its segments are gone, its unfinished puts taken back. False where it was not
    /// known.
    pub fn leave(&self, now: Moment, client: Incarnation) -> bool {
        let mut clients = self.clients.lock();
        if !clients.leases.release(client) {
            return false;
        }
        self.let_go(&mut clients, client);
        drop(clients);
        self.reclaim(now, client);
        true
    }

    /// Looks whose lease is over. To be called every [`LeaseTimes::look_every`]; what it finds is for
    /// the log.
    pub fn look(&self, now: Moment) -> Vec<(Incarnation, Became)> {
        let mut clients = self.clients.lock();
        let changes = clients.leases.look(now);
        let held_up = u64::try_from(clients.leases.held_up().as_millis()).unwrap_or(u64::MAX);
        self.held_up_ms.store(held_up, Ordering::Release);
        self.looked.store(now.0, Ordering::Release);
        for (client, became) in &changes {
            if *became == Became::Forgotten {
                self.let_go(&mut clients, *client);
            } else {
                clients.apply(*client, *became);
            }
        }
        drop(clients);
        for (client, became) in &changes {
            if *became == Became::Expired {
                self.reclaim(now, *client);
            }
        }
        changes
    }

    /// Forgets a client, and takes its segments out of the pool.
    fn let_go(&self, clients: &mut Clients, client: Incarnation) {
        clients.apply(client, Became::Forgotten);
        if let Some(client) = clients.known.remove(&client) {
            let slots = client.segments.iter().map(|segment| segment.slot);
            self.gone.lock().extend(slots);
        }
    }

    /// Takes back what a client was writing.
    fn reclaim(&self, now: Moment, client: Incarnation) {
        // It may have begun a write at the last moment of its reservation.
        let quiet = now.after(self.settings.reservation).after(self.settings.late_writes);
        let segments = self.segments.read();
        let mut told = Told::default();
        for shard in &self.shards {
            let mut shard = shard.lock();
            if shard.writing() == 0 {
                continue;
            }
            for number in shard.written_by(client) {
                self.discard(&segments, &mut shard, number, quiet, &mut told);
                self.counts.reclaimed.fetch_add(1, Ordering::Relaxed);
            }
        }
        // Nobody had been told of what was not finished.
        debug_assert_eq!(told, Told::default());
    }

    /// An owner says how far its inventory has come.
    ///
    /// # Errors
    /// Where it has to join, first or anew.
    pub fn follow(&self, now: Moment, follow: Follow) -> Result<(), FollowError> {
        let Follow { client, applied } = follow;
        let clients = self.clients.lock();
        let known = clients.known.get(&client).ok_or(FollowError::NotJoined { client })?;
        let mut feed = known.owner.feed.lock();
        if !feed.apply(applied) {
            return Err(FollowError::Ahead { client, applied, last: feed.last() });
        }
        drop(feed);
        let segments = known.segments.clone();
        drop(clients);
        for segment in segments {
            segment.applied(now, applied);
        }
        Ok(())
    }

    /// What an owner is to be told after that change. `None` where there is nothing, or it is not
    /// known.
    #[must_use]
    pub fn changes(&self, client: Incarnation, after: u64) -> Option<Changes> {
        let owner = self.clients.lock().known.get(&client)?.owner.clone();
        let feed = owner.feed.lock();
        feed.after(after)
    }

    /// Whether a client's lease runs.
    pub(super) fn is_live(&self, client: Incarnation) -> bool {
        self.clients.lock().leases.is_live(client)
    }

    /// Clients whose leases run, and those that are remembered.
    #[must_use]
    pub fn clients(&self) -> (usize, usize) {
        self.clients.lock().leases.counts()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    #[test]
    fn a_master_that_is_stopped_while_it_recovers_hears_owners_out_once_it_is_woken() {
        let second = Duration::from_secs(1);
        let settings = Settings { recovery: second * 3, ..Settings::default() };
        let every = settings.clients.look_every;
        let pool = Pool::new(settings, 1);
        let mut now = Moment(0);
        let look_for = |time: Duration, now: &mut Moment| {
            let end = now.after(time);
            while *now < end {
                *now = now.after(every);
                pool.look(*now);
            }
        };
        look_for(second, &mut now);
        assert!(pool.is_recovering(now));
        // Stopped for a minute: asked before and after it has looked, it says the same.
        now = now.after(second * 60);
        assert!(pool.is_recovering(now));
        pool.look(now);
        assert!(pool.is_recovering(now));
        look_for(second, &mut now);
        assert!(pool.is_recovering(now));
        look_for(second * 2, &mut now);
        assert!(!pool.is_recovering(now));
        // What is over stays so.
        assert!(!pool.is_recovering(now.after(second * 60)));
    }
}
