//! Reserving room, ending, revoking.

use std::time::Duration;

use super::client::millis;
use super::find::{Replica, count, replicas_from_wire, replicas_to_wire, segments_from_wire};
use super::{
    Key, Outcome, Placed, REPLICAS, SEGMENT_BYTES, SegmentId, Tenant, Version, bounded, group,
    list, name,
};
use crate::identity::Incarnation;
use crate::message::{self, MessageError};
use crate::rpc::pool as rpc;

/// Room is wanted for objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutStart {
    /// Who will write them.
    pub client: Incarnation,
    /// Whose they are.
    pub tenant: Tenant,
    /// Which.
    pub puts: Vec<Put>,
    /// How many segments each goes to, 1 to [`REPLICAS`]: as many as there are where there are
    /// fewer.
    pub replicas: usize,
    /// Names of segments to be used before others.
    pub preferred: Vec<String>,
    /// Never evicted.
    pub is_pinned: bool,
    /// Evicted after others, for so long; zero for not at all.
    pub soft_pin: Duration,
    /// To be answered at once also where there is no room: it is made, and nobody waits for it.
    pub at_once: bool,
}

/// One object to be put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// Its key.
    pub key: Key,
    /// How long it is, in bytes: 1 to [`SEGMENT_BYTES`].
    pub length: u64,
    /// Evicted together with others of this name.
    pub group: Option<String>,
}

/// What was reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutStartAnswer {
    /// One for each put: its room, or why there is none.
    pub reserved: Vec<Result<Reserved, Outcome>>,
    /// The segments that [`Replica::segment`] refers to.
    pub segments: Vec<Placed>,
    /// For how long, from when the request was sent. Nothing may be stored there later.
    pub reservation: Duration,
}

/// Room for an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// To be named when it is ended or revoked.
    pub version: Version,
    /// Where to write it: at least one, each in another segment.
    pub replicas: Vec<Replica>,
}

/// Objects have been written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutEnd {
    /// By whom.
    pub client: Incarnation,
    /// Whose they are.
    pub tenant: Tenant,
    /// Which.
    pub puts: Vec<Ended>,
}

/// One object that has been written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its key.
    pub key: Key,
    /// Its reservation's.
    pub version: Version,
    /// CRC-32C of its bytes.
    pub checksum: Option<u32>,
    /// Segments that could not be written.
    pub lost: Vec<SegmentId>,
}

/// What became of what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutEndAnswer {
    /// One for each.
    pub outcomes: Vec<Outcome>,
    /// Whether every owner has it in its inventory. If not, an object can be lost with this master.
    pub is_recorded: bool,
}

/// Reservations are given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutRevoke {
    /// By whom.
    pub client: Incarnation,
    /// Whose the objects would have been.
    pub tenant: Tenant,
    /// Which.
    pub puts: Vec<Revoked>,
}

/// One reservation that is given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// Its key.
    pub key: Key,
    /// Its version.
    pub version: Version,
    /// No byte of it can arrive any more: the room can be used again at once.
    pub is_fenced: bool,
}

impl From<PutStart> for rpc::PutStartRequest {
    fn from(start: PutStart) -> Self {
        let put = |put: Put| rpc::Put {
            key: put.key.into(),
            length_bytes: put.length,
            group: put.group.unwrap_or_default(),
        };
        Self {
            client: start.client.0,
            tenant: start.tenant.into(),
            puts: start.puts.into_iter().map(put).collect(),
            replicas: u32::try_from(start.replicas).unwrap_or(u32::MAX),
            preferred: start.preferred,
            is_pinned: start.is_pinned,
            soft_pin_ms: millis(start.soft_pin),
            at_once: start.at_once,
        }
    }
}

impl TryFrom<rpc::PutStartRequest> for PutStart {
    type Error = MessageError;

    fn try_from(start: rpc::PutStartRequest) -> Result<Self, MessageError> {
        let message = "PutStartRequest";
        let value = |field, value| MessageError::Value { message, field, value };
        let put = |put: rpc::Put| {
            let length = put.length_bytes;
            if length == 0 || length > SEGMENT_BYTES {
                return Err(value("length_bytes", length));
            }
            Ok(Put { key: Key::new(put.key)?, length, group: group(message, put.group)? })
        };
        let replicas = usize::try_from(start.replicas.max(1)).ok();
        let replicas = replicas.filter(|replicas| *replicas <= REPLICAS);
        bounded(message, "preferred segments", start.preferred.len(), REPLICAS)?;
        let preferred = |segment| name(message, "bytes in a preferred segment", segment);
        Ok(Self {
            client: message::incarnation(message, start.client)?,
            tenant: Tenant::new(start.tenant)?,
            puts: list(message, "puts", start.puts, put)?,
            replicas: replicas.ok_or(value("replicas", start.replicas.into()))?,
            preferred: start.preferred.into_iter().map(preferred).collect::<Result<_, _>>()?,
            is_pinned: start.is_pinned,
            soft_pin: Duration::from_millis(start.soft_pin_ms),
            at_once: start.at_once,
        })
    }
}

impl From<&PutStartAnswer> for rpc::PutStartReply {
    fn from(answer: &PutStartAnswer) -> Self {
        let reserved = |reserved: &Result<Reserved, Outcome>| match reserved {
            Ok(reserved) => rpc::Reserved {
                outcome: Outcome::Ok.to_wire(),
                version: reserved.version.0,
                replicas: replicas_to_wire(&reserved.replicas),
            },
            Err(outcome) => rpc::Reserved { outcome: outcome.to_wire(), ..Default::default() },
        };
        Self {
            reserved: answer.reserved.iter().map(reserved).collect(),
            segments: answer.segments.iter().map(Into::into).collect(),
            reservation_ms: millis(answer.reservation),
        }
    }
}

impl PutStartAnswer {
    /// The answer to a request for objects of these lengths.
    ///
    /// # Errors
    /// [`MessageError`] where it is none.
    pub fn from_wire(reply: rpc::PutStartReply, lengths: &[u64]) -> Result<Self, MessageError> {
        let message = "PutStartReply";
        count(message, "reserved", reply.reserved.len(), lengths.len())?;
        let segments = segments_from_wire(message, reply.segments)?;
        let reserved = |(reserved, length): (&rpc::Reserved, &u64)| {
            let outcome = Outcome::from_wire(message, reserved.outcome)?;
            if outcome != Outcome::Ok {
                return Ok(Err(outcome));
            }
            let replicas =
                replicas_from_wire(message, &reserved.replicas, &segments, Some(*length))?;
            Ok(Ok(Reserved { version: Version::new(message, reserved.version)?, replicas }))
        };
        let reserved = reply.reserved.iter().zip(lengths).map(reserved);
        let reserved = reserved.collect::<Result<_, _>>()?;
        let reservation = Duration::from_millis(reply.reservation_ms);
        Ok(Self { reserved, segments, reservation })
    }
}

impl From<PutEnd> for rpc::PutEndRequest {
    fn from(end: PutEnd) -> Self {
        let ended = |ended: Ended| rpc::Ended {
            key: ended.key.into(),
            version: ended.version.0,
            checksum: ended.checksum,
            lost: ended.lost.into_iter().map(|segment| segment.0).collect(),
        };
        Self {
            client: end.client.0,
            tenant: end.tenant.into(),
            puts: end.puts.into_iter().map(ended).collect(),
        }
    }
}

impl TryFrom<rpc::PutEndRequest> for PutEnd {
    type Error = MessageError;

    fn try_from(end: rpc::PutEndRequest) -> Result<Self, MessageError> {
        let message = "PutEndRequest";
        let ended = |ended: rpc::Ended| {
            bounded(message, "lost segments", ended.lost.len(), REPLICAS)?;
            let lost = ended.lost.into_iter().map(|segment| SegmentId::new(message, segment));
            Ok(Ended {
                key: Key::new(ended.key)?,
                version: Version::new(message, ended.version)?,
                checksum: ended.checksum,
                lost: lost.collect::<Result<_, _>>()?,
            })
        };
        Ok(Self {
            client: message::incarnation(message, end.client)?,
            tenant: Tenant::new(end.tenant)?,
            puts: list(message, "puts", end.puts, ended)?,
        })
    }
}

impl From<&PutEndAnswer> for rpc::PutEndReply {
    fn from(answer: &PutEndAnswer) -> Self {
        let outcomes = answer.outcomes.iter().map(|outcome| outcome.to_wire()).collect();
        Self { outcomes, is_recorded: answer.is_recorded }
    }
}

impl PutEndAnswer {
    /// The answer to a request that ended `expected` puts.
    ///
    /// # Errors
    /// [`MessageError`] where it is none.
    pub fn from_wire(reply: &rpc::PutEndReply, expected: usize) -> Result<Self, MessageError> {
        let outcomes = Outcome::list("PutEndReply", &reply.outcomes, expected)?;
        Ok(Self { outcomes, is_recorded: reply.is_recorded })
    }
}

impl From<PutRevoke> for rpc::PutRevokeRequest {
    fn from(revoke: PutRevoke) -> Self {
        let revoked = |revoked: Revoked| rpc::Revoked {
            key: revoked.key.into(),
            version: revoked.version.0,
            is_fenced: revoked.is_fenced,
        };
        Self {
            client: revoke.client.0,
            tenant: revoke.tenant.into(),
            puts: revoke.puts.into_iter().map(revoked).collect(),
        }
    }
}

impl TryFrom<rpc::PutRevokeRequest> for PutRevoke {
    type Error = MessageError;

    fn try_from(revoke: rpc::PutRevokeRequest) -> Result<Self, MessageError> {
        let message = "PutRevokeRequest";
        let revoked = |revoked: rpc::Revoked| {
            Ok(Revoked {
                key: Key::new(revoked.key)?,
                version: Version::new(message, revoked.version)?,
                is_fenced: revoked.is_fenced,
            })
        };
        Ok(Self {
            client: message::incarnation(message, revoke.client)?,
            tenant: Tenant::new(revoke.tenant)?,
            puts: list(message, "puts", revoke.puts, revoked)?,
        })
    }
}

impl PutRevoke {
    /// The outcomes of a request that gave `expected` reservations back.
    ///
    /// # Errors
    /// [`MessageError`] where the answer is none.
    pub fn outcomes(
        reply: &rpc::PutRevokeReply,
        expected: usize,
    ) -> Result<Vec<Outcome>, MessageError> {
        Outcome::list("PutRevokeReply", &reply.outcomes, expected)
    }

    /// The answer with these outcomes.
    #[must_use]
    pub fn answer(outcomes: &[Outcome]) -> rpc::PutRevokeReply {
        rpc::PutRevokeReply { outcomes: outcomes.iter().map(|outcome| outcome.to_wire()).collect() }
    }
}
