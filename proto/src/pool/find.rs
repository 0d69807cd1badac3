//! Which objects are there, and where.

use std::time::Duration;

use prost::bytes::Bytes;

use super::client::millis;
use super::{BATCH, Key, Outcome, Placed, REPLICAS, Tenant, Version, bounded, list};
use crate::message::MessageError;
use crate::rpc::pool as rpc;

/// Which of these are there?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exists {
    /// Whose.
    pub tenant: Tenant,
    /// Which.
    pub keys: Vec<Key>,
    /// Keep what is found for a while.
    pub lease: bool,
}

/// Whether an object is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is not.
    Absent,
    /// It is.
    There,
    /// The master cannot know yet: it is still being told.
    Recovering,
}

/// Which are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistsAnswer {
    /// One for each key.
    pub found: Vec<Presence>,
    /// What is left of the leases that were granted, at least, from when the request was sent; zero
    /// where none was asked for.
    pub lease: Duration,
}

/// Where are these? They are kept until the lease is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locate {
    /// Whose.
    pub tenant: Tenant,
    /// Which. A key may come twice.
    pub keys: Vec<Key>,
}

/// Where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocateAnswer {
    /// One for each key: where it is, or why not.
    pub objects: Vec<Result<Located, Outcome>>,
    /// The segments that [`Replica::segment`] refers to.
    pub segments: Vec<Placed>,
    /// For how long their bytes stay as they are, at least, from when the request was sent. Bytes
    /// that arrive later may be others'.
    pub lease: Duration,
}

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// How long it is, in bytes.
    pub length: u64,
    /// Which put it came from.
    pub version: Version,
    /// CRC-32C of its bytes, where the writer gave it.
    pub checksum: Option<u32>,
    /// At least one.
    pub replicas: Vec<Replica>,
}

/// A copy of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Index into the answer's segments.
    pub segment: usize,
    /// In bytes from the segment's start; with the object's length it ends inside.
    pub offset: u64,
}

pub(super) fn keys(message: &'static str, keys: Vec<Bytes>) -> Result<Vec<Key>, MessageError> {
    list(message, "keys", keys, Key::new)
}

/// There have to be as many as were asked for.
pub(super) fn count(
    message: &'static str,
    field: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), MessageError> {
    if found != expected {
        return Err(MessageError::Value { message, field, value: found as u64 });
    }
    Ok(())
}

impl From<Exists> for rpc::ExistsRequest {
    fn from(exists: Exists) -> Self {
        Self {
            tenant: exists.tenant.into(),
            keys: exists.keys.into_iter().map(Into::into).collect(),
            lease: exists.lease,
        }
    }
}

impl TryFrom<rpc::ExistsRequest> for Exists {
    type Error = MessageError;

    fn try_from(exists: rpc::ExistsRequest) -> Result<Self, MessageError> {
        Ok(Self {
            tenant: Tenant::new(exists.tenant)?,
            keys: keys("ExistsRequest", exists.keys)?,
            lease: exists.lease,
        })
    }
}

impl From<&ExistsAnswer> for rpc::ExistsReply {
    fn from(answer: &ExistsAnswer) -> Self {
        let byte = |presence: &Presence| match presence {
            Presence::Absent => 0,
            Presence::There => 1,
            Presence::Recovering => 2,
        };
        let found: Vec<u8> = answer.found.iter().map(byte).collect();
        Self { found: found.into(), lease_ms: millis(answer.lease) }
    }
}

impl ExistsAnswer {
    /// The answer to a request for `expected` keys.
    ///
    /// # Errors
    /// [`MessageError`] where it is none.
    pub fn from_wire(reply: &rpc::ExistsReply, expected: usize) -> Result<Self, MessageError> {
        let message = "ExistsReply";
        count(message, "found", reply.found.len(), expected)?;
        let presence = |byte: &u8| match byte {
            0 => Ok(Presence::Absent),
            1 => Ok(Presence::There),
            2 => Ok(Presence::Recovering),
            other => Err(MessageError::Value { message, field: "found", value: (*other).into() }),
        };
        let found = reply.found.iter().map(presence).collect::<Result<_, _>>()?;
        Ok(Self { found, lease: Duration::from_millis(reply.lease_ms) })
    }
}

impl From<Locate> for rpc::LocateRequest {
    fn from(locate: Locate) -> Self {
        Self {
            tenant: locate.tenant.into(),
            keys: locate.keys.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<rpc::LocateRequest> for Locate {
    type Error = MessageError;

    fn try_from(locate: rpc::LocateRequest) -> Result<Self, MessageError> {
        Ok(Self { tenant: Tenant::new(locate.tenant)?, keys: keys("LocateRequest", locate.keys)? })
    }
}

/// Copies on the wire. There are far fewer segments in an answer than a `u32` counts.
pub(super) fn replicas_to_wire(replicas: &[Replica]) -> Vec<rpc::Replica> {
    let replica = |replica: &Replica| rpc::Replica {
        segment: u32::try_from(replica.segment).unwrap_or(u32::MAX),
        offset_bytes: replica.offset,
    };
    replicas.iter().map(replica).collect()
}

/// Copies from the wire: at least one, each in a segment of the answer, and inside it where the
/// length is known.
pub(super) fn replicas_from_wire(
    message: &'static str,
    replicas: &[rpc::Replica],
    segments: &[Placed],
    length: Option<u64>,
) -> Result<Vec<Replica>, MessageError> {
    if replicas.is_empty() {
        return Err(MessageError::Missing { message, field: "replicas" });
    }
    bounded(message, "replicas", replicas.len(), REPLICAS)?;
    let replica = |replica: &rpc::Replica| {
        let value = |field, value| MessageError::Value { message, field, value };
        let wrong = || value("segment", replica.segment.into());
        let segment = usize::try_from(replica.segment).map_err(|_| wrong())?;
        let placed = segments.get(segment).ok_or_else(wrong)?;
        let offset = replica.offset_bytes;
        let end = offset.checked_add(length.unwrap_or(0));
        if end.is_none_or(|end| end > placed.lent.length) {
            return Err(value("offset_bytes", offset));
        }
        Ok(Replica { segment, offset })
    };
    replicas.iter().map(replica).collect()
}

/// The segments of an answer: each object has a few of them at the most.
pub(super) fn segments_from_wire(
    message: &'static str,
    segments: Vec<rpc::Placed>,
) -> Result<Vec<Placed>, MessageError> {
    bounded(message, "segments", segments.len(), BATCH * REPLICAS)?;
    segments.into_iter().map(TryInto::try_into).collect()
}

impl From<&LocateAnswer> for rpc::LocateReply {
    fn from(answer: &LocateAnswer) -> Self {
        let object = |object: &Result<Located, Outcome>| match object {
            Ok(located) => rpc::Located {
                outcome: Outcome::Ok.to_wire(),
                length_bytes: located.length,
                version: located.version.0,
                checksum: located.checksum,
                replicas: replicas_to_wire(&located.replicas),
            },
            Err(outcome) => rpc::Located { outcome: outcome.to_wire(), ..Default::default() },
        };
        Self {
            objects: answer.objects.iter().map(object).collect(),
            segments: answer.segments.iter().map(Into::into).collect(),
            lease_ms: millis(answer.lease),
        }
    }
}

impl LocateAnswer {
    /// The answer to a request for `expected` keys.
    ///
    /// # Errors
    /// [`MessageError`] where it is none.
    pub fn from_wire(reply: rpc::LocateReply, expected: usize) -> Result<Self, MessageError> {
        let message = "LocateReply";
        count(message, "objects", reply.objects.len(), expected)?;
        let segments = segments_from_wire(message, reply.segments)?;
        let object = |object: &rpc::Located| {
            let outcome = Outcome::from_wire(message, object.outcome)?;
            if outcome != Outcome::Ok {
                return Ok(Err(outcome));
            }
            let length = object.length_bytes;
            if length == 0 {
                return Err(MessageError::Value { message, field: "length_bytes", value: length });
            }
            Ok(Ok(Located {
                length,
                version: Version::new(message, object.version)?,
                checksum: object.checksum,
                replicas: replicas_from_wire(message, &object.replicas, &segments, Some(length))?,
            }))
        };
        let objects = reply.objects.iter().map(object).collect::<Result<_, _>>()?;
        Ok(Self { objects, segments, lease: Duration::from_millis(reply.lease_ms) })
    }
}
