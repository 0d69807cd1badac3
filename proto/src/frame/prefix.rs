//! The fixed 16 bytes in front of every frame.

use super::{FrameError, limits};

const MAGIC: u16 = u16::from_le_bytes(*b"kf");

/// What a frame is. Requests travel from the engine that opened the lane, replies to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A slice to be stored; its payload follows.
    Write = 1,
    /// A slice to be sent back.
    Read = 2,
    /// A slice of a read has landed, and the sender waits for [`Kind::Held`].
    Landed = 3,
    /// A notification, sent once all data of its transfer is in place.
    Notify = 4,
    /// Nothing more of a transfer may land.
    Cancel = 5,
    /// Nothing more that another lane carried may land.
    FenceLane = 6,
    /// Asks for a sign of life.
    Ping = 7,
    /// A region of the sender's may be read by the receiver: its descriptor comes with the frame's
    /// first byte, or it is read where it is. On lanes between processes of one host only.
    Lend = 8,
    /// A region that was lent goes: it is not to be read any more.
    Recall = 9,
    /// A part of a region of the sender's may be read by the receiver's adapter, by the key in it. On
    /// lanes with a queue pair only.
    LendKey = 10,
    /// How a written slice ended.
    Ack = 65,
    /// The payload of a read slice.
    Data = 66,
    /// Whether a read slice's source was still held when its last byte had been taken.
    Held = 67,
    /// How a notification ended.
    Notified = 68,
    /// A cancelled transfer is fenced at the target.
    Cancelled = 69,
    /// A lane is fenced at the target.
    LaneFenced = 70,
    /// The sign of life.
    Pong = 71,
    /// As [`Kind::Lend`], from the engine that accepted the lane.
    Lent = 72,
    /// As [`Kind::Recall`], from the engine that accepted the lane.
    Recalled = 73,
    /// As [`Kind::LendKey`], from the engine that accepted the lane.
    LentKey = 74,
}

impl Kind {
    fn from_wire(kind: u8) -> Result<Self, FrameError> {
        Ok(match kind {
            1 => Self::Write,
            2 => Self::Read,
            3 => Self::Landed,
            4 => Self::Notify,
            5 => Self::Cancel,
            6 => Self::FenceLane,
            7 => Self::Ping,
            8 => Self::Lend,
            9 => Self::Recall,
            10 => Self::LendKey,
            65 => Self::Ack,
            66 => Self::Data,
            67 => Self::Held,
            68 => Self::Notified,
            69 => Self::Cancelled,
            70 => Self::LaneFenced,
            71 => Self::Pong,
            72 => Self::Lent,
            73 => Self::Recalled,
            74 => Self::LentKey,
            kind => return Err(FrameError::Kind { kind }),
        })
    }

    /// Whether a payload may follow a frame of this kind.
    #[must_use]
    pub fn carries_payload(self) -> bool {
        matches!(self, Self::Write | Self::Data)
    }
}

/// The fixed part of a frame, checked: its lengths are within [`limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// What the frame is.
    pub kind: Kind,
    /// The sender waits for the answer: it must not be held back to be sent with others.
    pub answer_now: bool,
    /// The head states a CRC-32C of the payload (or, in a read request, asks for one).
    pub checksum: bool,
    /// A write whose payload the receiver copies from memory that was lent to it, or a read whose
    /// sender is ready to do so. There is no payload and no checksum then.
    pub by_reference: bool,
    /// Bytes of the head, right behind the prefix.
    pub head_bytes: u32,
    /// Bytes of the payload, right behind the head.
    pub payload_bytes: u32,
}

const ANSWER_NOW: u8 = 1;
const CHECKSUM: u8 = 2;
const BY_REFERENCE: u8 = 4;

impl Prefix {
    /// How long a prefix is on the wire.
    pub const BYTES: usize = 16;

    /// A prefix of `kind` with nothing behind it.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            answer_now: false,
            checksum: false,
            by_reference: false,
            head_bytes: 0,
            payload_bytes: 0,
        }
    }

    /// The wire form.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[2] = self.kind as u8;
        let flags = [
            (self.answer_now, ANSWER_NOW),
            (self.checksum, CHECKSUM),
            (self.by_reference, BY_REFERENCE),
        ];
        bytes[3] = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum();
        bytes[4..8].copy_from_slice(&self.head_bytes.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes
    }

    /// Reads and checks a prefix.
    ///
    /// # Errors
    /// [`FrameError`] when this is no prefix or its lengths are above the [`limits`].
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, FrameError> {
        let [m0, m1, kind, flags, h0, h1, h2, h3, p0, p1, p2, p3, rest @ ..] = *bytes;
        let found = u16::from_le_bytes([m0, m1]);
        if found != MAGIC {
            return Err(FrameError::Magic { found, expected: MAGIC });
        }
        let kind = Kind::from_wire(kind)?;
        let by_reference = flags & BY_REFERENCE != 0;
        let may_be_by_reference = matches!(kind, Kind::Write | Kind::Read) && flags & CHECKSUM == 0;
        if flags & !(ANSWER_NOW | CHECKSUM | BY_REFERENCE) != 0
            || by_reference && !may_be_by_reference
        {
            return Err(FrameError::Value { what: "flags", found: flags.into() });
        }
        let reserved = u32::from_le_bytes(rest);
        if reserved != 0 {
            return Err(FrameError::Value { what: "reserved", found: reserved.into() });
        }
        let head_bytes = u32::from_le_bytes([h0, h1, h2, h3]);
        let payload_bytes = u32::from_le_bytes([p0, p1, p2, p3]);
        at_most("head bytes", head_bytes, limits::HEAD_BYTES)?;
        let payload_limit =
            if kind.carries_payload() && !by_reference { limits::PAYLOAD_BYTES } else { 0 };
        at_most("payload bytes", payload_bytes, payload_limit)?;
        Ok(Self {
            kind,
            answer_now: flags & ANSWER_NOW != 0,
            checksum: flags & CHECKSUM != 0,
            by_reference,
            head_bytes,
            payload_bytes,
        })
    }

    /// Appends a frame to `out`: this prefix with the length of what `head` appends filled in.
    pub(super) fn frame(mut self, out: &mut Vec<u8>, head: impl FnOnce(&mut Vec<u8>)) {
        let start = out.len();
        out.extend_from_slice(&[0; Self::BYTES]);
        head(out);
        let head_bytes = out.len() - start - Self::BYTES;
        debug_assert!(head_bytes <= limits::HEAD_BYTES as usize);
        self.head_bytes = u32::try_from(head_bytes).unwrap_or(u32::MAX);
        out[start..start + Self::BYTES].copy_from_slice(&self.encode());
    }
}

pub(super) fn at_most(what: &'static str, found: u32, limit: u32) -> Result<(), FrameError> {
    if found > limit {
        return Err(FrameError::Limit { what, found: found.into(), limit: limit.into() });
    }
    Ok(())
}
