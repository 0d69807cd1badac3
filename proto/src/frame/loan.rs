//! Memory that one end of a lane lets the other read.

use super::FrameError;
use super::prefix::{Kind, Prefix};
use super::read::Reader;
use crate::identity::RegionId;

/// A region that one end lets the other read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    /// The region.
    pub region: RegionId,
    /// Its length in bytes.
    pub length: u64,
    /// Where it starts in the memory of the sender's process, which is to be read there: never 0.
    /// Without it a descriptor of its memory comes with the frame.
    pub base: Option<u64>,
}

impl Loan {
    pub(super) fn encode(self, out: &mut Vec<u8>, kind: Kind) {
        Prefix::new(kind).frame(out, |out| {
            region_to_wire(out, self.region);
            out.extend_from_slice(&self.length.to_le_bytes());
            if let Some(base) = self.base {
                out.extend_from_slice(&base.to_le_bytes());
            }
        });
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let region = region_from_wire(reader)?;
        let length = reader.u64("region length")?;
        if length == 0 {
            return Err(FrameError::Value { what: "region length", found: 0 });
        }
        let base = if reader.is_empty() { None } else { Some(reader.u64("region base")?) };
        if let Some(found) = base.filter(|base| *base == 0 || base.checked_add(length).is_none()) {
            return Err(FrameError::Value { what: "region base", found });
        }
        Ok(Self { region, length, base })
    }
}

pub(super) fn encode_recall(out: &mut Vec<u8>, kind: Kind, region: RegionId) {
    Prefix::new(kind).frame(out, |out| region_to_wire(out, region));
}

fn region_to_wire(out: &mut Vec<u8>, region: RegionId) {
    out.extend_from_slice(&region.slot.to_le_bytes());
    out.extend_from_slice(&region.generation.to_le_bytes());
}

pub(super) fn region_from_wire(reader: &mut Reader<'_>) -> Result<RegionId, FrameError> {
    let slot = reader.u32("region slot")?;
    Ok(RegionId { slot, generation: reader.u32("region generation")? })
}

/// A part of a region that one end lets the other's adapter read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLoan {
    /// The region.
    pub region: RegionId,
    /// Where the part starts, in bytes from the region's start.
    pub offset: u64,
    /// Its length in bytes: never 0.
    pub bytes: u64,
    /// Where it starts in the memory of the sender's process.
    pub address: u64,
    /// By what the sender's adapter knows it.
    pub key: u32,
}

impl KeyLoan {
    pub(super) fn encode(self, out: &mut Vec<u8>, kind: Kind) {
        Prefix::new(kind).frame(out, |out| {
            region_to_wire(out, self.region);
            for field in [self.offset, self.bytes, self.address] {
                out.extend_from_slice(&field.to_le_bytes());
            }
            out.extend_from_slice(&self.key.to_le_bytes());
        });
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let region = region_from_wire(reader)?;
        let offset = reader.u64("part offset")?;
        let bytes = reader.u64("part length")?;
        let address = reader.u64("part address")?;
        let key = reader.u32("key")?;
        if bytes == 0 || offset.checked_add(bytes).is_none() {
            return Err(FrameError::Value { what: "part length", found: bytes });
        }
        if address.checked_add(bytes).is_none() {
            return Err(FrameError::Value { what: "part address", found: address });
        }
        Ok(Self { region, offset, bytes, address, key })
    }
}
