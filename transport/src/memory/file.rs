//! A mapped file, touched by system calls only.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use memmap2::{MmapOptions, MmapRaw};

use super::MemoryError;

/// A file mapped whole. The mapping gives its bytes addresses for the scatter and gather calls;
/// our own copies go through the file, which knows its length.
#[derive(Debug)]
pub(super) struct FileMapping {
    file: File,
    mapping: MmapRaw,
}

impl FileMapping {
    pub(super) fn new(file: File) -> Result<Self, MemoryError> {
        let bytes = length_of(&file)?;
        if bytes == 0 {
            return Err(MemoryError::Empty);
        }
        let length =
            usize::try_from(bytes).map_err(|_| MemoryError::Overflow { base: 0, length: bytes })?;
        let mapping = MmapOptions::new()
            .len(length)
            .map_raw(&file)
            .map_err(|source| MemoryError::System { what: "mapping a file", bytes, source })?;
        Ok(Self { file, mapping })
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        // A mapping is never at address 0.
        NonNull::new(self.mapping.as_mut_ptr()).unwrap_or(NonNull::dangling())
    }

    pub(super) fn length(&self) -> usize {
        self.mapping.len()
    }

    pub(super) fn check(&self) -> Result<(), MemoryError> {
        let file_bytes = length_of(&self.file)?;
        let needed_bytes = self.mapping.len() as u64;
        if file_bytes < needed_bytes {
            return Err(MemoryError::Truncated { file_bytes, needed_bytes });
        }
        Ok(())
    }

    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), MemoryError> {
        self.file
            .read_exact_at(into, offset)
            .map_err(|error| self.failed("reading a file", into.len(), error))
    }

    pub(super) fn write(&self, offset: u64, from: &[u8]) -> Result<(), MemoryError> {
        // Writing past the end would make a truncated file longer again.
        self.check()?;
        self.file
            .write_all_at(from, offset)
            .map_err(|error| self.failed("writing a file", from.len(), error))
    }

    fn failed(&self, what: &'static str, bytes: usize, source: io::Error) -> MemoryError {
        match self.check() {
            Err(truncated) => truncated,
            Ok(()) => MemoryError::System { what, bytes: bytes as u64, source },
        }
    }
}

fn length_of(file: &File) -> Result<u64, MemoryError> {
    let metadata = file.metadata();
    Ok(metadata
        .map_err(|source| MemoryError::System {
            what: "reading a file's length",
            bytes: 0,
            source,
        })?
        .len())
}
