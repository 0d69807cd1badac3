//! Memory that a peer lends, mapped read-only.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::memory::MemoryError;
use crate::memory::allocate::map_aligned;

/// A memfd of another process, mapped read-only for as long as a handle lives. Clones are handles
/// to the same mapping.
#[derive(Clone)]
pub struct PeerMemory(Arc<Mapping>);

struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is a range of addresses that nobody else unmaps; its bytes are only read, by
// copying through raw pointers, and belong to no thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method hands out a reference into the range.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and every user of it holds a handle that holds this.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

impl PeerMemory {
    /// Maps the first `length` bytes of what a peer lends.
    ///
    /// # Errors
    /// [`MemoryError::NotLent`] when it is no memfd, could be cut short under us, or is too short;
    /// [`MemoryError::System`] when it cannot be mapped.
    pub fn map(lent: OwnedFd, length: u64) -> Result<Self, MemoryError> {
        // Only memfds have seals, and one that cannot shrink raises no signal when it is read.
        // SAFETY: a descriptor that we own; the call takes no other argument.
        let seals = unsafe { libc::fcntl(lent.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 {
            return Err(MemoryError::NotLent { reason: "it is no memfd" });
        }
        if seals & libc::F_SEAL_SHRINK == 0 {
            return Err(MemoryError::NotLent { reason: "it is not sealed against shrinking" });
        }
        let file = File::from(lent);
        let metadata = file.metadata().map_err(|source| MemoryError::System {
            what: "reading a memfd's length",
            bytes: length,
            source,
        })?;
        if length == 0 || metadata.len() < length {
            return Err(MemoryError::NotLent { reason: "it is shorter than was said" });
        }
        let length =
            usize::try_from(length).map_err(|_| MemoryError::Overflow { base: 0, length })?;
        let base = map_aligned(file.as_fd(), length, libc::PROT_READ)?;
        Ok(Self(Arc::new(Mapping { base, length })))
    }

    /// The length in bytes: never 0.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.0.length as u64
    }
}

impl fmt::Debug for PeerMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerMemory").field("length", &self.0.length).finish_non_exhaustive()
    }
}

/// A list of spans of memory that a peer lends, and a position in it. Every span was checked
/// against its memory, which the list keeps mapped.
#[derive(Debug, Default)]
pub struct PeerSpans {
    spans: Vec<Span>,
    memories: Vec<PeerMemory>,
    bytes: u64,
    next: usize,
    within: usize,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    address: usize,
    bytes: usize,
}

impl PeerSpans {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for `spans` more.
    pub fn reserve(&mut self, spans: usize) {
        self.spans.reserve(spans);
    }

    /// Spans pushed from now on lie in `memory`.
    pub fn attach(&mut self, memory: &PeerMemory) {
        if !self.memories.last().is_some_and(|last| Arc::ptr_eq(&last.0, &memory.0)) {
            self.memories.push(memory.clone());
        }
    }

    /// Appends a span of the memory attached last.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] when it reaches outside, or nothing is attached.
    pub fn push(&mut self, offset: u64, bytes: u32) -> Result<(), MemoryError> {
        let length = u64::from(bytes);
        let memory_bytes = self.memories.last().map_or(0, PeerMemory::length);
        let outside = MemoryError::OutOfBounds { offset, length, memory_bytes };
        let fits = offset.checked_add(length).is_some_and(|end| end <= memory_bytes);
        let Some(memory) = self.memories.last().filter(|_| fits) else { return Err(outside) };
        // In bounds, so it fits the `usize` that the length was.
        let at = usize::try_from(offset).map_err(|_| outside)?;
        let address = memory.0.base.as_ptr() as usize + at;
        self.spans.push(Span { address, bytes: bytes as usize });
        self.bytes += length;
        Ok(())
    }

    /// Bytes of all spans together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What is left of the span at the position, and where the span behind it starts.
    pub(crate) fn current(&self) -> Option<(*const u8, usize, Option<*const u8>)> {
        let span = self.spans.get(self.next)?;
        let following = self.spans.get(self.next + 1).map(|next| next.address as *const u8);
        Some(((span.address + self.within) as *const u8, span.bytes - self.within, following))
    }

    pub(crate) fn advance(&mut self, bytes: usize) {
        self.within += bytes;
        if self.spans.get(self.next).is_some_and(|span| span.bytes == self.within) {
            self.next += 1;
            self.within = 0;
        }
    }
}
