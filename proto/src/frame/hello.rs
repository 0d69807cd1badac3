//! The first bytes on a lane, both ways, of fixed size: nothing behind them is read early.

use super::FrameError;
use super::read::Reader;
use crate::identity::{Incarnation, LaneId};

const MAGIC: [u8; 8] = *b"kvferry\n";

/// What the engine that opens a lane says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Major version of the protocol: must be the other's.
    pub version: u16,
    /// Who opens the lane.
    pub initiator: Incarnation,
    /// Who is expected behind the address.
    pub target: Incarnation,
    /// Which of the initiator's sessions with this target it is for: it may know the target by
    /// several names, and has a session for each.
    pub session: u64,
    /// Which lane of the session this is.
    pub lane: LaneId,
    /// When the initiator hears nothing for this long, in milliseconds, it says something.
    pub ping_ms: u32,
    /// Whether a queue pair belongs to the lane: then a [`PairAddress`](super::PairAddress) follows this,
    /// and another follows the welcome, where that is none.
    pub with_pair: bool,
}

/// What the other engine answers. Nothing is sent on the lane before it has arrived, so the target
/// knows of every lane that ever carried data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Who answers.
    pub target: Incarnation,
    /// Why not, where the lane is refused.
    pub refusal: Option<Refusal>,
}

/// Why a lane is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u16)]
pub enum Refusal {
    /// The engine that was expected is not the one that answers.
    #[error("another incarnation answers at this address")]
    OtherIncarnation = 1,
    /// The protocol's major versions differ.
    #[error("the protocol versions differ")]
    Version = 2,
    /// The peer holds as many lanes as it may.
    #[error("the peer holds as many lanes as it may")]
    TooManyLanes = 3,
    /// The lane's number was used before.
    #[error("the lane's number was used before")]
    LaneReused = 4,
    /// The engine is shutting down.
    #[error("the engine is shutting down")]
    ShuttingDown = 5,
    /// The engine is set to use another transport.
    #[error("the engine is set to use another transport")]
    Transport = 6,
    /// The queue pair that belongs to the lane cannot be had.
    #[error("the queue pair that belongs to the lane cannot be had; the peer's log says why")]
    NoPair = 7,
}

impl Refusal {
    /// Whether the peer is not the one that was expected.
    #[must_use]
    pub fn is_other_incarnation(self) -> bool {
        self == Self::OtherIncarnation
    }
}

impl Hello {
    /// How long it is on the wire.
    pub const BYTES: usize = 48;

    /// The wire form.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_le_bytes());
        bytes[10..12].copy_from_slice(&u16::from(self.with_pair).to_le_bytes());
        bytes[12..16].copy_from_slice(&self.lane.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.initiator.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.target.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.session.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.ping_ms.to_le_bytes());
        bytes
    }

    /// Reads a hello.
    ///
    /// # Errors
    /// [`FrameError`] when these bytes are none.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(bytes);
        magic(&mut reader)?;
        let version = reader.u16("version")?;
        let with_pair = match reader.u16("queue pair")? {
            0 => false,
            1 => true,
            found => return Err(FrameError::Value { what: "queue pair", found: found.into() }),
        };
        let lane = LaneId(reader.u32("lane")?);
        let initiator = incarnation(&mut reader)?;
        let target = incarnation(&mut reader)?;
        let session = reader.u64("session")?;
        let ping_ms = reader.u32("ping interval")?;
        reserved(reader.u32("padding")?)?;
        Ok(Self { version, initiator, target, session, lane, ping_ms, with_pair })
    }
}

impl Welcome {
    /// How long it is on the wire.
    pub const BYTES: usize = 24;

    /// The wire form.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        let refusal = self.refusal.map_or(0, |refusal| refusal as u16);
        bytes[8..10].copy_from_slice(&refusal.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.target.0.to_le_bytes());
        bytes
    }

    /// Reads a welcome.
    ///
    /// # Errors
    /// [`FrameError`] when these bytes are none.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(bytes);
        magic(&mut reader)?;
        let refusal = match reader.u16("refusal")? {
            0 => None,
            1 => Some(Refusal::OtherIncarnation),
            2 => Some(Refusal::Version),
            3 => Some(Refusal::TooManyLanes),
            4 => Some(Refusal::LaneReused),
            5 => Some(Refusal::ShuttingDown),
            6 => Some(Refusal::Transport),
            7 => Some(Refusal::NoPair),
            found => return Err(FrameError::Value { what: "refusal", found: found.into() }),
        };
        reserved(reader.u16("padding")?.into())?;
        reserved(reader.u32("padding")?)?;
        Ok(Self { target: incarnation(&mut reader)?, refusal })
    }
}

fn magic(reader: &mut Reader<'_>) -> Result<(), FrameError> {
    let found = reader.bytes(MAGIC.len(), "mark")?;
    if found == MAGIC {
        return Ok(());
    }
    Err(FrameError::Magic {
        found: u16::from_le_bytes([found[0], found[1]]),
        expected: u16::from_le_bytes([MAGIC[0], MAGIC[1]]),
    })
}

fn reserved(found: u32) -> Result<(), FrameError> {
    if found == 0 {
        Ok(())
    } else {
        Err(FrameError::Value { what: "padding", found: found.into() })
    }
}

fn incarnation(reader: &mut Reader<'_>) -> Result<Incarnation, FrameError> {
    match reader.u64("incarnation")? {
        0 => Err(FrameError::Value { what: "incarnation", found: 0 }),
        incarnation => Ok(Incarnation(incarnation)),
    }
}
