//! A grant that a peer gave to this engine.

use std::time::{Duration, Instant};

use kvferry_proto::message::Ticket;
use kvferry_proto::{Access, GrantId, Incarnation, RegionId};

use super::RemoteSpan;
use crate::error::Error;
use crate::time;

/// A grant of a peer, read from its ticket. It runs on this process's clock from then on.
#[derive(Clone, Debug)]
pub struct RemoteGrant {
    pub(crate) owner: Incarnation,
    pub(crate) id: GrantId,
    access: Access,
    expires: Option<Instant>,
    /// Sorted by region and offset; `None` where they are not known here.
    spans: Option<Vec<RemoteSpan>>,
}

impl RemoteGrant {
    /// Reads the bytes that the owner's program sent.
    ///
    /// # Errors
    /// [`Error::Ticket`] when they are no ticket.
    pub fn from_ticket(ticket: &[u8]) -> Result<Self, Error> {
        let ticket = Ticket::decode(ticket).map_err(Error::Ticket)?;
        let mut spans: Vec<RemoteSpan> = ticket
            .spans
            .iter()
            .map(|span| RemoteSpan {
                incarnation: ticket.owner,
                region: span.region,
                offset: span.offset,
                length: span.length,
            })
            .collect();
        spans.sort_unstable_by_key(|span| (span.region, span.offset));
        Ok(Self {
            owner: ticket.owner,
            id: ticket.grant,
            access: ticket.access,
            expires: time::now().checked_add(Duration::from_millis(ticket.remaining_ms)),
            spans: Some(spans),
        })
    }

    /// A grant of which the owner's program told no more than its name, where a ticket would be long
    /// beside what is said otherwise. What it covers, and until when, is left to the owner to check,
    /// slice by slice: a transfer that reaches beyond is refused there, and not here before its first
    /// byte.
    #[must_use]
    pub fn named(owner: Incarnation, id: GrantId, access: Access) -> Self {
        Self { owner, id, access, expires: None, spans: None }
    }

    /// The engine that gave it.
    #[must_use]
    pub fn owner(&self) -> Incarnation {
        self.owner
    }

    /// Its id at the owner.
    #[must_use]
    pub fn id(&self) -> GrantId {
        self.id
    }

    /// What it permits.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// What is left of its time, as far as that is known here.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.expires.map_or(Duration::MAX, |expires| expires.saturating_duration_since(time::now()))
    }

    /// The spans that it covers, sorted by region and offset. None for one that is known by its name
    /// only.
    #[must_use]
    pub fn spans(&self) -> &[RemoteSpan] {
        self.spans.as_deref().unwrap_or_default()
    }

    /// Whether nothing that is known here speaks against a range.
    pub(crate) fn covers(&self, region: RegionId, offset: u64, length: u64) -> bool {
        let Some(spans) = &self.spans else { return true };
        let behind = spans.partition_point(|span| (span.region, span.offset) <= (region, offset));
        behind.checked_sub(1).and_then(|at| spans.get(at)).is_some_and(|span| {
            span.region == region && offset + length <= span.offset + span.length
        })
    }
}
