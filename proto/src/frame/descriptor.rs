//! The list of remote spans in a slice: sections, one for each grant and region, of descriptors.
//!
//! A descriptor is a run of `count` equally long spans, `stride` bytes apart. A list of scattered
//! spans has `count` 1 throughout and costs 16 bytes a span; a run of block indices of a layout is
//! one descriptor of 24 bytes, however long it is.

use super::read::Reader;
use super::{FrameError, limits};
use crate::identity::{GrantId, RegionId};

/// `count` spans of `bytes` each, the first at `offset` of the section's region and each `stride`
/// bytes behind the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Where the first span starts, in bytes from the region's start.
    pub offset: u64,
    /// The length of each span: never 0.
    pub bytes: u32,
    /// How many spans: never 0.
    pub count: u32,
    /// From the start of one span to the start of the next; 0 where `count` is 1.
    pub stride: u64,
}

impl Descriptor {
    /// Bytes of all spans together.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        u64::from(self.bytes) * u64::from(self.count)
    }

    /// The end of the last span, in bytes from the region's start; `None` where that overflows.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        let last = u64::from(self.count.saturating_sub(1)).checked_mul(self.stride)?;
        self.offset.checked_add(last)?.checked_add(self.bytes.into())
    }
}

/// The spans that one grant permits in one region.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// The grant that permits the access.
    pub grant: GrantId,
    /// The region that the descriptors' offsets count from.
    pub region: RegionId,
    count: u32,
    reader: Reader<'a>,
}

/// The sections of a slice, in payload order.
#[derive(Clone, Copy, Debug)]
pub struct Sections<'a> {
    left: u32,
    reader: Reader<'a>,
}

const SECTION_BYTES: usize = 24;
const SPAN_BYTES: usize = 16;
const RUN_BYTES: usize = 24;

impl<'a> Sections<'a> {
    /// The list at the start of `body`, checked, what it adds up to, and what lies behind it.
    pub(super) fn split(
        count: u32,
        body: &'a [u8],
    ) -> Result<(Self, SectionTotal, &'a [u8]), FrameError> {
        super::prefix::at_most("sections", count, limits::SPANS)?;
        let mut walk = Self { left: count, reader: Reader::new(body) };
        let mut total = SectionTotal { bytes: 0, spans: 0 };
        while walk.left > 0 {
            walk.next_section(|_, descriptor| total.add(&descriptor))?;
        }
        let rest = walk.reader.rest();
        let (list, _) = body.split_at(body.len() - rest.len());
        Ok((Self { left: count, reader: Reader::new(list) }, total, rest))
    }

    /// The next section, for which `visit` is called once for each descriptor, in order.
    ///
    /// Returns the section, or `None` after the last.
    ///
    /// # Errors
    /// [`FrameError`] of the list, or whatever `visit` returns; nothing is visited after either.
    pub fn next_section<E: From<FrameError>>(
        &mut self,
        mut visit: impl FnMut(&Section<'a>, Descriptor) -> Result<(), E>,
    ) -> Result<Option<Section<'a>>, E> {
        let Some(section) = self.section()? else { return Ok(None) };
        let mut reader = section.reader;
        for _ in 0..section.count {
            visit(&section, descriptor(&mut reader)?)?;
        }
        self.reader = reader;
        Ok(Some(section))
    }

    fn section(&mut self) -> Result<Option<Section<'a>>, FrameError> {
        if self.left == 0 {
            self.reader.end()?;
            return Ok(None);
        }
        self.left -= 1;
        let reader = &mut self.reader;
        let grant = GrantId(reader.u64("grant")?);
        let slot = reader.u32("region slot")?;
        let generation = reader.u32("region generation")?;
        let count = reader.u32("descriptor count")?;
        let reserved = reader.u32("section padding")?;
        if count == 0 {
            return Err(FrameError::Value { what: "descriptor count", found: 0 });
        }
        if reserved != 0 {
            return Err(FrameError::Value { what: "section padding", found: reserved.into() });
        }
        super::prefix::at_most("descriptors", count, limits::SPANS)?;
        Ok(Some(Section {
            grant,
            region: RegionId { slot, generation },
            count,
            reader: self.reader,
        }))
    }
}

/// What a list of descriptors adds up to, within the limits of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionTotal {
    /// Payload bytes.
    pub bytes: u32,
    /// Spans.
    pub spans: u32,
}

impl SectionTotal {
    fn add(&mut self, descriptor: &Descriptor) -> Result<(), FrameError> {
        let bytes = u64::from(self.bytes) + descriptor.total_bytes();
        let spans = u64::from(self.spans) + u64::from(descriptor.count);
        self.bytes = within("slice bytes", bytes, limits::PAYLOAD_BYTES)?;
        self.spans = within("spans", spans, limits::SPANS)?;
        Ok(())
    }
}

fn within(what: &'static str, found: u64, limit: u32) -> Result<u32, FrameError> {
    match u32::try_from(found) {
        Ok(value) if value <= limit => Ok(value),
        _ => Err(FrameError::Limit { what, found, limit: limit.into() }),
    }
}

fn descriptor(reader: &mut Reader<'_>) -> Result<Descriptor, FrameError> {
    let offset = reader.u64("descriptor offset")?;
    let bytes = reader.u32("descriptor length")?;
    let count = reader.u32("span count")?;
    if bytes == 0 {
        return Err(FrameError::Value { what: "descriptor length", found: 0 });
    }
    let stride = match count {
        0 => return Err(FrameError::Value { what: "span count", found: 0 }),
        1 => 0,
        _ => reader.u64("stride")?,
    };
    Ok(Descriptor { offset, bytes, count, stride })
}

/// Writes sections into a head.
#[derive(Debug)]
pub struct SectionWriter<'a> {
    out: &'a mut Vec<u8>,
    sections: u32,
    open: Option<OpenSection>,
}

#[derive(Debug)]
struct OpenSection {
    grant: GrantId,
    region: RegionId,
    count_at: usize,
    count: u32,
}

impl<'a> SectionWriter<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, sections: 0, open: None }
    }

    /// Makes room for `descriptors` more, so that pushing them does not move what is there.
    pub fn reserve(&mut self, descriptors: usize) {
        self.out.reserve(descriptors * RUN_BYTES + SECTION_BYTES);
    }

    /// Appends one descriptor, in a section of its own where grant or region change.
    pub fn push(&mut self, grant: GrantId, region: RegionId, descriptor: Descriptor) {
        let open = match &mut self.open {
            Some(open) if open.grant == grant && open.region == region => open,
            _ => self.start(grant, region),
        };
        open.count += 1;
        // Two lengths known to the compiler, not one that is not: a copy of so few bytes costs more
        // as a call.
        let mut span = [0_u8; SPAN_BYTES];
        span[0..8].copy_from_slice(&descriptor.offset.to_le_bytes());
        span[8..12].copy_from_slice(&descriptor.bytes.to_le_bytes());
        span[12..16].copy_from_slice(&descriptor.count.to_le_bytes());
        if descriptor.count > 1 {
            let mut run = [0_u8; RUN_BYTES];
            run[..SPAN_BYTES].copy_from_slice(&span);
            run[SPAN_BYTES..].copy_from_slice(&descriptor.stride.to_le_bytes());
            self.out.extend_from_slice(&run);
        } else {
            self.out.extend_from_slice(&span);
        }
    }

    fn start(&mut self, grant: GrantId, region: RegionId) -> &mut OpenSection {
        self.close();
        self.sections += 1;
        self.out.extend_from_slice(&grant.0.to_le_bytes());
        self.out.extend_from_slice(&region.slot.to_le_bytes());
        self.out.extend_from_slice(&region.generation.to_le_bytes());
        let count_at = self.out.len();
        self.out.extend_from_slice(&[0; 8]);
        self.open.insert(OpenSection { grant, region, count_at, count: 0 })
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            let at = open.count_at;
            self.out[at..at + 4].copy_from_slice(&open.count.to_le_bytes());
        }
    }

    pub(super) fn finish(mut self) -> u32 {
        self.close();
        self.sections
    }
}
