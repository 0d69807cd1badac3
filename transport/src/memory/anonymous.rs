//! Memory that no other process can map, as programs have it that allocate their own.

use std::ptr::NonNull;

use super::MemoryError;
use super::pages::{HUGE_PAGE_BYTES, SMALL_PAGE_BYTES};

/// The pages that memory is asked for in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pages {
    /// 4 KiB each, and none larger.
    Small,
    /// 2 MiB each, as far as the kernel has them (transparent huge pages).
    Huge,
}

/// An anonymous private mapping, at a multiple of 2 MiB. Unmapped when dropped.
#[derive(Debug)]
pub(super) struct AnonymousMapping {
    reserved: NonNull<u8>,
    reserved_bytes: usize,
    base: NonNull<u8>,
}

impl AnonymousMapping {
    pub(super) fn new(length: usize, pages: Pages) -> Result<Self, MemoryError> {
        if length == 0 {
            return Err(MemoryError::Empty);
        }
        let overflow = MemoryError::Overflow { base: 0, length: length as u64 };
        let reserved_bytes = length.checked_add(HUGE_PAGE_BYTES).ok_or(overflow)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice; the result is checked.
        let reserved = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                reserved_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let refused = MemoryError::system("mapping memory", length);
        let reserved = NonNull::new(reserved.cast::<u8>())
            .filter(|_| reserved != libc::MAP_FAILED)
            .ok_or(refused)?;
        let skip = reserved.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: `skip` is below 2 MiB, by which the reservation is longer than what is used of it.
        let base = unsafe { reserved.add(skip) };
        let mapping = Self { reserved, reserved_bytes, base };
        let advice = match pages {
            Pages::Small => libc::MADV_NOHUGEPAGE,
            Pages::Huge => libc::MADV_HUGEPAGE,
        };
        // A kernel without huge pages refuses both, and gives small ones.
        // SAFETY: a range of our own mapping; the advice does not change what it holds.
        let _ = unsafe { libc::madvise(base.as_ptr().cast(), length, advice) };
        for at in (0..length).step_by(SMALL_PAGE_BYTES) {
            // SAFETY: `at` is within our own mapping, which nobody else knows of yet.
            unsafe { base.add(at).write_volatile(0) };
        }
        Ok(mapping)
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for AnonymousMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and every user of it holds a `Memory` that holds this.
        unsafe { libc::munmap(self.reserved.as_ptr().cast(), self.reserved_bytes) };
    }
}
