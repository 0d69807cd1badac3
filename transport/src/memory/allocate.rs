//! Memory of our own: a sealed memfd at a multiple of 2 MiB, in huge pages where that is possible.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use super::MemoryError;
use super::pages::{self, HUGE_PAGE_BYTES};

/// How much one `madvise` call populates or collapses: small enough that a signal or a full cgroup
/// is noticed soon.
const ADVISE_BYTES: usize = 64 << 20;

/// A mapped memfd. Unmapped and closed when dropped.
#[derive(Debug)]
pub(super) struct SharedMapping {
    base: NonNull<u8>,
    mapped_bytes: usize,
    page_bytes: usize,
    /// Kept open so that peers on this host can be handed it.
    memfd: File,
    /// Whether those who are handed it can only read.
    is_lendable: bool,
}

impl SharedMapping {
    /// `go_on` is asked before each piece is populated, with how many bytes are.
    pub(super) fn new(
        length: usize,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Self, MemoryError> {
        if length == 0 {
            return Err(MemoryError::Empty);
        }
        let mapped_bytes = length
            .checked_next_multiple_of(HUGE_PAGE_BYTES)
            .filter(|bytes| i64::try_from(*bytes).is_ok())
            .ok_or(MemoryError::Overflow { base: 0, length: length as u64 })?;
        let memfd = sealed_memfd(c"kvferry", mapped_bytes)?;
        let base = map_aligned(memfd.as_fd(), mapped_bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        // Our mapping stays writable; nobody can make another that is, write, or punch holes.
        // Before Linux 5.1 there is no such seal, and the memory is lent to nobody.
        let is_lendable = seal(&memfd, libc::F_SEAL_FUTURE_WRITE).is_ok();
        let page_bytes = pages::SMALL_PAGE_BYTES;
        let mut mapping = Self { base, mapped_bytes, page_bytes, memfd, is_lendable };
        mapping.populate(go_on)?;
        mapping.page_bytes = pages::page_bytes_at(base, mapped_bytes);
        Ok(mapping)
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    pub(super) fn lend(&self) -> io::Result<Option<OwnedFd>> {
        if self.is_lendable { self.memfd.try_clone().map(|fd| Some(fd.into())) } else { Ok(None) }
    }

    /// Populates the range, then asks for it to be collapsed into huge pages. That the kernel
    /// cannot collapse is no error; that it has no memory is.
    fn populate(&mut self, go_on: &mut dyn FnMut(usize) -> bool) -> Result<(), MemoryError> {
        // Before the first touch, so that the pages are huge from the start where the kernel does
        // so for shared memory. It refuses where it was built without them.
        let _ = self.advise(0, self.mapped_bytes, libc::MADV_HUGEPAGE);
        let mut collapsing = true;
        for start in (0..self.mapped_bytes).step_by(ADVISE_BYTES) {
            let bytes = ADVISE_BYTES.min(self.mapped_bytes - start);
            if !go_on(start) {
                return Err(MemoryError::Abandoned { populated_bytes: start as u64 });
            }
            match self.advise(start, bytes, libc::MADV_POPULATE_WRITE) {
                Ok(()) => {}
                // Before Linux 5.14: touching every page does the same.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    self.touch(start, bytes);
                }
                Err(source) => {
                    let (what, bytes) = ("populating memory", self.mapped_bytes as u64);
                    return Err(MemoryError::System { what, bytes, source });
                }
            }
            // Once refused, it is refused for all: no memory in one piece, or no such call.
            collapsing = collapsing && self.advise(start, bytes, MADV_COLLAPSE).is_ok();
        }
        Ok(())
    }

    fn advise(&self, start: usize, bytes: usize, advice: libc::c_int) -> io::Result<()> {
        debug_assert!(start + bytes <= self.mapped_bytes);
        // SAFETY: the range lies within our own mapping, and none of the advices used changes what
        // the memory holds.
        let result = unsafe { libc::madvise(self.base.as_ptr().add(start).cast(), bytes, advice) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn touch(&self, start: usize, bytes: usize) {
        for at in (start..start + bytes).step_by(pages::SMALL_PAGE_BYTES) {
            // SAFETY: `at` is within our own mapping, which nobody else knows of yet.
            unsafe { self.base.as_ptr().add(at).write_volatile(0) };
        }
    }
}

/// Linux 6.1; not in every libc's headers.
const MADV_COLLAPSE: libc::c_int = 25;

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and every user of it holds a `Memory` that holds this.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
    }
}

/// A memfd that cannot change its size any more, under a name that `/proc` shows.
pub(crate) fn sealed_memfd(name: &CStr, bytes: usize) -> Result<File, MemoryError> {
    // SAFETY: the name is a C string; the result is checked before use.
    let fd =
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(MemoryError::system("creating a memfd", bytes));
    }
    // SAFETY: a descriptor fresh from the kernel that nobody else owns.
    let memfd = unsafe { File::from_raw_fd(fd) };
    memfd.set_len(bytes as u64).map_err(|source| MemoryError::System {
        what: "sizing a memfd",
        bytes: bytes as u64,
        source,
    })?;
    // Nobody who is handed the descriptor can make an access of ours fail by cutting it short.
    seal(&memfd, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW).map_err(|source| {
        MemoryError::System { what: "sealing a memfd", bytes: bytes as u64, source }
    })?;
    Ok(memfd)
}

pub(crate) fn seal(memfd: &File, seals: libc::c_int) -> io::Result<()> {
    // SAFETY: an integer argument on a descriptor that we own.
    let result = unsafe { libc::fcntl(memfd.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Maps `memfd` at a multiple of 2 MiB: reserves more than is needed and places the mapping in it.
pub(crate) fn map_aligned(
    memfd: BorrowedFd<'_>,
    bytes: usize,
    protection: libc::c_int,
) -> Result<NonNull<u8>, MemoryError> {
    let reserved_bytes = bytes + HUGE_PAGE_BYTES;
    // SAFETY: a fresh mapping at an address of the kernel's choice; the result is checked.
    let reserved = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            reserved_bytes,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if reserved == libc::MAP_FAILED {
        return Err(MemoryError::system("reserving addresses", bytes));
    }
    let skip = reserved.align_offset(HUGE_PAGE_BYTES);
    let base = reserved.wrapping_byte_add(skip);
    // SAFETY: the target range lies within the reservation above, which is ours alone.
    let mapped = unsafe {
        libc::mmap(
            base,
            bytes,
            protection,
            libc::MAP_SHARED | libc::MAP_FIXED,
            memfd.as_raw_fd(),
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        let error = MemoryError::system("mapping a memfd", bytes);
        // SAFETY: the reservation is still ours, whole and unused.
        unsafe { libc::munmap(reserved, reserved_bytes) };
        return Err(error);
    }
    // SAFETY: what lies before and behind the mapping is what is left of our reservation.
    unsafe {
        if skip > 0 {
            libc::munmap(reserved, skip);
        }
        let tail = HUGE_PAGE_BYTES - skip;
        if tail > 0 {
            libc::munmap(base.wrapping_byte_add(bytes), tail);
        }
    }
    NonNull::new(mapped.cast()).ok_or_else(|| MemoryError::system("mapping a memfd", bytes))
}
