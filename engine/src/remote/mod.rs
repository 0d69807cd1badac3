//! What a peer shares, as this process knows it: its table, and handles into it.

mod grant;
mod table;

use std::fmt;
use std::sync::Arc;

use kvferry_proto::message::{Geometry, RegionDescription};
use kvferry_proto::{Incarnation, RegionId};

use crate::error::Error;
use crate::registry::{block_offset, narrow, part_of_span};

pub use grant::RemoteGrant;
pub(crate) use table::RemoteTable;

/// A region of a peer's incarnation.
#[derive(Clone)]
pub struct RemoteRegion {
    pub(crate) incarnation: Incarnation,
    pub(crate) region: Arc<RegionDescription>,
}

impl RemoteRegion {
    /// Its id at the owner.
    #[must_use]
    pub fn id(&self) -> RegionId {
        self.region.id
    }

    /// The address of its first byte in the owner's process.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.region.base
    }

    /// Its length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.region.length
    }

    /// A range of it.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when it reaches outside.
    pub fn span(&self, offset: u64, length: u64) -> Result<RemoteSpan, Error> {
        let within_length = self.region.length;
        match offset.checked_add(length) {
            Some(end) if end <= within_length => Ok(RemoteSpan {
                incarnation: self.incarnation,
                region: self.region.id,
                offset,
                length,
            }),
            _ => {
                Err(Error::OutOfBounds { offset, length, within: "a remote region", within_length })
            }
        }
    }

    /// All of it.
    #[must_use]
    pub fn whole(&self) -> RemoteSpan {
        RemoteSpan {
            incarnation: self.incarnation,
            region: self.region.id,
            offset: 0,
            length: self.region.length,
        }
    }
}

impl fmt::Debug for RemoteRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteRegion")
            .field("incarnation", &self.incarnation)
            .field("region", &self.region)
            .finish()
    }
}

/// A range of a peer's region.
#[derive(Clone, Copy, Debug)]
pub struct RemoteSpan {
    pub(crate) incarnation: Incarnation,
    pub(crate) region: RegionId,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl RemoteSpan {
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
        Ok(Self { offset, length, ..*self })
    }
}

/// A layout that a peer published.
#[derive(Clone, Debug)]
pub struct RemoteLayout {
    pub(crate) incarnation: Incarnation,
    pub(crate) region: RegionId,
    pub(crate) geometry: Geometry,
    pub(crate) region_length: u64,
}

impl RemoteLayout {
    /// The blocks with these indices, in this order. Whether they exist is checked when the list
    /// is used.
    pub fn blocks(&self, indices: impl IntoIterator<Item = u32>) -> RemoteBlocks {
        RemoteBlocks {
            incarnation: self.incarnation,
            region: self.region,
            geometry: self.geometry,
            indices: indices.into_iter().collect(),
        }
    }

    /// One block as a span.
    ///
    /// # Errors
    /// [`Error::NoSuchBlock`].
    pub fn block(&self, index: u32) -> Result<RemoteSpan, Error> {
        Ok(RemoteSpan {
            incarnation: self.incarnation,
            region: self.region,
            offset: block_offset(&self.geometry, index)?,
            length: self.geometry.block_bytes,
        })
    }

    /// The same blocks, of which only `length` bytes from `offset` on count: some heads of each,
    /// where a block holds them one behind the other.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when that reaches outside a block, [`Error::BadLayout`] when it is
    /// nothing.
    pub fn narrow(&self, offset: u64, length: u64) -> Result<Self, Error> {
        let geometry = narrow(&self.geometry, offset, length, self.region_length)?;
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
}

/// Blocks of a peer's layout, by index.
#[derive(Clone, Debug)]
pub struct RemoteBlocks {
    pub(crate) incarnation: Incarnation,
    pub(crate) region: RegionId,
    pub(crate) geometry: Geometry,
    pub(crate) indices: Vec<u32>,
}
