//! Joining, and signs of life.

use std::time::Duration;

use super::{Version, name};
use crate::identity::Incarnation;
use crate::message::{self, MessageError, VERSION_MAJOR, VERSION_MINOR};
use crate::rpc::pool as rpc;

/// A client introduces itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// Its engine's incarnation.
    pub client: Incarnation,
    /// What people call its host; may be empty.
    pub host: String,
    /// The highest epoch of a master that it knows of, by what it was told and by the versions of
    /// what it put and holds; 0 where it knows none.
    pub epoch: u32,
}

/// What it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinAnswer {
    /// The master, from its start to its end.
    pub master: Incarnation,
    /// Higher than that of every master before; to be remembered.
    pub epoch: u32,
    /// How long the client may be silent, from when it sent its request.
    pub lease: Duration,
    /// How often it should give a sign of life.
    pub beat_every: Duration,
    /// Where: on the host that was reached for this call.
    pub heartbeat_port: u16,
    /// Not all owners have been heard since the master's start.
    pub is_recovering: bool,
}

/// A sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Who gives it.
    pub client: Incarnation,
    /// The master that it believes to be talking to.
    pub master: Incarnation,
}

/// What it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeatAnswer {
    /// The master that answers.
    pub master: Incarnation,
    /// What is left of the client's lease, from when it sent the sign; `None` where it has none, and
    /// has to join and mount its segments again.
    pub lease: Option<Duration>,
    /// As in [`JoinAnswer`].
    pub is_recovering: bool,
}

/// A time on the wire: whole milliseconds, rounded down, so that nobody holds a lease for longer
/// than it was given.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl From<&Join> for rpc::JoinRequest {
    fn from(join: &Join) -> Self {
        Self {
            version_major: VERSION_MAJOR.into(),
            version_minor: VERSION_MINOR.into(),
            client: join.client.0,
            host: join.host.clone(),
            epoch: join.epoch,
        }
    }
}

fn version(message: &'static str, major: u32) -> Result<(), MessageError> {
    if major != u32::from(VERSION_MAJOR) {
        return Err(MessageError::Value { message, field: "version_major", value: major.into() });
    }
    Ok(())
}

fn epoch(message: &'static str, epoch: u32) -> Result<u32, MessageError> {
    if epoch > Version::MOST_EPOCH {
        return Err(MessageError::Value { message, field: "epoch", value: epoch.into() });
    }
    Ok(epoch)
}

impl TryFrom<rpc::JoinRequest> for Join {
    type Error = MessageError;

    fn try_from(join: rpc::JoinRequest) -> Result<Self, MessageError> {
        let message = "JoinRequest";
        version(message, join.version_major)?;
        Ok(Self {
            client: message::incarnation(message, join.client)?,
            host: name(message, "bytes in its host", join.host)?,
            epoch: epoch(message, join.epoch)?,
        })
    }
}

impl From<&JoinAnswer> for rpc::JoinReply {
    fn from(answer: &JoinAnswer) -> Self {
        Self {
            version_major: VERSION_MAJOR.into(),
            version_minor: VERSION_MINOR.into(),
            master: answer.master.0,
            epoch: answer.epoch,
            lease_ms: millis(answer.lease),
            beat_every_ms: millis(answer.beat_every),
            heartbeat_port: answer.heartbeat_port.into(),
            is_recovering: answer.is_recovering,
        }
    }
}

impl TryFrom<rpc::JoinReply> for JoinAnswer {
    type Error = MessageError;

    fn try_from(answer: rpc::JoinReply) -> Result<Self, MessageError> {
        let message = "JoinReply";
        version(message, answer.version_major)?;
        let value = |field, value| MessageError::Value { message, field, value };
        let port = answer.heartbeat_port;
        let heartbeat_port = u16::try_from(port).ok().filter(|port| *port != 0);
        if answer.beat_every_ms == 0 {
            return Err(value("beat_every_ms", 0));
        }
        Ok(Self {
            master: message::incarnation(message, answer.master)?,
            epoch: epoch(message, answer.epoch)?,
            lease: Duration::from_millis(answer.lease_ms),
            beat_every: Duration::from_millis(answer.beat_every_ms),
            heartbeat_port: heartbeat_port.ok_or(value("heartbeat_port", port.into()))?,
            is_recovering: answer.is_recovering,
        })
    }
}

impl From<Beat> for rpc::BeatRequest {
    fn from(beat: Beat) -> Self {
        Self { client: beat.client.0, master: beat.master.0 }
    }
}

impl TryFrom<rpc::BeatRequest> for Beat {
    type Error = MessageError;

    fn try_from(beat: rpc::BeatRequest) -> Result<Self, MessageError> {
        let message = "BeatRequest";
        let client = message::incarnation(message, beat.client)?;
        Ok(Self { client, master: message::incarnation(message, beat.master)? })
    }
}

impl From<BeatAnswer> for rpc::BeatReply {
    fn from(answer: BeatAnswer) -> Self {
        Self {
            master: answer.master.0,
            is_known: answer.lease.is_some(),
            lease_ms: answer.lease.map_or(0, millis),
            is_recovering: answer.is_recovering,
        }
    }
}

impl TryFrom<rpc::BeatReply> for BeatAnswer {
    type Error = MessageError;

    fn try_from(answer: rpc::BeatReply) -> Result<Self, MessageError> {
        Ok(Self {
            master: message::incarnation("BeatReply", answer.master)?,
            lease: answer.is_known.then(|| Duration::from_millis(answer.lease_ms)),
            is_recovering: answer.is_recovering,
        })
    }
}
