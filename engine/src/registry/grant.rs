//! Permissions that peers hold.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvferry_proto::frame::Status;
use kvferry_proto::message::{TICKET_SPANS, Ticket, TicketSpan};
use kvferry_proto::{Access, GrantId, Incarnation, RegionId};
use parking_lot::RwLock;

use super::Registry;
use super::region::RegionInner;
use super::span::Span;
use crate::error::Error;
use crate::passage;
use crate::time;

struct Range {
    region: RegionId,
    start: u64,
    end: u64,
}

pub(crate) struct GrantInner {
    pub(crate) id: GrantId,
    pub(crate) access: Access,
    /// Whom it was given to; `None` for everybody.
    peer: Option<Incarnation>,
    expires: Option<Instant>,
    live: AtomicBool,
    /// Sorted, without overlap.
    ranges: Vec<Range>,
    regions: Vec<Arc<RegionInner>>,
}

impl GrantInner {
    /// Whether `peer` may have `wanted` access under it now.
    pub(crate) fn check(
        &self,
        peer: Incarnation,
        wanted: Access,
        now: Instant,
    ) -> Result<(), Status> {
        if self.peer.is_some_and(|granted| granted != peer) {
            return Err(Status::GrantForeign);
        }
        if !self.access.permits(wanted) {
            return Err(Status::AccessDenied);
        }
        self.check_alive(now)
    }

    /// Whether it is neither revoked nor over. To be looked at inside a passage.
    pub(crate) fn check_alive(&self, now: Instant) -> Result<(), Status> {
        if !self.live.load(Ordering::Acquire) {
            return Err(Status::GrantGone);
        }
        if self.expires.is_some_and(|expires| now >= expires) {
            return Err(Status::GrantExpired);
        }
        Ok(())
    }

    /// The region, if it is one that the grant covers a part of.
    pub(crate) fn region(&self, id: RegionId) -> Result<&Arc<RegionInner>, Status> {
        match self.regions.binary_search_by_key(&id.slot, |region| region.id.slot) {
            Ok(at) if self.regions[at].id == id => Ok(&self.regions[at]),
            Ok(_) => Err(Status::RegionGone),
            Err(_) => Err(Status::OutOfBounds),
        }
    }

    /// Whether `[start, end)` of a region lies in what the grant covers.
    pub(crate) fn covers(&self, region: RegionId, start: u64, end: u64) -> bool {
        let behind =
            self.ranges.partition_point(|range| (range.region, range.start) <= (region, start));
        behind
            .checked_sub(1)
            .and_then(|at| self.ranges.get(at))
            .is_some_and(|range| range.region == region && range.start <= start && end <= range.end)
    }
}

#[derive(Default)]
struct Slots {
    slots: Vec<Option<Arc<GrantInner>>>,
    free: Vec<u32>,
    by_region: HashMap<RegionId, BTreeSet<GrantId>>,
}

#[derive(Default)]
pub(crate) struct GrantTable(RwLock<Slots>);

impl GrantTable {
    pub(super) fn insert(
        &self,
        spans: Vec<Span>,
        peer: Option<Incarnation>,
        access: Access,
        expires: Option<Instant>,
    ) -> Result<Arc<GrantInner>, Error> {
        let nonce = getrandom::u32().map_err(|error| {
            Error::system("drawing a random number")(std::io::Error::other(error))
        })?;
        let (ranges, regions) = merge(spans);
        if ranges.len() > TICKET_SPANS {
            let (what, limit) = ("ranges of one grant", TICKET_SPANS as u64);
            return Err(Error::Backpressure { what, limit });
        }
        let mut table = self.0.write();
        let slot = match table.free.pop() {
            Some(slot) => slot,
            None => {
                table.slots.push(None);
                u32::try_from(table.slots.len() - 1).map_err(|_| Error::Backpressure {
                    what: "grants",
                    limit: u64::from(u32::MAX),
                })?
            }
        };
        // A nonce of 0 would make slot 0's id 0, which means none.
        let id = GrantId::new(slot, nonce | 1);
        for region in &regions {
            table.by_region.entry(region.id).or_default().insert(id);
        }
        let live = AtomicBool::new(true);
        let grant = Arc::new(GrantInner { id, access, peer, expires, live, ranges, regions });
        table.slots[slot as usize] = Some(grant.clone());
        Ok(grant)
    }

    pub(crate) fn get(&self, id: GrantId) -> Result<Arc<GrantInner>, Status> {
        let table = self.0.read();
        let grant = table.slots.get(id.slot() as usize).and_then(Option::as_ref);
        grant.filter(|grant| grant.id == id).cloned().ok_or(Status::GrantGone)
    }

    pub(super) fn count(&self) -> usize {
        let table = self.0.read();
        table.slots.len() - table.free.len()
    }

    /// Returns when nothing more can be touched under these grants, whoever revoked them: another
    /// thread may have marked them and not have waited yet.
    fn revoke(&self, ids: impl IntoIterator<Item = GrantId>) {
        {
            let mut table = self.0.write();
            for id in ids {
                table.remove(id);
            }
        }
        passage::quiesce();
    }

    /// Returns when nothing more can be touched of a region under any grant.
    pub(super) fn revoke_region(&self, region: RegionId) {
        let ids = self.0.write().by_region.remove(&region).unwrap_or_default();
        self.revoke(ids);
    }
}

impl Slots {
    fn remove(&mut self, id: GrantId) {
        let Some(slot) = self.slots.get_mut(id.slot() as usize) else { return };
        let Some(grant) = slot.take_if(|grant| grant.id == id) else { return };
        grant.live.store(false, Ordering::Release);
        self.free.push(id.slot());
        for region in &grant.regions {
            if let Some(grants) = self.by_region.get_mut(&region.id) {
                grants.remove(&id);
                if grants.is_empty() {
                    self.by_region.remove(&region.id);
                }
            }
        }
    }
}

fn merge(mut spans: Vec<Span>) -> (Vec<Range>, Vec<Arc<RegionInner>>) {
    spans.retain(|span| span.length > 0);
    spans.sort_unstable_by_key(|span| (span.region.id, span.offset));
    let mut ranges: Vec<Range> = Vec::with_capacity(spans.len());
    let mut regions: Vec<Arc<RegionInner>> = Vec::new();
    for span in spans {
        let (region, start, end) = (span.region.id, span.offset, span.offset + span.length);
        if regions.last().is_none_or(|last| last.id != region) {
            regions.push(span.region.clone());
        }
        match ranges.last_mut() {
            Some(last) if last.region == region && start <= last.end => {
                last.end = last.end.max(end);
            }
            _ => ranges.push(Range { region, start, end }),
        }
    }
    (ranges, regions)
}

impl Registry {
    /// Grants `peer` `access` to `spans`, for `ttl`.
    ///
    /// # Errors
    /// [`Error::AccessConflict`] when a region is not registered for this access.
    pub fn grant(
        &self,
        spans: impl IntoIterator<Item = Span>,
        peer: Incarnation,
        access: Access,
        ttl: Duration,
    ) -> Result<Grant, Error> {
        let spans: Vec<Span> = spans.into_iter().collect();
        for span in &spans {
            let registered = span.region.access;
            if !registered.permits(access) {
                let existing = span.region.id;
                return Err(Error::AccessConflict { existing, registered, wanted: access });
            }
        }
        // A time too long for the clock is for ever.
        let expires = time::now().checked_add(ttl);
        let inner = self.grants().insert(spans, Some(peer), access, expires)?;
        // An unregistering marks its region first and looks for grants then: one of the two sees the
        // other.
        if let Some(region) = inner.regions.iter().find(|region| region.is_closing()) {
            let region = region.id;
            self.grants().revoke([inner.id]);
            return Err(Error::Unregistered { region });
        }
        Ok(Grant { registry: self.clone(), inner })
    }
}

/// A permission that one peer holds. Dropping it revokes it.
///
/// A grant whose time is over permits nothing that starts later; what started before ends within
/// microseconds. [`Grant::revoke`] is what waits for it.
pub struct Grant {
    registry: Registry,
    inner: Arc<GrantInner>,
}

impl Grant {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> GrantId {
        self.inner.id
    }

    /// What it permits.
    #[must_use]
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// What is left of its time.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.inner
            .expires
            .map_or(Duration::MAX, |expires| expires.saturating_duration_since(time::now()))
    }

    /// Takes the permission back. When this returns nothing more can land, or be taken, under it;
    /// slices that are under way are refused. It takes the time of one system call.
    pub fn revoke(self) {
        drop(self);
    }

    pub(crate) fn ticket(&self, owner: Incarnation) -> Ticket {
        Ticket {
            owner,
            grant: self.inner.id,
            access: self.inner.access,
            remaining_ms: u64::try_from(self.remaining().as_millis()).unwrap_or(u64::MAX),
            spans: self
                .inner
                .ranges
                .iter()
                .map(|range| TicketSpan {
                    region: range.region,
                    offset: range.start,
                    length: range.end - range.start,
                })
                .collect(),
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.registry.grants().revoke([self.inner.id]);
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("id", &self.inner.id)
            .field("access", &self.inner.access)
            .field("peer", &self.inner.peer)
            .field("spans", &self.inner.ranges.len())
            .finish_non_exhaustive()
    }
}
