//! What the engine that opened a lane sends on it.

use super::descriptor::{SectionTotal, SectionWriter, Sections};
use super::loan::{KeyLoan, Loan, encode_recall, region_from_wire};
use super::prefix::{Kind, Prefix, at_most};
use super::read::Reader;
use super::{FrameError, limits};
use crate::identity::{LaneId, RegionId, TransferId};

/// A request, checked in form. Whether it is permitted is the owner's question.
#[derive(Debug)]
pub enum Request<'a> {
    /// Store the payload that follows.
    Write(SliceRequest<'a>),
    /// Send the bytes back.
    Read(SliceRequest<'a>),
    /// Deliver a notification: all data of its transfer is in place.
    Notify {
        /// The transfer it belongs to; a second delivery for the same transfer is a repeat.
        transfer: TransferId,
        /// The oldest transfer that has not ended.
        floor: TransferId,
        /// What to deliver.
        notification: &'a [u8],
    },
    /// Something without a payload.
    Control(Control),
    /// A region of the initiator's may be read from now on.
    Lend(Loan),
    /// A part of a region of the initiator's may be read by an adapter from now on.
    LendKey(KeyLoan),
    /// A region that was lent is not to be read any more.
    Recall(RegionId),
}

/// The fields of a write or read slice that are not descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceHead {
    /// The transfer that the slice is part of.
    pub transfer: TransferId,
    /// The oldest transfer of this session that has not ended: whatever is remembered about older
    /// ones can be forgotten.
    pub floor: TransferId,
    /// Which slice of the transfer.
    pub slice: u32,
    /// What is left until the transfer's deadline, in microseconds, when this was written.
    pub remaining_us: u64,
    /// CRC-32C of the payload; writes with the checksum flag only, else 0.
    pub crc32c: u32,
}

/// A write or read slice, checked in form.
#[derive(Debug)]
pub struct SliceRequest<'a> {
    /// Its fixed fields.
    pub head: SliceHead,
    /// The spans in the owner's regions, in payload order.
    pub sections: Sections<'a>,
    /// Of a write by reference: the spans in the initiator's regions that take the payload's place.
    /// The grants in them mean nothing.
    pub sources: Option<Sections<'a>>,
    /// What they add up to.
    pub total: SectionTotal,
    /// A notification to be delivered once this slice, the only one of its transfer, has landed.
    pub notification: Option<&'a [u8]>,
}

/// Requests that are nothing but a few numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// A read slice has landed whose source said that it would hold it until told so.
    Landed {
        /// The transfer.
        transfer: TransferId,
        /// The slice.
        slice: u32,
    },
    /// Nothing more of this transfer may land; answered once that is certain.
    Cancel {
        /// The transfer.
        transfer: TransferId,
        /// The oldest transfer that has not ended: this may be the first that the target hears of
        /// the session.
        floor: TransferId,
    },
    /// Nothing more that this other lane carried may land; answered once that is certain.
    FenceLane {
        /// The lane that was lost.
        lane: LaneId,
    },
    /// A sign of life is asked for.
    Ping {
        /// Comes back in the answer.
        nonce: u64,
        /// The oldest transfer that has not ended.
        floor: TransferId,
    },
}

const SLICE_FIXED_BYTES: usize = 44;

impl SliceHead {
    /// Appends the frame of a write or read slice (prefix and head) to `out`; the payload of a
    /// write follows by other means. `sections` pushes the descriptors.
    pub fn encode(
        &self,
        out: &mut Vec<u8>,
        prefix: Prefix,
        notification: Option<&[u8]>,
        sections: impl FnOnce(&mut SectionWriter<'_>),
    ) {
        self.encode_parts(out, prefix, notification, sections, |_| {});
    }

    /// Appends the frame of a slice that is written by reference to `out`: `sources` pushes the
    /// spans that take the payload's place, as many bytes as `sections` does. It takes no
    /// notification along, since the source must not change before the copy is acknowledged.
    pub fn encode_by_reference(
        &self,
        out: &mut Vec<u8>,
        answer_now: bool,
        sections: impl FnOnce(&mut SectionWriter<'_>),
        sources: impl FnOnce(&mut SectionWriter<'_>),
    ) {
        let prefix = Prefix { answer_now, by_reference: true, ..Prefix::new(Kind::Write) };
        self.encode_parts(out, prefix, None, sections, sources);
    }

    fn encode_parts(
        &self,
        out: &mut Vec<u8>,
        prefix: Prefix,
        notification: Option<&[u8]>,
        sections: impl FnOnce(&mut SectionWriter<'_>),
        sources: impl FnOnce(&mut SectionWriter<'_>),
    ) {
        prefix.frame(out, |out| {
            let fixed_at = out.len();
            out.extend_from_slice(&[0; SLICE_FIXED_BYTES]);
            let mut writer = SectionWriter::new(out);
            sections(&mut writer);
            let section_count = writer.finish();
            let mut writer = SectionWriter::new(out);
            sources(&mut writer);
            let source_count = writer.finish();
            out.extend_from_slice(notification.unwrap_or_default());
            // One more than the length, so that an empty notification is not none.
            let notification_field = notification
                .map_or(0, |bytes| u32::try_from(bytes.len()).unwrap_or(u32::MAX - 1) + 1);
            let fixed = &mut out[fixed_at..fixed_at + SLICE_FIXED_BYTES];
            fixed[0..8].copy_from_slice(&self.transfer.0.to_le_bytes());
            fixed[8..16].copy_from_slice(&self.floor.0.to_le_bytes());
            fixed[16..24].copy_from_slice(&self.remaining_us.to_le_bytes());
            fixed[24..28].copy_from_slice(&self.slice.to_le_bytes());
            fixed[28..32].copy_from_slice(&self.crc32c.to_le_bytes());
            fixed[32..36].copy_from_slice(&section_count.to_le_bytes());
            fixed[36..40].copy_from_slice(&notification_field.to_le_bytes());
            fixed[40..44].copy_from_slice(&source_count.to_le_bytes());
        });
    }
}

impl<'a> SliceRequest<'a> {
    fn decode(prefix: &Prefix, head: &'a [u8]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(head);
        let transfer = TransferId(reader.u64("transfer")?);
        let floor = TransferId(reader.u64("floor")?);
        let remaining_us = reader.u64("remaining time")?;
        let slice = reader.u32("slice")?;
        let crc32c = reader.u32("checksum")?;
        let section_count = reader.u32("section count")?;
        let notification_field = reader.u32("notification length")?;
        let source_count = reader.u32("source section count")?;
        let is_write = prefix.kind == Kind::Write;
        let takes_sources = is_write && prefix.by_reference;
        if !takes_sources && source_count != 0 {
            let found = source_count.into();
            return Err(FrameError::Value { what: "source section count", found });
        }
        if takes_sources && notification_field != 0 {
            let found = notification_field.into();
            return Err(FrameError::Value { what: "notification by reference", found });
        }
        let body = reader.rest();
        let (body, notification) = match notification_field.checked_sub(1) {
            None => (body, None),
            Some(bytes) => {
                at_most("notification bytes", bytes, limits::NOTIFICATION_BYTES)?;
                let cut = body
                    .len()
                    .checked_sub(bytes as usize)
                    .ok_or(FrameError::Truncated { what: "notification" })?;
                let (body, notification) = body.split_at(cut);
                (body, Some(notification))
            }
        };
        let (sections, total, rest) = Sections::split(section_count, body)?;
        let (sources, source_total, rest) = Sections::split(source_count, rest)?;
        if !rest.is_empty() {
            return Err(FrameError::Excess { bytes: rest.len() });
        }
        let announced = match (is_write, takes_sources) {
            (true, true) => source_total.bytes,
            (true, false) => prefix.payload_bytes,
            (false, _) => total.bytes,
        };
        if announced != total.bytes || total.bytes == 0 {
            return Err(FrameError::PayloadMismatch {
                described: total.bytes.into(),
                announced: announced.into(),
            });
        }
        let sources = takes_sources.then_some(sources);
        let head = SliceHead { transfer, floor, slice, remaining_us, crc32c };
        Ok(Self { head, sections, sources, total, notification })
    }
}

impl<'a> Request<'a> {
    /// Reads the head of a request.
    ///
    /// # Errors
    /// [`FrameError`] when the head is malformed or belongs to a reply.
    pub fn decode(prefix: &Prefix, head: &'a [u8]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(head);
        let request = match prefix.kind {
            Kind::Write => return SliceRequest::decode(prefix, head).map(Self::Write),
            Kind::Read => return SliceRequest::decode(prefix, head).map(Self::Read),
            Kind::Notify => {
                let transfer = TransferId(reader.u64("transfer")?);
                let floor = TransferId(reader.u64("floor")?);
                let notification = reader.rest();
                let bytes = u32::try_from(notification.len()).unwrap_or(u32::MAX);
                at_most("notification bytes", bytes, limits::NOTIFICATION_BYTES)?;
                Self::Notify { transfer, floor, notification }
            }
            Kind::Landed => Self::Control(Control::Landed {
                transfer: TransferId(reader.u64("transfer")?),
                slice: reader.u32("slice")?,
            }),
            Kind::Cancel => {
                let transfer = TransferId(reader.u64("transfer")?);
                let floor = TransferId(reader.u64("floor")?);
                Self::Control(Control::Cancel { transfer, floor })
            }
            Kind::FenceLane => {
                Self::Control(Control::FenceLane { lane: LaneId(reader.u32("lane")?) })
            }
            Kind::Ping => Self::Control(Control::Ping {
                nonce: reader.u64("nonce")?,
                floor: TransferId(reader.u64("floor")?),
            }),
            Kind::Lend => Self::Lend(Loan::decode(&mut reader)?),
            Kind::LendKey => Self::LendKey(KeyLoan::decode(&mut reader)?),
            Kind::Recall => Self::Recall(region_from_wire(&mut reader)?),
            kind => return Err(FrameError::Direction { kind }),
        };
        reader.end()?;
        Ok(request)
    }

    /// Appends a [`Request::Lend`] frame to `out`. The region's descriptor goes with its first byte,
    /// unless it is read where it is.
    pub fn encode_lend(out: &mut Vec<u8>, loan: Loan) {
        loan.encode(out, Kind::Lend);
    }

    /// Appends a [`Request::LendKey`] frame to `out`.
    pub fn encode_lend_key(out: &mut Vec<u8>, loan: KeyLoan) {
        loan.encode(out, Kind::LendKey);
    }

    /// Appends a [`Request::Recall`] frame to `out`.
    pub fn encode_recall(out: &mut Vec<u8>, region: RegionId) {
        encode_recall(out, Kind::Recall, region);
    }

    /// Appends a [`Request::Notify`] frame to `out`.
    pub fn encode_notify(
        out: &mut Vec<u8>,
        transfer: TransferId,
        floor: TransferId,
        notification: &[u8],
    ) {
        Prefix { answer_now: true, ..Prefix::new(Kind::Notify) }.frame(out, |out| {
            out.extend_from_slice(&transfer.0.to_le_bytes());
            out.extend_from_slice(&floor.0.to_le_bytes());
            out.extend_from_slice(notification);
        });
    }
}

impl Control {
    /// Appends the frame to `out`.
    pub fn encode(self, out: &mut Vec<u8>) {
        let frame = |kind| Prefix { answer_now: true, ..Prefix::new(kind) };
        match self {
            Self::Landed { transfer, slice } => frame(Kind::Landed).frame(out, |out| {
                out.extend_from_slice(&transfer.0.to_le_bytes());
                out.extend_from_slice(&slice.to_le_bytes());
            }),
            Self::Cancel { transfer, floor } => frame(Kind::Cancel).frame(out, |out| {
                out.extend_from_slice(&transfer.0.to_le_bytes());
                out.extend_from_slice(&floor.0.to_le_bytes());
            }),
            Self::FenceLane { lane } => frame(Kind::FenceLane)
                .frame(out, |out| out.extend_from_slice(&lane.0.to_le_bytes())),
            Self::Ping { nonce, floor } => frame(Kind::Ping).frame(out, |out| {
                out.extend_from_slice(&nonce.to_le_bytes());
                out.extend_from_slice(&floor.0.to_le_bytes());
            }),
        }
    }
}
