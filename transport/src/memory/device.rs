//! Memory of a device, exported as a dma-buf.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::MemoryError;
use super::pages::SMALL_PAGE_BYTES;

/// The descriptor by which adapters' drivers find memory of a device, and where in it that starts.
#[derive(Debug)]
pub(crate) struct DmaBuf {
    file: File,
    offset: u64,
}

impl DmaBuf {
    /// Checks what can be known of `length` bytes from `offset` on, which the program knows by the
    /// address `base`.
    pub(super) fn new(
        descriptor: OwnedFd,
        offset: u64,
        base: u64,
        length: u64,
    ) -> Result<Self, MemoryError> {
        let file = File::from(descriptor);
        // The kernel's rule for registrations of dma-bufs (uverbs_std_types_mr.c), which says no more
        // than that an argument is invalid.
        if !(base ^ offset).is_multiple_of(SMALL_PAGE_BYTES as u64) {
            return Err(MemoryError::Misaligned { base, offset });
        }
        // To ask for the end of a dma-buf is what they know of seeking.
        let size = (&file).seek(SeekFrom::End(0)).map_err(|source| MemoryError::System {
            what: "asking a dma-buf for its size",
            bytes: length,
            source,
        })?;
        match offset.checked_add(length) {
            Some(end) if end <= size => Ok(Self { file, offset }),
            _ => Err(MemoryError::OutOfBounds { offset, length, memory_bytes: size }),
        }
    }

    /// Where the memory starts in it, in bytes.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
