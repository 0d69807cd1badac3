//! Ranges of regions, as transfers and grants name them.

use std::fmt;
use std::sync::Arc;

use kvferry_proto::RegionId;

use super::region::RegionInner;
use crate::error::Error;

/// A range of a region. It does not keep the region registered.
#[derive(Clone)]
pub struct Span {
    pub(crate) region: Arc<RegionInner>,
    /// From the region's start.
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Span {
    /// The region's id.
    #[must_use]
    pub fn region(&self) -> RegionId {
        self.region.id
    }

    /// Where it starts, in bytes from the region's start.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// A range of it: the filled part of a block, for example.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when it reaches outside.
    pub fn part(&self, offset: u64, length: u64) -> Result<Self, Error> {
        let offset = part_of_span(self.offset, self.length, offset, length)?;
        Ok(Self { region: self.region.clone(), offset, length })
    }
}

/// Where a part of a span starts, by the count that the span's own `start` is in.
pub(crate) fn part_of_span(
    start: u64,
    within_length: u64,
    offset: u64,
    length: u64,
) -> Result<u64, Error> {
    match offset.checked_add(length) {
        // A span does not overflow, so no part of it does.
        Some(end) if end <= within_length => Ok(start + offset),
        _ => Err(Error::OutOfBounds { offset, length, within: "a span", within_length }),
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({}, {}, +{})", self.region.id, self.offset, self.length)
    }
}
