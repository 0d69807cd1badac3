//! Memory that a peer lends: mapped read-only, or read where it lies.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::process::{PeerProcess, Ranges};
use crate::memory::MemoryError;
use crate::memory::allocate::map_aligned;

/// Memory of another process, readable for as long as a handle lives and the process lets it be.
/// Clones are handles to the same memory.
#[derive(Clone)]
pub struct PeerMemory(Arc<Inner>);

enum Inner {
    /// A memfd, mapped read-only.
    Mapped(Mapping),
    /// A range of addresses of the process's own.
    InPlace(InPlace),
}

struct InPlace {
    process: Arc<PeerProcess>,
    base: usize,
    length: usize,
}

/// A range of addresses that is unmapped when this is dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is a range of addresses that nobody else unmaps; its bytes are copied through raw
// pointers, or are words touched by atomics only, and belong to no thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method hands out a reference into the range. A ring's producer makes one to where
// nobody else reads or writes, for as long as it copies.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and every user of it holds a handle that holds this.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

impl Mapping {
    /// Takes over a mapping that was just made, and that nobody else unmaps.
    pub(super) fn new(base: NonNull<u8>, length: usize) -> Self {
        Self { base, length }
    }

    /// Maps the first `length` bytes of what a peer lends, for reading only.
    ///
    /// # Errors
    /// [`MemoryError::NotLent`] when it is no memfd, could be cut short under us, or is too short;
    /// [`MemoryError::System`] when it cannot be mapped.
    pub(super) fn of_lent(lent: OwnedFd, length: u64) -> Result<Self, MemoryError> {
        // Only memfds have seals, and one that cannot shrink raises no signal when it is read.
        // SAFETY: a descriptor that we own; the call takes no other argument.
        let seals = unsafe { libc::fcntl(lent.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 {
            return Err(MemoryError::NotLent { reason: "it is no memfd" });
        }
        if seals & libc::F_SEAL_SHRINK == 0 {
            return Err(MemoryError::NotLent { reason: "it is not sealed against shrinking" });
        }
        if !is_of_ordinary_pages(lent.as_fd()) {
            return Err(MemoryError::NotLent { reason: "its pages are not ordinary ones" });
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
        Ok(Self::new(base, length))
    }

    /// The address of its first byte.
    pub(super) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

/// Whether it is mapped to the length that is asked for: of a memfd on `hugetlbfs` whole pages are, and
/// there may be none when it is read.
fn is_of_ordinary_pages(memfd: BorrowedFd<'_>) -> bool {
    // SAFETY: plain data, for which all zeros is a value; the call fills it, and its result is checked.
    unsafe {
        let mut told: libc::statfs = std::mem::zeroed();
        libc::fstatfs(memfd.as_raw_fd(), &raw mut told) == 0 && told.f_type == libc::TMPFS_MAGIC
    }
}

impl PeerMemory {
    /// Maps the first `length` bytes of what a peer lends.
    ///
    /// # Errors
    /// [`MemoryError::NotLent`] when it is no memfd, could be cut short under us, or is too short;
    /// [`MemoryError::System`] when it cannot be mapped.
    pub fn map(lent: OwnedFd, length: u64) -> Result<Self, MemoryError> {
        Ok(Self(Arc::new(Inner::Mapped(Mapping::of_lent(lent, length)?))))
    }

    /// `length` bytes of a process's own memory from address `base` on, to be read where they are.
    /// Whether they are there is found when they are read.
    ///
    /// # Errors
    /// [`MemoryError::NotLent`] when that is no range of addresses.
    pub fn in_place(
        process: &Arc<PeerProcess>,
        base: u64,
        length: u64,
    ) -> Result<Self, MemoryError> {
        let range = usize::try_from(base).ok().zip(usize::try_from(length).ok());
        let range =
            range.filter(|(base, length)| *length > 0 && base.checked_add(*length).is_some());
        let (base, length) =
            range.ok_or(MemoryError::NotLent { reason: "it is no range of addresses" })?;
        let process = process.clone();
        Ok(Self(Arc::new(Inner::InPlace(InPlace { process, base, length }))))
    }

    /// The length in bytes: never 0.
    #[must_use]
    pub fn length(&self) -> u64 {
        match &*self.0 {
            Inner::Mapped(mapping) => mapping.length as u64,
            Inner::InPlace(there) => there.length as u64,
        }
    }

    /// The address of its first byte: here where it is mapped, else in the other process.
    fn base(&self) -> usize {
        match &*self.0 {
            Inner::Mapped(mapping) => mapping.base.as_ptr() as usize,
            Inner::InPlace(there) => there.base,
        }
    }
}

impl fmt::Debug for PeerMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_mapped = matches!(&*self.0, Inner::Mapped(_));
        f.debug_struct("PeerMemory")
            .field("length", &self.length())
            .field("is_mapped", &is_mapped)
            .finish_non_exhaustive()
    }
}

/// A list of spans of memory that a peer lends, and a position in it. Every span was checked
/// against its memory, which the list keeps.
#[derive(Debug, Default)]
pub struct PeerSpans {
    spans: Vec<Span>,
    sections: Vec<Section>,
    bytes: u64,
    next: usize,
    within: usize,
    /// How many sections have begun at the position.
    begun: usize,
}

/// The spans from `start` on, up to the next section's, lie in `memory`.
#[derive(Debug)]
struct Section {
    start: usize,
    memory: PeerMemory,
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
        if !self.sections.last().is_some_and(|last| Arc::ptr_eq(&last.memory.0, &memory.0)) {
            self.sections.push(Section { start: self.spans.len(), memory: memory.clone() });
        }
    }

    /// Appends a span of the memory attached last.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] when it reaches outside, or nothing is attached.
    pub fn push(&mut self, offset: u64, bytes: u32) -> Result<(), MemoryError> {
        let length = u64::from(bytes);
        let memory = self.sections.last().map(|section| &section.memory);
        let memory_bytes = memory.map_or(0, PeerMemory::length);
        let outside = MemoryError::OutOfBounds { offset, length, memory_bytes };
        let fits = offset.checked_add(length).is_some_and(|end| end <= memory_bytes);
        let Some(memory) = memory.filter(|_| fits) else { return Err(outside) };
        // In bounds, so it fits the `usize` that the length was.
        let at = usize::try_from(offset).map_err(|_| outside)?;
        let address = memory.base() + at;
        self.spans.push(Span { address, bytes: bytes as usize });
        self.bytes += length;
        Ok(())
    }

    /// Bytes of all spans together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the span at the position lies; `None` behind the last.
    pub(crate) fn place(&mut self) -> Option<Place<'_>> {
        self.spans.get(self.next)?;
        while self.sections.get(self.begun).is_some_and(|section| section.start <= self.next) {
            self.begun += 1;
        }
        let section = self.sections.get(self.begun.checked_sub(1)?)?;
        Some(match &*section.memory.0 {
            Inner::Mapped(_) => Place::Mapped,
            Inner::InPlace(there) => Place::InPlace(&there.process),
        })
    }

    /// Where the section of the position ends among the spans. [`PeerSpans::place`] was asked.
    fn end(&self) -> usize {
        self.sections.get(self.begun).map_or(self.spans.len(), |section| section.start)
    }

    /// What is left of the span at the position, as far as it is mapped, and where the span behind
    /// it starts. [`PeerSpans::place`] was asked, and said that it is.
    pub(crate) fn current(&self) -> Option<(*const u8, usize, Option<*const u8>)> {
        let spans = self.spans.get(..self.end())?;
        let span = spans.get(self.next)?;
        let following = spans.get(self.next + 1).map(|next| next.address as *const u8);
        Some(((span.address + self.within) as *const u8, span.bytes - self.within, following))
    }

    /// The ranges from the position on that lie in one process's memory, as many as one call takes
    /// and `most` bytes at most. [`PeerSpans::place`] was asked.
    pub(crate) fn ranges(&self, most: usize) -> Ranges {
        let spans = self.spans.get(self.next..self.end()).unwrap_or_default();
        let spans = spans.iter().map(|span| (span.address, span.bytes));
        ranges(spans, self.within, most)
    }

    pub(crate) fn advance(&mut self, mut bytes: usize) {
        while let Some(span) = self.spans.get(self.next) {
            let left = span.bytes - self.within;
            if bytes < left {
                self.within += bytes;
                return;
            }
            bytes -= left;
            self.next += 1;
            self.within = 0;
        }
    }
}

/// Where a peer's span lies.
pub(crate) enum Place<'a> {
    /// In a mapping of this process.
    Mapped,
    /// In the memory of this other process.
    InPlace(&'a Arc<PeerProcess>),
}

/// The first of these spans, of which `within` bytes of the very first are done: as many as one call
/// takes, and `most` bytes at most.
pub(crate) fn ranges(
    spans: impl Iterator<Item = (usize, usize)>,
    mut within: usize,
    most: usize,
) -> Ranges {
    let mut ranges = Ranges::default();
    for (address, bytes) in spans {
        if ranges.is_full() || ranges.bytes() == most {
            break;
        }
        ranges.push(address + within, (bytes - within).min(most - ranges.bytes()));
        within = 0;
    }
    ranges
}
