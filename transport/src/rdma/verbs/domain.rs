//! Memory that adapters reach.

use std::ffi::c_uint;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_RELAXED_ORDERING, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, ibv_mr, ibv_pd, ibv_sge,
};
use super::context::{Context, Open};
use super::error::VerbsError;
use crate::memory::{DmaBuf, Memory, MemoryError};

/// What queue pairs and registrations belong to: a queue pair reaches the registrations of its own
/// domain only. Clones are handles of the same.
#[derive(Clone, Debug)]
pub struct ProtectionDomain(pub(super) Arc<Domain>);

#[derive(Debug)]
pub(super) struct Domain {
    pub(super) domain: NonNull<ibv_pd>,
    pub(super) open: Arc<Open>,
}

// SAFETY: the library's functions on a domain may be called from any thread; the pointer is not
// followed here.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

/// What peers may do with registered memory by its key. The device itself may always do both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Peers may read it.
    pub read: bool,
    /// Peers may write it.
    pub write: bool,
    /// Writes may become visible in another order than they arrived in, which is faster on many
    /// hosts. The completion still says that all are there. A device that cannot do it ignores it.
    pub relaxed_ordering: bool,
}

/// Memory that is registered with a device: locked, and reachable by keys. It is unregistered when
/// this is dropped; what an adapter has under way to it then ends with an error and touches nothing.
#[derive(Debug)]
pub struct MemoryRegion {
    region: NonNull<ibv_mr>,
    memory: Memory,
    offset: u64,
    bytes: u64,
    keys: Keys,
    domain: Arc<Domain>,
}

// SAFETY: the region's structure is read at its making only; to unregister may be done by any thread.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

#[derive(Clone, Copy, Debug)]
struct Keys {
    local: u32,
    remote: u32,
}

/// A span of registered memory, as a request names it.
#[derive(Clone, Copy, Debug)]
pub struct LocalSpan<'a> {
    /// Where it lies.
    pub region: &'a MemoryRegion,
    /// Where it starts, in bytes from the start of the *memory* that the region is of.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u32,
}

/// A place in a peer's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// Its address in the peer's process.
    pub address: u64,
    /// The key of the peer's registration.
    pub key: u32,
}

impl ProtectionDomain {
    /// A new domain of a device.
    ///
    /// # Errors
    /// Where the device has no more.
    pub fn new(context: &Context) -> Result<Self, VerbsError> {
        let open = Arc::clone(&context.0);
        // SAFETY: the context is open.
        let domain = unsafe { (open.library().alloc_pd)(open.context.as_ptr()) };
        let domain = NonNull::new(domain).ok_or_else(|| open.last_error("ibv_alloc_pd"))?;
        Ok(Self(Arc::new(Domain { domain, open })))
    }

    /// Registers `bytes` bytes of memory from `offset` on: locks them, and gives them keys. Memory of a
    /// device ([`Memory::dma_buf`]) stays where it is, under the addresses that its program knows.
    ///
    /// # Errors
    /// Where the span is outside the memory or longer than the device takes
    /// ([`Limits::region_bytes`](super::Limits::region_bytes)), where this process may not lock as
    /// much, or the device refuses; [`VerbsError::NoDmaBuf`] where library, kernel or driver do not
    /// know how to register a dma-buf.
    pub fn register(
        &self,
        memory: &Memory,
        offset: u64,
        bytes: u64,
        rights: Rights,
    ) -> Result<MemoryRegion, VerbsError> {
        let start = memory.locate(offset, bytes)?;
        let open = &*self.0.open;
        if bytes > open.limits.region_bytes {
            return Err(VerbsError::TooLong {
                device: open.name.clone(),
                bytes,
                most_bytes: open.limits.region_bytes,
            });
        }
        let length = usize::try_from(bytes)
            .map_err(|_| MemoryError::Overflow { base: memory.base(), length: bytes })?;
        let address = memory.base() + offset;
        let flags = [
            (rights.read, IBV_ACCESS_REMOTE_READ),
            (rights.write, IBV_ACCESS_REMOTE_WRITE),
            (rights.relaxed_ordering, IBV_ACCESS_RELAXED_ORDERING),
        ];
        let access = flags
            .into_iter()
            .filter(|(wanted, _)| *wanted)
            .fold(IBV_ACCESS_LOCAL_WRITE, |access, (_, flag)| access | flag);
        let region = match memory.exported() {
            None => {
                // SAFETY: the domain exists, and the range is memory of this process, as checked
                // above, which the region keeps mapped, or a device's, as who made it vouches. What
                // an adapter does to it is done to a `Memory`, whose bytes nobody has references to.
                let region = unsafe {
                    (open.library().reg_mr_iova2)(
                        self.0.domain.as_ptr(),
                        start.cast(),
                        length,
                        address,
                        access,
                    )
                };
                NonNull::new(region).ok_or_else(|| open.refused_registration(bytes))?
            }
            Some(dma_buf) => {
                let part = Part { offset, length, address, access };
                self.register_dma_buf(dma_buf, &part)?
            }
        };
        // SAFETY: the library has just filled the structure, and nobody else knows of it.
        let keys =
            unsafe { Keys { local: (*region.as_ptr()).lkey, remote: (*region.as_ptr()).rkey } };
        let domain = Arc::clone(&self.0);
        Ok(MemoryRegion { region, memory: memory.clone(), offset, bytes, keys, domain })
    }
}

/// What is registered of some memory.
struct Part {
    /// From the memory's start.
    offset: u64,
    length: usize,
    /// By which requests name it.
    address: u64,
    access: c_uint,
}

impl ProtectionDomain {
    fn register_dma_buf(
        &self,
        dma_buf: &DmaBuf,
        part: &Part,
    ) -> Result<NonNull<ibv_mr>, VerbsError> {
        let open = &*self.0.open;
        let register = open.library().reg_dmabuf_mr.ok_or_else(|| VerbsError::NoDmaBuf {
            device: open.name.clone(),
            why: "libibverbs has no ibv_reg_dmabuf_mr: install rdma-core 34 or later".into(),
        })?;
        // SAFETY: the domain exists, and the descriptor is open during the call, in which the kernel
        // takes a reference of its own and looks whether that is a dma-buf with these bytes. Its
        // memory is none of this process's.
        let region = unsafe {
            register(
                self.0.domain.as_ptr(),
                dma_buf.offset() + part.offset,
                part.length,
                part.address,
                dma_buf.as_fd().as_raw_fd(),
                part.access.cast_signed(),
            )
        };
        NonNull::new(region).ok_or_else(|| open.refused_dma_buf())
    }
}

impl MemoryRegion {
    /// Where it starts, in bytes from the start of its memory.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How long it is.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What a peer says to reach the byte at `offset` of the memory.
    #[must_use]
    pub fn address_of(&self, offset: u64) -> RemoteAddress {
        RemoteAddress { address: self.memory.base() + offset, key: self.keys.remote }
    }
}

impl LocalSpan<'_> {
    /// The span as the device is told of it.
    pub(super) fn element(&self) -> Result<ibv_sge, VerbsError> {
        let region = self.region;
        let length = u64::from(self.bytes);
        let inside = self.offset.checked_sub(region.offset);
        let end = inside.and_then(|inside| inside.checked_add(length));
        if end.is_none_or(|end| end > region.bytes) {
            let memory_bytes = region.offset + region.bytes;
            return Err(
                MemoryError::OutOfBounds { offset: self.offset, length, memory_bytes }.into()
            );
        }
        Ok(ibv_sge {
            addr: region.memory.base() + self.offset,
            length: self.bytes,
            lkey: region.keys.local,
        })
    }

    /// Whose region it is of.
    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.region.domain
    }

    /// Whether a processor may read the memory at any time.
    pub(super) fn is_readable_here(&self) -> bool {
        self.region.memory.is_plain()
    }
}

impl Open {
    /// Why a registration was refused: what the process may lock is what people run into.
    fn refused_registration(&self, bytes: u64) -> VerbsError {
        let source = io::Error::last_os_error();
        let limit = lock_limit();
        match (source.raw_os_error(), limit) {
            (Some(libc::ENOMEM), Some(limit_bytes)) => {
                VerbsError::MemoryLock { device: self.name.clone(), bytes, limit_bytes }
            }
            _ => self.error("ibv_reg_mr", source),
        }
    }

    /// Why a registration of a dma-buf was refused: a library, a kernel or a driver that does not know
    /// of them says so by these numbers.
    fn refused_dma_buf(&self) -> VerbsError {
        let source = io::Error::last_os_error();
        match source.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOSYS) => {
                let why = format!(
                    "its driver registers none ({source}): that needs Linux 5.12 or later, and an \
                     adapter and a driver that can (mlx5, bnxt_re, irdma, efa)"
                );
                VerbsError::NoDmaBuf { device: self.name.clone(), why }
            }
            _ => self.error("ibv_reg_dmabuf_mr", source),
        }
    }
}

/// How many bytes this process may lock; `None` for any number.
fn lock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills the structure.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (status == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: queue pairs and regions of the domain hold it, so there are none left.
        let status = unsafe { (self.open.library().dealloc_pd)(self.domain.as_ptr()) };
        if status != 0 {
            tracing::warn!(device = %self.open.name, status, "a protection domain could not be freed");
        }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let open = &self.domain.open;
        // SAFETY: the region was registered once and is unregistered once. Requests that name it
        // may be under way: the device answers them with an error from here on.
        let status = unsafe { (open.library().dereg_mr)(self.region.as_ptr()) };
        if status != 0 {
            // The adapter may still reach it. Memory that is leaked harms nobody; memory that is
            // given to somebody else, while an adapter writes to it, does.
            std::mem::forget(self.memory.clone());
            tracing::error!(
                device = %open.name, status, bytes = self.bytes,
                "memory could not be unregistered, and stays allocated"
            );
        }
    }
}
