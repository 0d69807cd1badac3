//! Views on a region as blocks, and lists of their blocks.

use std::fmt;
use std::sync::Arc;

use kvferry_proto::message::{LayoutDescription, NAME_BYTES};

use super::Registry;
use super::region::RegionInner;
use super::span::Span;
use crate::error::Error;

/// Which bytes of a region are which block: `count` blocks of `block_bytes`, `stride` bytes apart,
/// the first at `offset`.
pub use kvferry_proto::message::Geometry as Layout;

/// A view on a region. It does not keep the region registered; views may overlap.
#[derive(Clone)]
pub struct LayoutView {
    registry: Registry,
    region: Arc<RegionInner>,
    /// Offsets count from the region's start.
    geometry: Layout,
}

impl LayoutView {
    pub(super) fn new(
        registry: &Registry,
        region: &Arc<RegionInner>,
        base: u64,
        length: u64,
        layout: Layout,
    ) -> Result<Self, Error> {
        let fits = layout.block_bytes > 0 && layout.end().is_some_and(|end| end <= length);
        if !fits {
            return Err(Error::BadLayout {
                offset: layout.offset,
                block_bytes: layout.block_bytes,
                stride: layout.stride,
                count: layout.count,
                region_length: length,
            });
        }
        let geometry = Layout { offset: base + layout.offset, ..layout };
        Ok(Self { registry: registry.clone(), region: region.clone(), geometry })
    }

    /// The blocks with these indices, in this order. Whether they exist is checked when the list
    /// is used.
    pub fn blocks(&self, indices: impl IntoIterator<Item = u32>) -> BlockList {
        BlockList {
            region: self.region.clone(),
            geometry: self.geometry,
            indices: indices.into_iter().collect(),
        }
    }

    /// One block as a span.
    ///
    /// # Errors
    /// [`Error::NoSuchBlock`].
    pub fn block(&self, index: u32) -> Result<Span, Error> {
        let offset = block_offset(&self.geometry, index)?;
        Ok(Span { region: self.region.clone(), offset, length: self.geometry.block_bytes })
    }

    /// The same blocks, of which only `length` bytes from `offset` on count: some heads of each,
    /// where a block holds them one behind the other.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when that reaches outside a block, [`Error::BadLayout`] when it is
    /// nothing.
    pub fn narrow(&self, offset: u64, length: u64) -> Result<Self, Error> {
        let geometry = narrow(&self.geometry, offset, length, self.region.length())?;
        Ok(Self { geometry, ..self.clone() })
    }

    /// How many blocks there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.geometry.count
    }

    /// The length of a block in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.geometry.block_bytes
    }

    /// Tells peers of the layout under a name, until it is withdrawn or its region is
    /// unregistered. This permits nothing: that is for grants.
    ///
    /// # Errors
    /// [`Error::NameTaken`], [`Error::NameTooLong`].
    pub fn publish(&self, name: &str) -> Result<(), Error> {
        if name.len() > NAME_BYTES {
            return Err(Error::NameTooLong { found: name.len(), limit: NAME_BYTES });
        }
        self.registry.table().publish(
            &self.registry,
            &self.region,
            LayoutDescription {
                name: name.to_owned(),
                region: self.region.id,
                geometry: self.geometry,
            },
        )
    }
}

impl fmt::Debug for LayoutView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayoutView")
            .field("region", &self.region.id)
            .field("geometry", &self.geometry)
            .finish_non_exhaustive()
    }
}

/// Blocks of a layout, by index.
#[derive(Clone)]
pub struct BlockList {
    pub(crate) region: Arc<RegionInner>,
    pub(crate) geometry: Layout,
    pub(crate) indices: Vec<u32>,
}

impl fmt::Debug for BlockList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockList")
            .field("region", &self.region.id)
            .field("blocks", &self.indices.len())
            .finish_non_exhaustive()
    }
}

/// A part of each block: `length` bytes from `offset` on.
pub(crate) fn narrow(
    geometry: &Layout,
    offset: u64,
    length: u64,
    region_length: u64,
) -> Result<Layout, Error> {
    let within_length = geometry.block_bytes;
    if offset.checked_add(length).is_none_or(|end| end > within_length) {
        return Err(Error::OutOfBounds { offset, length, within: "a block", within_length });
    }
    // A block does not overflow, so no part of it does.
    let offset = geometry.offset + offset;
    let (stride, count) = (geometry.stride, geometry.count);
    if length == 0 {
        return Err(Error::BadLayout { offset, block_bytes: 0, stride, count, region_length });
    }
    Ok(Layout { offset, block_bytes: length, stride, count })
}

/// Where a block starts, in bytes from its region's start.
pub(crate) fn block_offset(geometry: &Layout, index: u32) -> Result<u64, Error> {
    if u64::from(index) >= geometry.count {
        return Err(Error::NoSuchBlock { index: index.into(), count: geometry.count });
    }
    // The end of the last block does not overflow, so no block's start does.
    Ok(geometry.offset + u64::from(index) * geometry.stride)
}
