//! The functions that register memory: of the host by its addresses, of a device by a descriptor, which a
//! file in memory stands for.
#![allow(clippy::missing_safety_doc, reason = "as their manual pages say")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use crate::abi::{ibv_mr, ibv_pd};
use crate::verbs::{free, name_of, refuse};
use crate::world::{Region, world};

/// The page within which an address and its place in a dma-buf have to agree.
const PAGE_BYTES: u64 = 4096;

/// Where the adapter finds a part of what a descriptor names.
pub(crate) struct Mapping {
    start: usize,
    bytes: usize,
}

impl Mapping {
    /// Maps it, and says where the byte at `offset` is; `None` where that is not possible.
    fn new(descriptor: c_int, offset: u64, length: usize) -> Option<(Self, usize)> {
        let within = usize::try_from(offset % PAGE_BYTES).ok()?;
        let bytes = length.checked_add(within)?;
        let first = libc::off_t::try_from(offset - offset % PAGE_BYTES).ok()?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice; the result is checked.
        let start = unsafe {
            libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, descriptor, first)
        };
        let is_mapped = start != libc::MAP_FAILED;
        let start = start.expose_provenance();
        is_mapped.then_some((Self { start, bytes }, start + within))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and nothing is copied from or to it without its region.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.start), self.bytes) };
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    domain: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    let mut world = world();
    // SAFETY: the caller's domain.
    let context = unsafe { (*domain).context };
    if world.is_broken(context) {
        refuse(libc::EIO);
        return ptr::null_mut();
    }
    if world.is_refused("ibv_reg_mr") {
        refuse(libc::ENOMEM);
        return ptr::null_mut();
    }
    let (at, key) = (addr.expose_provenance(), world.number());
    let (domain_at, bytes) = (domain.addr(), length as u64);
    let region = Region { domain: domain_at, address: iova, at, bytes, access, on_device: None };
    world.regions.insert(key, region);
    let region = ibv_mr { context, pd: domain, addr, length, handle: key, lkey: key, rkey: key };
    Box::into_raw(Box::new(region))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(region: *mut ibv_mr) -> c_int {
    let mut world = world();
    if world.is_refused("ibv_dereg_mr") {
        return libc::EBUSY;
    }
    // SAFETY: as `ibv_reg_mr_iova2` made it.
    unsafe {
        world.regions.remove(&(*region).rkey);
        free(region);
    }
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    domain: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    descriptor: c_int,
    access: c_int,
) -> *mut ibv_mr {
    let mut world = world();
    // SAFETY: the caller's domain, whose context and device exist as long.
    let (context, device) = unsafe { ((*domain).context, &*(*(*domain).context).device) };
    if world.is_broken(context) {
        refuse(libc::EIO);
        return ptr::null_mut();
    }
    if world.without_dma_bufs.contains(&name_of(device)) {
        refuse(libc::EOPNOTSUPP);
        return ptr::null_mut();
    }
    if world.is_refused("ibv_reg_dmabuf_mr") || !(offset ^ iova).is_multiple_of(PAGE_BYTES) {
        refuse(libc::EINVAL);
        return ptr::null_mut();
    }
    let Some((mapping, at)) = Mapping::new(descriptor, offset, length) else {
        refuse(libc::EBADF);
        return ptr::null_mut();
    };
    let key = world.number();
    let region = Region {
        domain: domain.addr(),
        address: iova,
        at,
        bytes: length as u64,
        access: access.cast_unsigned(),
        on_device: Some(mapping),
    };
    world.regions.insert(key, region);
    // As the library does: the memory has no address in this process.
    let addr = ptr::without_provenance_mut(usize::try_from(offset).unwrap_or(0));
    let region = ibv_mr { context, pd: domain, addr, length, handle: key, lkey: key, rkey: key };
    Box::into_raw(Box::new(region))
}
