//! What the engine that accepted a lane sends back on it.

use super::FrameError;
use super::loan::{KeyLoan, Loan, encode_recall, region_from_wire};
use super::prefix::{Kind, Prefix};
use super::read::Reader;
use crate::identity::{LaneId, RegionId, TransferId};

/// How a slice or a notification ended at the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u16)]
pub enum Status {
    /// It is in place, or was held throughout.
    #[error("done")]
    Done = 0,
    /// No grant has this id, or it is over.
    #[error("the grant is unknown or revoked")]
    GrantGone = 1,
    /// The grant's time is over.
    #[error("the grant has expired")]
    GrantExpired = 2,
    /// The grant was given to another incarnation.
    #[error("the grant was given to another incarnation")]
    GrantForeign = 3,
    /// The grant does not permit this kind of access.
    #[error("the grant does not permit this access")]
    AccessDenied = 4,
    /// A span reaches outside what the grant covers.
    #[error("a span reaches outside what the grant covers")]
    OutOfBounds = 5,
    /// The region is gone, or its slot holds a newer one.
    #[error("the region was unregistered or replaced")]
    RegionGone = 6,
    /// The transfer's deadline has passed at the owner.
    #[error("the transfer's deadline passed at the owner")]
    DeadlinePassed = 7,
    /// The transfer was cancelled.
    #[error("the transfer was cancelled")]
    Cancelled = 8,
    /// The payload does not have the checksum that its head states.
    #[error("the payload does not match its checksum")]
    ChecksumMismatch = 9,
    /// The memory behind the region cannot be touched (a truncated file, an unmapped range).
    #[error("the memory behind the region cannot be touched")]
    MemoryFault = 10,
    /// A queue is full; the same request may succeed later.
    #[error("a queue at the owner is full")]
    Backpressure = 11,
    /// The source promises to hold the slice until it hears that it has landed.
    #[error("the source waits to hear that the slice has landed")]
    HeldUntilLanded = 12,
    /// The id is in use: the same slice, or another of the transfer that the notification is of, is
    /// still on its way.
    #[error("the transfer's id is in use by something that is still on its way")]
    InUse = 13,
    /// The region is memory of a device, and its bytes were to pass through a processor.
    #[error("the region is memory of a device, which RDMA alone reaches")]
    RdmaOnly = 14,
}

impl Status {
    fn from_wire(status: u16) -> Result<Self, FrameError> {
        Ok(match status {
            0 => Self::Done,
            1 => Self::GrantGone,
            2 => Self::GrantExpired,
            3 => Self::GrantForeign,
            4 => Self::AccessDenied,
            5 => Self::OutOfBounds,
            6 => Self::RegionGone,
            7 => Self::DeadlinePassed,
            8 => Self::Cancelled,
            9 => Self::ChecksumMismatch,
            10 => Self::MemoryFault,
            11 => Self::Backpressure,
            12 => Self::HeldUntilLanded,
            13 => Self::InUse,
            14 => Self::RdmaOnly,
            found => return Err(FrameError::Value { what: "status", found: found.into() }),
        })
    }
}

/// A reply, checked in form. The ids in it may be of transfers that are long over: those are
/// counted and ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// How a written slice ended. `Backpressure` here means that the data is in place but the
    /// notification that rode with it was not taken and has to be sent again.
    Ack {
        /// The transfer.
        transfer: TransferId,
        /// The slice.
        slice: u32,
        /// How it ended.
        status: Status,
    },
    /// The payload of a read slice follows.
    Data {
        /// The transfer.
        transfer: TransferId,
        /// The slice.
        slice: u32,
        /// CRC-32C of the payload, where the prefix has the checksum flag.
        crc32c: u32,
    },
    /// Whether the source of a read slice was held until its last byte had been taken. Comes
    /// behind the slice's data, or instead of it when the slice is refused.
    Held {
        /// The transfer.
        transfer: TransferId,
        /// The slice.
        slice: u32,
        /// `Done` when it was held.
        status: Status,
    },
    /// How a notification ended.
    Notified {
        /// The transfer that it belongs to.
        transfer: TransferId,
        /// `Done`, or `Backpressure` when it has to be sent again.
        status: Status,
    },
    /// Nothing of this transfer can land any more.
    Cancelled {
        /// The transfer.
        transfer: TransferId,
    },
    /// Nothing that this lane carried can land any more.
    LaneFenced {
        /// The lane.
        lane: LaneId,
    },
    /// The answer to a ping.
    Pong {
        /// The nonce of the ping.
        nonce: u64,
    },
    /// A region of the owner's may be read from now on.
    Lent(Loan),
    /// A part of a region of the owner's may be read by an adapter from now on.
    LentKey(KeyLoan),
    /// A region that was lent is not to be read any more.
    Recalled(RegionId),
}

impl Reply {
    /// Reads the head of a reply.
    ///
    /// # Errors
    /// [`FrameError`] when the head is malformed or belongs to a request.
    pub fn decode(prefix: &Prefix, head: &[u8]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(head);
        let reply = match prefix.kind {
            Kind::Ack | Kind::Held => {
                let transfer = TransferId(reader.u64("transfer")?);
                let slice = reader.u32("slice")?;
                let status = Status::from_wire(reader.u16("status")?)?;
                if prefix.kind == Kind::Ack {
                    Self::Ack { transfer, slice, status }
                } else {
                    Self::Held { transfer, slice, status }
                }
            }
            Kind::Data => Self::Data {
                transfer: TransferId(reader.u64("transfer")?),
                slice: reader.u32("slice")?,
                crc32c: reader.u32("checksum")?,
            },
            Kind::Notified => Self::Notified {
                transfer: TransferId(reader.u64("transfer")?),
                status: Status::from_wire(reader.u16("status")?)?,
            },
            Kind::Cancelled => Self::Cancelled { transfer: TransferId(reader.u64("transfer")?) },
            Kind::LaneFenced => Self::LaneFenced { lane: LaneId(reader.u32("lane")?) },
            Kind::Pong => Self::Pong { nonce: reader.u64("nonce")? },
            Kind::Lent => Self::Lent(Loan::decode(&mut reader)?),
            Kind::LentKey => Self::LentKey(KeyLoan::decode(&mut reader)?),
            Kind::Recalled => Self::Recalled(region_from_wire(&mut reader)?),
            kind => return Err(FrameError::Direction { kind }),
        };
        reader.end()?;
        Ok(reply)
    }

    /// Appends the frame to `out`. For [`Reply::Data`] the payload of `payload_bytes` follows by
    /// other means; for all others it is 0.
    pub fn encode(self, out: &mut Vec<u8>, payload_bytes: u32, checksum: bool) {
        let frame = |kind| Prefix { payload_bytes, checksum, ..Prefix::new(kind) };
        match self {
            Self::Ack { transfer, slice, status } | Self::Held { transfer, slice, status } => {
                let kind = if matches!(self, Self::Ack { .. }) { Kind::Ack } else { Kind::Held };
                frame(kind).frame(out, |out| {
                    out.extend_from_slice(&transfer.0.to_le_bytes());
                    out.extend_from_slice(&slice.to_le_bytes());
                    out.extend_from_slice(&(status as u16).to_le_bytes());
                });
            }
            Self::Data { transfer, slice, crc32c } => frame(Kind::Data).frame(out, |out| {
                out.extend_from_slice(&transfer.0.to_le_bytes());
                out.extend_from_slice(&slice.to_le_bytes());
                out.extend_from_slice(&crc32c.to_le_bytes());
            }),
            Self::Notified { transfer, status } => frame(Kind::Notified).frame(out, |out| {
                out.extend_from_slice(&transfer.0.to_le_bytes());
                out.extend_from_slice(&(status as u16).to_le_bytes());
            }),
            Self::Cancelled { transfer } => frame(Kind::Cancelled)
                .frame(out, |out| out.extend_from_slice(&transfer.0.to_le_bytes())),
            Self::LaneFenced { lane } => frame(Kind::LaneFenced)
                .frame(out, |out| out.extend_from_slice(&lane.0.to_le_bytes())),
            Self::Pong { nonce } => {
                frame(Kind::Pong).frame(out, |out| out.extend_from_slice(&nonce.to_le_bytes()));
            }
            Self::Lent(loan) => loan.encode(out, Kind::Lent),
            Self::LentKey(loan) => loan.encode(out, Kind::LentKey),
            Self::Recalled(region) => encode_recall(out, Kind::Recalled, region),
        }
    }

    /// Appends a reply without a payload to `out`.
    pub fn encode_plain(self, out: &mut Vec<u8>) {
        self.encode(out, 0, false);
    }
}
