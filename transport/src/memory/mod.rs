//! Memory that lanes carry: allocated here, given by somebody else, a mapped file, or a device's.
//!
//! A [`Memory`] is a handle: clones share the range, and an owned range is unmapped when the last
//! is dropped. Bytes are reached by copying; there is no way to a slice. Copies of the same bytes
//! at the same time, here or by a peer, are for the program to avoid: what they leave behind is any
//! mix of both, as with any memory that is shared with a device or another process.
//!
//! Memory of a device is reached by adapters alone. Whoever is about to follow an address with a
//! processor gets it from `Memory::check`, or has a [`SpanList`] look at all of its memory first: both
//! answer [`MemoryError::OnDevice`].

pub(crate) mod allocate;
mod anonymous;
mod device;
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
pub(crate) use device::DmaBuf;
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
    /// Memory of a device, such as a GPU, which adapters reach and no processor does.
    Device,
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
    /// The start of memory in a dma-buf is in another place of its page than its address.
    #[error(
        "address {base:#x} and offset {offset:#x} in the dma-buf are in different places of a page of \
         4096 bytes, which no adapter maps: the offset is what lies between the start of what was \
         exported and the address"
    )]
    Misaligned {
        /// The address.
        base: u64,
        /// The offset in bytes.
        offset: u64,
    },
    /// A processor was to touch memory of a device.
    #[error(
        "the memory is a device's, which no processor touches: it moves by RDMA only; have the device \
         copy it to memory of the host (as by cudaMemcpy) for anything else"
    )]
    OnDevice,
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
    Anonymous {
        _mapping: AnonymousMapping,
    },
    Shared(SharedMapping),
    File(FileMapping),
    /// By a dma-buf, or by what the device's driver has told those of adapters.
    Device(Option<DmaBuf>),
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
        let base = start_of(base, length)?;
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

    /// Memory of a device that was exported as a dma-buf (by `cuMemGetHandleForAddressRange` of CUDA,
    /// `hsa_amd_portable_export_dmabuf` of ROCm): `length` bytes from `offset` of it on, which the
    /// program knows by the address `base`. Adapters read and write it without a copy on the host
    /// ([`ProtectionDomain::register`](crate::rdma::verbs::ProtectionDomain::register)); a processor
    /// that is to touch it is refused. The descriptor is kept open for as long as the memory is.
    ///
    /// Before it is read from, the program waits for the device to have written it. That it was
    /// written to says its adapter: where a device does not order what adapters write by itself
    /// (CUDA: `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING` is 0), the program flushes
    /// (`cuFlushGPUDirectRDMAWrites`) before the device reads it.
    ///
    /// # Errors
    /// [`MemoryError`] for a length of 0 or one that overflows, an offset that does not go with the
    /// address, and a descriptor of something without a size, or with less than that.
    pub fn dma_buf(
        descriptor: OwnedFd,
        offset: u64,
        base: u64,
        length: u64,
    ) -> Result<Self, MemoryError> {
        let (start, bytes) = device_range(base, length)?;
        let dma_buf = DmaBuf::new(descriptor, offset, base, length)?;
        Ok(Self::on_device(start, bytes, Some(dma_buf)))
    }

    /// Memory of a device that adapters reach by its addresses, because the device's driver has told
    /// those of adapters of them (`nvidia_peermem`): for adapters that take no dma-bufs. What
    /// [`Memory::dma_buf`] says of it holds here too.
    ///
    /// # Errors
    /// [`MemoryError`] for a length of 0 or one that overflows the address space.
    ///
    /// # Safety
    /// From now until every clone of the returned handle and every [`SpanList`] made from one is
    /// dropped, or never used again (a registry says when: once the region is unregistered),
    /// `[base, base + length)` must be memory of a device, and nothing else of this process.
    pub unsafe fn device(base: u64, length: u64) -> Result<Self, MemoryError> {
        let (start, bytes) = device_range(base, length)?;
        Ok(Self::on_device(start, bytes, None))
    }

    fn on_device(base: NonNull<u8>, length: usize, dma_buf: Option<DmaBuf>) -> Self {
        Self(Arc::new(Inner {
            base,
            length,
            // The kernel does not say.
            page_bytes: pages::SMALL_PAGE_BYTES.into(),
            location: Location::Device,
            backing: Backing::Device(dma_buf),
        }))
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
            Backing::Foreign
            | Backing::Anonymous { .. }
            | Backing::File(_)
            | Backing::Device(_) => Ok(None),
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
            Backing::Device(_) => Err(MemoryError::OnDevice),
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
            Backing::Device(_) => Err(MemoryError::OnDevice),
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
            Backing::Device(_) => Err(MemoryError::OnDevice),
            Backing::Foreign | Backing::Anonymous { .. } | Backing::Shared(_) => Ok(()),
        }
    }

    /// Whether a processor may touch it at any time: a file may have been truncated, and memory of a
    /// device is none of its.
    pub(crate) fn is_plain(&self) -> bool {
        match &self.0.backing {
            Backing::Foreign | Backing::Anonymous { .. } | Backing::Shared(_) => true,
            Backing::File(_) | Backing::Device(_) => false,
        }
    }

    /// By what adapters' drivers find it, where not by its addresses.
    pub(crate) fn exported(&self) -> Option<&DmaBuf> {
        match &self.0.backing {
            Backing::Device(dma_buf) => dma_buf.as_ref(),
            _ => None,
        }
    }

    /// Where a processor finds `length` bytes from `offset` on, if they are inside and it may touch
    /// them.
    pub(crate) fn check(&self, offset: u64, length: u64) -> Result<*mut u8, MemoryError> {
        let at = self.locate(offset, length)?;
        match &self.0.backing {
            Backing::Device(_) => Err(MemoryError::OnDevice),
            _ => Ok(at),
        }
    }

    /// By which address `length` bytes from `offset` on are known, if they are inside: no processor
    /// may follow it before [`Memory::check`], or a list's own check, has let it.
    pub(crate) fn locate(&self, offset: u64, length: u64) -> Result<*mut u8, MemoryError> {
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

/// Where a range starts that is not empty, not at 0, and within the address space.
fn start_of(base: *mut u8, length: usize) -> Result<NonNull<u8>, MemoryError> {
    if length == 0 {
        return Err(MemoryError::Empty);
    }
    let start = NonNull::new(base).filter(|_| base.addr().checked_add(length).is_some());
    start.ok_or(MemoryError::Overflow { base: base as u64, length: length as u64 })
}

/// The range of a device's memory as this process counts addresses.
fn device_range(base: u64, length: u64) -> Result<(NonNull<u8>, usize), MemoryError> {
    let counted = |of| usize::try_from(of).map_err(|_| MemoryError::Overflow { base, length });
    let bytes = counted(length)?;
    // Nothing here follows it.
    let start = start_of(std::ptr::without_provenance_mut(counted(base)?), bytes)?;
    Ok((start, bytes))
}
