//! Segments, what is in them, and what changes.

use std::fmt;
use std::time::Duration;

use super::client::millis;
use super::{
    Key, NAME_BYTES, SEGMENT_BYTES, SegmentId, Tenant, Version, bounded, group, list, name,
};
use crate::identity::{Incarnation, RegionId};
use crate::message::{self, MessageError};
use crate::rpc::pool as rpc;

/// A segment, as its owner lends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lent {
    /// Its number.
    pub segment: SegmentId,
    /// What people call it; several may have the same name.
    pub name: String,
    /// Where the owner's engine is reached: `host:port`.
    pub address: String,
    /// The region of that engine.
    pub region: RegionId,
    /// Where it begins, in bytes from the region's start.
    pub offset: u64,
    /// How long it is, in bytes: 1 to [`SEGMENT_BYTES`].
    pub length: u64,
}

/// One object in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Whose it is.
    pub tenant: Tenant,
    /// Its key.
    pub key: Key,
    /// Which put it came from.
    pub version: Version,
    /// Where it is, in bytes from the segment's start; offset plus length does not overflow.
    pub offset: u64,
    /// How long it is, in bytes: never 0.
    pub length: u64,
    /// CRC-32C of its bytes, where the writer gave it.
    pub checksum: Option<u32>,
    /// Never evicted.
    pub is_pinned: bool,
    /// Evicted together with others of this name.
    pub group: Option<String>,
}

/// A part of what an owner says when it mounts a segment: first the segment, then what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountPart {
    /// Whose segment it is, which, and some of what is in it.
    First {
        /// The owner.
        client: Incarnation,
        /// The segment.
        lent: Lent,
        /// Nothing that was allowed before can touch it any more: it is new, or its owner has fenced
        /// the reads and writes that an earlier master allowed. Otherwise nothing is placed in it
        /// until those are over for sure.
        is_fenced: bool,
        /// What is in it.
        held: Vec<Held>,
    },
    /// More of what is in it.
    More(Vec<Held>),
}

/// Which segment is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmount {
    /// By whom.
    pub client: Incarnation,
    /// Which.
    pub segment: SegmentId,
    /// How long reads and writes that are under way may take to end first.
    pub grace: Duration,
}

/// How far an owner's inventory has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follow {
    /// Whose.
    pub client: Incarnation,
    /// The number of the last change that is in it; 0 before the first.
    pub applied: u64,
}

/// What changed in the segments of one owner, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The number of the last one. They count from 1 for as long as the master knows the client.
    pub number: u64,
    /// What.
    pub changes: Vec<Change>,
}

/// What changed in one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub segment: SegmentId,
    /// How.
    pub what: What,
}

/// How a segment changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// This is in it now.
    Keep(Held),
    /// The object of this version is not any more. An unknown one is nothing to worry about.
    Drop(Version),
}

/// A segment that an answer refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Whose it is.
    pub owner: Incarnation,
    /// The segment.
    pub lent: Lent,
    /// The owner's host.
    pub host: String,
}

/// What becomes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// Its owner says what is in it.
    Mounting,
    /// It is used.
    Alive,
    /// Its owner was not heard lately: nothing is placed in it.
    Suspect,
    /// Its owner takes it back: nothing is placed in it.
    Leaving,
    /// Its owner's lease is over: what is in it is hidden.
    Expired,
}

/// How a segment stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentStatus {
    /// Which, and whose.
    pub placed: Placed,
    /// How much of it is taken, in bytes.
    pub used: u64,
    /// What becomes of it.
    pub state: SegmentState,
}

impl From<&Lent> for rpc::Lent {
    fn from(lent: &Lent) -> Self {
        Self {
            segment: lent.segment.0,
            name: lent.name.clone(),
            address: lent.address.clone(),
            region_slot: lent.region.slot,
            region_generation: lent.region.generation,
            offset_bytes: lent.offset,
            length_bytes: lent.length,
        }
    }
}

impl TryFrom<rpc::Lent> for Lent {
    type Error = MessageError;

    fn try_from(lent: rpc::Lent) -> Result<Self, MessageError> {
        let message = "Lent";
        let (offset, length) = (lent.offset_bytes, lent.length_bytes);
        if length == 0 || length > SEGMENT_BYTES || offset.checked_add(length).is_none() {
            return Err(MessageError::Value { message, field: "length_bytes", value: length });
        }
        bounded(message, "bytes in its address", lent.address.len(), NAME_BYTES)?;
        if lent.address.is_empty() {
            return Err(MessageError::Missing { message, field: "address" });
        }
        Ok(Self {
            segment: SegmentId::new(message, lent.segment)?,
            name: name(message, "bytes in its name", lent.name)?,
            address: lent.address,
            region: RegionId { slot: lent.region_slot, generation: lent.region_generation },
            offset,
            length,
        })
    }
}

impl From<Held> for rpc::Held {
    fn from(held: Held) -> Self {
        Self {
            tenant: held.tenant.into(),
            key: held.key.into(),
            version: held.version.0,
            offset_bytes: held.offset,
            length_bytes: held.length,
            checksum: held.checksum,
            is_pinned: held.is_pinned,
            group: held.group.unwrap_or_default(),
        }
    }
}

impl TryFrom<rpc::Held> for Held {
    type Error = MessageError;

    fn try_from(held: rpc::Held) -> Result<Self, MessageError> {
        let message = "Held";
        let (offset, length) = (held.offset_bytes, held.length_bytes);
        if length == 0 || offset.checked_add(length).is_none() {
            return Err(MessageError::Value { message, field: "length_bytes", value: length });
        }
        Ok(Self {
            tenant: Tenant::new(held.tenant)?,
            key: Key::new(held.key)?,
            version: Version::new(message, held.version)?,
            offset,
            length,
            checksum: held.checksum,
            is_pinned: held.is_pinned,
            group: group(message, held.group)?,
        })
    }
}

impl From<MountPart> for rpc::MountPart {
    fn from(part: MountPart) -> Self {
        let (client, lent, is_fenced, held) = match part {
            MountPart::First { client, lent, is_fenced, held } => {
                (client.0, Some((&lent).into()), is_fenced, held)
            }
            MountPart::More(held) => (0, None, false, held),
        };
        Self { client, lent, is_fenced, held: held.into_iter().map(Into::into).collect() }
    }
}

impl TryFrom<rpc::MountPart> for MountPart {
    type Error = MessageError;

    fn try_from(part: rpc::MountPart) -> Result<Self, MessageError> {
        let message = "MountPart";
        let held = list(message, "objects", part.held, TryInto::try_into)?;
        let Some(lent) = part.lent else { return Ok(Self::More(held)) };
        let client = message::incarnation(message, part.client)?;
        Ok(Self::First { client, lent: lent.try_into()?, is_fenced: part.is_fenced, held })
    }
}

impl From<Unmount> for rpc::UnmountRequest {
    fn from(unmount: Unmount) -> Self {
        let grace_ms = millis(unmount.grace);
        Self { client: unmount.client.0, segment: unmount.segment.0, grace_ms }
    }
}

impl TryFrom<rpc::UnmountRequest> for Unmount {
    type Error = MessageError;

    fn try_from(unmount: rpc::UnmountRequest) -> Result<Self, MessageError> {
        let message = "UnmountRequest";
        Ok(Self {
            client: message::incarnation(message, unmount.client)?,
            segment: SegmentId::new(message, unmount.segment)?,
            grace: Duration::from_millis(unmount.grace_ms),
        })
    }
}

impl From<Follow> for rpc::FollowRequest {
    fn from(follow: Follow) -> Self {
        Self { client: follow.client.0, applied: follow.applied }
    }
}

impl TryFrom<rpc::FollowRequest> for Follow {
    type Error = MessageError;

    fn try_from(follow: rpc::FollowRequest) -> Result<Self, MessageError> {
        let client = message::incarnation("FollowRequest", follow.client)?;
        Ok(Self { client, applied: follow.applied })
    }
}

impl From<Changes> for rpc::Changes {
    fn from(changes: Changes) -> Self {
        let change = |change: Change| rpc::Change {
            segment: change.segment.0,
            what: Some(match change.what {
                What::Keep(held) => rpc::change::What::Keep(held.into()),
                What::Drop(version) => rpc::change::What::Drop(version.0),
            }),
        };
        Self { number: changes.number, changes: changes.changes.into_iter().map(change).collect() }
    }
}

impl TryFrom<rpc::Changes> for Changes {
    type Error = MessageError;

    fn try_from(changes: rpc::Changes) -> Result<Self, MessageError> {
        let message = "Changes";
        let change = |change: rpc::Change| {
            let what = match change.what.ok_or(MessageError::Missing { message, field: "what" })? {
                rpc::change::What::Keep(held) => What::Keep(held.try_into()?),
                rpc::change::What::Drop(version) => What::Drop(Version::new(message, version)?),
            };
            Ok(Change { segment: SegmentId::new(message, change.segment)?, what })
        };
        Ok(Self {
            number: changes.number,
            changes: list(message, "changes", changes.changes, change)?,
        })
    }
}

impl From<&Placed> for rpc::Placed {
    fn from(placed: &Placed) -> Self {
        Self { owner: placed.owner.0, lent: Some((&placed.lent).into()), host: placed.host.clone() }
    }
}

impl TryFrom<rpc::Placed> for Placed {
    type Error = MessageError;

    fn try_from(placed: rpc::Placed) -> Result<Self, MessageError> {
        let message = "Placed";
        let lent = placed.lent.ok_or(MessageError::Missing { message, field: "lent" })?;
        Ok(Self {
            owner: message::incarnation(message, placed.owner)?,
            lent: lent.try_into()?,
            host: name(message, "bytes in its host", placed.host)?,
        })
    }
}

impl fmt::Display for SegmentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mounting => "mounting",
            Self::Alive => "alive",
            Self::Suspect => "suspect",
            Self::Leaving => "leaving",
            Self::Expired => "expired",
        })
    }
}

impl From<&SegmentStatus> for rpc::SegmentStatus {
    fn from(status: &SegmentStatus) -> Self {
        let state = match status.state {
            SegmentState::Mounting => rpc::SegmentState::Mounting,
            SegmentState::Alive => rpc::SegmentState::Alive,
            SegmentState::Suspect => rpc::SegmentState::Suspect,
            SegmentState::Leaving => rpc::SegmentState::Leaving,
            SegmentState::Expired => rpc::SegmentState::Expired,
        };
        Self { placed: Some((&status.placed).into()), used_bytes: status.used, state: state.into() }
    }
}

impl TryFrom<rpc::SegmentStatus> for SegmentStatus {
    type Error = MessageError;

    fn try_from(status: rpc::SegmentStatus) -> Result<Self, MessageError> {
        let message = "SegmentStatus";
        let state = match rpc::SegmentState::try_from(status.state) {
            Ok(rpc::SegmentState::Mounting) => SegmentState::Mounting,
            Ok(rpc::SegmentState::Alive) => SegmentState::Alive,
            Ok(rpc::SegmentState::Suspect) => SegmentState::Suspect,
            Ok(rpc::SegmentState::Leaving) => SegmentState::Leaving,
            Ok(rpc::SegmentState::Expired) => SegmentState::Expired,
            Ok(rpc::SegmentState::Unknown) | Err(_) => {
                let value = u64::from(status.state.unsigned_abs());
                return Err(MessageError::Value { message, field: "state", value });
            }
        };
        let placed = status.placed.ok_or(MessageError::Missing { message, field: "placed" })?;
        Ok(Self { placed: placed.try_into()?, used: status.used_bytes, state })
    }
}
