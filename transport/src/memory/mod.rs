//! Memory that lanes carry: allocated here, given by somebody else, or a mapped file.
//!
//! A [`Memory`] is a handle: clones share the range, and an owned range is unmapped when the last
//! is dropped. Bytes are reached by copying; there is no way to a slice. Copies of the same bytes
//! at the same time, here or by a peer, are for the program to avoid: what they leave behind is any
//! mix of both, as with any memory that is shared with a device or another process.

pub(crate) mod allocate;
mod anonymous;
mod file;
mod pages;
mod spans;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use allocate::SharedMapping;
use anonymous::AnonymousMapping;
use file::FileMapping;

use crate::local::Obstacle;
pub use anonymous::Pages;
pub use spans::{IoVecs, SpanList};

/// Where memory lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// Host memory that only this process maps.
    Host {
        /// The NUMA node of its first page; `None` where the kernel does not say.
        numa: Option<u32>,
    },
    /// A sealed memfd that other processes of this host can map.
    Shared {
        /// The NUMA node of its first page; `None` where the kernel does not say.
        numa: Option<u32>,
    },
    /// A mapped file.
    File,
}

/// Why memory cannot be had or touched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A range of no bytes names nothing.
    #[error("the memory has a length of 0 bytes; it needs at least 1")]
    Empty,
    /// The range does not fit the address space.
    #[error("{length} bytes from address {base:#x} on overflow the address space")]
    Overflow {
        /// Its first address, 0 where none was chosen yet.
        base: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// A span reaches outside its memory.
    #[error("{length} bytes at offset {offset} reach outside memory of {memory_bytes} bytes")]
    OutOfBounds {
        /// Where the span starts.
        offset: u64,
        /// Its length in bytes.
        length: u64,
        /// The memory's length in bytes.
        memory_bytes: u64,
    },
    /// The file is shorter than what is mapped of it.
    #[error("the file is {file_bytes} bytes long, {needed_bytes} are needed: it was truncated")]
    Truncated {
        /// Its length now.
        file_bytes: u64,
        /// The length that the mapping needs.
        needed_bytes: u64,
    },
    /// Whoever wanted the memory did not want it any more.
    #[error("allocating memory was given up after {populated_bytes} bytes")]
    Abandoned {
        /// How many bytes had been populated.
        populated_bytes: u64,
    },
    /// What a peer lends cannot be mapped safely.
    #[error("what the peer lends cannot be mapped: {reason}")]
    NotLent {
        /// Why not.
        reason: &'static str,
    },
    /// A peer lends what its process has not mapped (any more).
    #[error("what the peer lends is not mapped in its process")]
    PeerFault,
    /// A peer's memory is not to be read any more.
    #[error("the peer's memory cannot be read where it lies: {obstacle}")]
    OutOfReach {
        /// Why not.
        obstacle: Obstacle,
    },
    /// The kernel refused.
    #[error("{what} of {bytes} bytes failed: {source}")]
    System {
        /// What was asked of it.
        what: &'static str,
        /// For how many bytes.
        bytes: u64,
        /// What it answered.
        source: io::Error,
    },
}

impl MemoryError {
    pub(crate) fn system(what: &'static str, bytes: usize) -> Self {
        Self::System { what, bytes: bytes as u64, source: io::Error::last_os_error() }
    }
}

enum Backing {
    Foreign,
    Anonymous { _mapping: AnonymousMapping },
    Shared(SharedMapping),
    File(FileMapping),
}

struct Inner {
    base: NonNull<u8>,
    length: usize,
    /// Asked for when somebody wants to know: reading it walks all mappings of the process.
    page_bytes: OnceLock<usize>,
    location: Location,
    backing: Backing,
}

// SAFETY: `Inner` is a range of addresses and the owner of its mapping. Nothing in it is tied to a
// thread, and the bytes behind it are only ever copied through raw pointers or system calls.
unsafe impl Send for Inner {}
// SAFETY: as above; no method hands out a reference into the range.
unsafe impl Sync for Inner {}

/// A range of memory that lanes may read and write. See the [module](self).
#[derive(Clone)]
pub struct Memory(Arc<Inner>);

impl Memory {
    /// Memory of our own: a memfd, sealed against changing its size, mapped at a multiple of
    /// 2 MiB, populated, and in huge pages as far as the kernel can ([`Memory::page_bytes`] says
    /// what was got). `length` is used as it is; what is mapped is rounded up.
    ///
    /// # Errors
    /// [`MemoryError`] for a length of 0, one that overflows, or memory that cannot be had.
    pub fn allocate(length: usize) -> Result<Self, MemoryError> {
        Self::allocate_while(length, |_| true)
    }

    /// As [`Memory::allocate`], for amounts that take their time: before each 64 MiB `go_on` is
    /// asked, with how many bytes are populated so far. Once it says no, all is given back.
    ///
    /// # Errors
    /// As [`Memory::allocate`], and [`MemoryError::Abandoned`].
    pub fn allocate_while(
        length: usize,
        mut go_on: impl FnMut(usize) -> bool,
    ) -> Result<Self, MemoryError> {
        let mapping = SharedMapping::new(length, &mut go_on)?;
        let base = mapping.base();
        let location = Location::Shared { numa: pages::numa_node(base) };
        Ok(Self(Arc::new(Inner {
            base,
            length,
            page_bytes: mapping.page_bytes().into(),
            location,
            backing: Backing::Shared(mapping),
        })))
    }

    /// Memory of our own that no other process can map, populated: what a program has that
    /// allocates by itself. Processes of one host read it where it lies, or not at all;
    /// [`Memory::allocate`]'s they map.
    ///
    /// # Errors
    /// [`MemoryError`] for a length of 0, one that overflows, or memory that cannot be had.
    pub fn anonymous(length: usize, pages: Pages) -> Result<Self, MemoryError> {
        let mapping = AnonymousMapping::new(length, pages)?;
        let base = mapping.base();
        Ok(Self(Arc::new(Inner {
            base,
            length,
            page_bytes: OnceLock::new(),
            location: Location::Host { numa: pages::numa_node(base) },
            backing: Backing::Anonymous { _mapping: mapping },
        })))
    }

    /// Memory of somebody else.
    ///
    /// # Errors
    /// [`MemoryError`] for a length of 0 or one that overflows the address space.
    ///
    /// # Safety
    /// From now until every clone of the returned handle and every [`SpanList`] made from one is
    /// dropped, or never used again (a registry says when: once the region is unregistered),
    /// `[base, base + length)` must be mapped readable and writable, and no Rust reference into it
    /// may be used while a transfer touches it.
    pub unsafe fn foreign(base: *mut u8, length: usize) -> Result<Self, MemoryError> {
        if length == 0 {
            return Err(MemoryError::Empty);
        }
        let overflow = MemoryError::Overflow { base: base as u64, length: length as u64 };
        let Some(base) = NonNull::new(base) else { return Err(overflow) };
        if (base.as_ptr() as usize).checked_add(length).is_none() {
            return Err(overflow);
        }
        Ok(Self(Arc::new(Inner {
            base,
            length,
            page_bytes: OnceLock::new(),
            location: Location::Host { numa: pages::numa_node(base) },
            backing: Backing::Foreign,
        })))
    }

    /// A file, mapped whole and shared. Its bytes are touched by system calls only, so a file that
    /// is truncated meanwhile is an error and not a signal.
    ///
    /// # Errors
    /// [`MemoryError`] when the file is empty, not readable and writable, or cannot be mapped.
    pub fn map_file(file: File) -> Result<Self, MemoryError> {
        let mapping = FileMapping::new(file)?;
        Ok(Self(Arc::new(Inner {
            base: mapping.base(),
            length: mapping.length(),
            page_bytes: pages::SMALL_PAGE_BYTES.into(),
            location: Location::File,
            backing: Backing::File(mapping),
        })))
    }

    /// The address of the first byte, in this process.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.0.base.as_ptr() as u64
    }

    /// The length in bytes: never 0.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.0.length as u64
    }

    /// The size of the pages behind it in bytes, as far as the kernel says: the smaller one where
    /// they are mixed.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        *self.0.page_bytes.get_or_init(|| pages::page_bytes_at(self.0.base, self.0.length))
    }

    /// Where it lives.
    #[must_use]
    pub fn location(&self) -> Location {
        self.0.location
    }

    /// A descriptor by which another process of this host can map it, and only read; `None` for
    /// memory that is not [`Location::Shared`], or that this kernel does not seal against writes.
    ///
    /// # Errors
    /// What the kernel says when it has no descriptor left.
    pub fn lend(&self) -> io::Result<Option<OwnedFd>> {
        match &self.0.backing {
            Backing::Shared(mapping) => mapping.lend(),
            Backing::Foreign | Backing::Anonymous { .. } | Backing::File(_) => Ok(None),
        }
    }

    /// Copies bytes out, starting at `offset`.
    ///
    /// # Errors
    /// [`MemoryError`] when the range reaches outside, or the memory cannot be touched.
    pub fn copy_out(&self, offset: u64, into: &mut [u8]) -> Result<(), MemoryError> {
        let at = self.check(offset, into.len() as u64)?;
        match &self.0.backing {
            Backing::File(mapping) => mapping.read(offset, into),
            Backing::Foreign | Backing::Anonymous { .. } | Backing::Shared(_) => {
                // SAFETY: `check` keeps the source inside the range, which is mapped for as long as
                // this handle lives, and `into` is exclusively ours.
                unsafe { std::ptr::copy(at, into.as_mut_ptr(), into.len()) };
                Ok(())
            }
        }
    }

    /// Copies bytes in, starting at `offset`.
    ///
    /// # Errors
    /// [`MemoryError`] when the range reaches outside, or the memory cannot be touched.
    pub fn copy_in(&self, offset: u64, from: &[u8]) -> Result<(), MemoryError> {
        let at = self.check(offset, from.len() as u64)?;
        match &self.0.backing {
            Backing::File(mapping) => mapping.write(offset, from),
            Backing::Foreign | Backing::Anonymous { .. } | Backing::Shared(_) => {
                // SAFETY: as in `copy_out`, with the roles exchanged.
                unsafe { std::ptr::copy(from.as_ptr(), at, from.len()) };
                Ok(())
            }
        }
    }

    /// Says why the memory cannot be touched now, before a system call is asked to.
    fn check_backing(&self) -> Result<(), MemoryError> {
        match &self.0.backing {
            Backing::File(mapping) => mapping.check(),
            Backing::Foreign | Backing::Anonymous { .. } | Backing::Shared(_) => Ok(()),
        }
    }

    /// Where `length` bytes from `offset` on lie, if they are inside.
    pub(crate) fn check(&self, offset: u64, length: u64) -> Result<*mut u8, MemoryError> {
        let memory_bytes = self.length();
        match offset.checked_add(length) {
            // In bounds, so the offset fits the `usize` that the length was.
            Some(end) if end <= memory_bytes => {
                Ok(self.0.base.as_ptr().wrapping_add(usize::try_from(offset).unwrap_or(usize::MAX)))
            }
            _ => Err(MemoryError::OutOfBounds { offset, length, memory_bytes }),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("base", &format_args!("{:#x}", self.base()))
            .field("length", &self.0.length)
            .field("location", &self.0.location)
            .finish()
    }
}
