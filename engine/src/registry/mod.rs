//! The one owner of a process's regions, shared by all engines in it.
//!
//! | file | what stands there |
//! |---|---|
//! | `region` | a registered range: references, who uses it, how it is given back |
//! | `span` | ranges of it, as transfers and grants name them |
//! | `layout` | views on a region, and lists of their blocks |
//! | `grant` | permissions that peers hold |
//! | `checksum` | CRC-32C of spans |
//! | `table` | what peers are told of all this, and what changed |

mod checksum;
mod grant;
mod layout;
mod region;
mod span;
mod table;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_skiplist::SkipMap;
use kvferry_proto::{Access, RegionId};
use kvferry_transport::memory::{Location, Memory};
use kvferry_transport::rdma::device::DeviceName;
use kvferry_transport::rdma::verbs::Verbs;
use parking_lot::{Mutex, RwLock};

use crate::error::Error;
use crate::rdma::{Device, RdmaError};
use grant::GrantTable;
use table::Table;

pub use checksum::crc32c;
pub use grant::Grant;
pub(crate) use grant::GrantInner;
pub use layout::{BlockList, Layout, LayoutView};
pub(crate) use layout::{block_offset, narrow};
pub(crate) use region::{Borrower, Holder, Lent, RegionInner, RegionUse};
pub use region::{Region, Released};
pub use span::Span;
pub(crate) use span::part_of_span;
pub(crate) use table::Cursor;

pub(crate) struct RegistryInner {
    /// By base address. Readers take no lock; writers hold `registering`. Weak, because the map
    /// frees what is removed from it some time later, and memory must not wait for that.
    by_address: SkipMap<u64, Weak<RegionInner>>,
    slots: RwLock<Slots>,
    /// Held while ranges are compared and inserted or removed.
    registering: Mutex<()>,
    grants: GrantTable,
    table: Table,
    count: AtomicU64,
    /// The adapters of its engines, each open once, with which regions are registered.
    devices: Mutex<Vec<Weak<Device>>>,
}

#[derive(Default)]
struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    generation: u32,
    region: Option<Arc<RegionInner>>,
}

/// A process's regions and grants. Clones are handles to the same registry.
///
/// Looking a region up by address takes no lock and about the logarithm of the number of regions;
/// so does registering one.
#[derive(Clone)]
pub struct Registry(Arc<RegistryInner>);

impl Registry {
    /// An empty registry. A process needs one, whatever the number of its engines: memory that is
    /// registered twice with a device is pinned twice.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(RegistryInner {
            by_address: SkipMap::new(),
            slots: RwLock::default(),
            registering: Mutex::new(()),
            grants: GrantTable::default(),
            table: Table::default(),
            count: AtomicU64::new(0),
            devices: Mutex::default(),
        }))
    }

    /// Allocates and registers memory of our own: shareable, aligned to 2 MiB, populated, in huge
    /// pages as far as the kernel can.
    ///
    /// # Errors
    /// [`Error::Memory`] when it cannot be had.
    pub fn allocate(&self, bytes: u64) -> Result<Region, Error> {
        let length = usize::try_from(bytes).map_err(|_| {
            kvferry_transport::memory::MemoryError::Overflow { base: 0, length: bytes }
        })?;
        self.register(Memory::allocate(length)?, Access::ReadWrite)
    }

    /// Registers memory, for at most `access` by peers. Peers may touch none of it before a grant
    /// says so.
    ///
    /// The same range again, or one inside a registered region, is a reference to that region.
    ///
    /// # Errors
    /// [`Error::PartialOverlap`], [`Error::AccessConflict`] and [`Error::OtherMemory`] name the region
    /// in the way; [`Error::Rdma`] says why an adapter does not take it, where an engine demands RDMA,
    /// and of memory of a device always. Where none demands it, an adapter that does not take memory of
    /// the host is not used before it has taken all regions, as is tried again later.
    pub fn register(&self, memory: Memory, access: Access) -> Result<Region, Error> {
        let region = self.insert(memory, access)?;
        let devices: Vec<_> = self.0.devices.lock().iter().filter_map(Weak::upgrade).collect();
        Device::register_with(&devices, region.inner())?;
        Ok(region)
    }

    /// An adapter: the one that an engine of this registry has open, or opened now. Regions that are
    /// registered from now on are registered with it.
    pub(crate) fn device(
        &self,
        verbs: &Verbs,
        name: &DeviceName,
    ) -> Result<Arc<Device>, RdmaError> {
        let mut known = self.0.devices.lock();
        known.retain(|one| one.strong_count() > 0);
        let is_it = |one: &Arc<Device>| one.is(verbs, name) && one.is_own_process();
        let open = known.iter().filter_map(Weak::upgrade).find(is_it);
        if let Some(device) = open.filter(|device| device.obstacle().is_none()) {
            return Ok(device);
        }
        let device = Device::open(verbs, name)?;
        known.push(Arc::downgrade(&device));
        Ok(device)
    }

    /// Registers the regions that there are with adapters, where they are not yet.
    pub(crate) fn attach(&self, devices: &[Arc<Device>]) -> Result<(), RdmaError> {
        self.attach_while(devices, || true)
    }

    /// The same while somebody wants it, as is asked before each region.
    pub(crate) fn attach_while(
        &self,
        devices: &[Arc<Device>],
        is_wanted: impl Fn() -> bool,
    ) -> Result<(), RdmaError> {
        let regions: Vec<_> =
            self.0.slots.read().slots.iter().filter_map(|slot| slot.region.clone()).collect();
        let mut wanted = regions.iter().take_while(|_| is_wanted());
        wanted.try_for_each(|region| match Device::register_with(devices, region) {
            // Transfers that name it fail, and say so. What else there is goes on.
            Err(error) if region.is_on_device() && !Device::is_any_demanded(devices) => {
                tracing::warn!(region = %region.id, %error, "memory of a device is not moved");
                Ok(())
            }
            registered => registered,
        })
    }

    fn insert(&self, memory: Memory, access: Access) -> Result<Region, Error> {
        let inner = &self.0;
        let (base, length) = (memory.base(), memory.length());
        // `Memory` guarantees that this does not overflow.
        let end = base + length;
        let _registering = inner.registering.lock();
        let overlapping = inner
            .by_address
            .range(..end)
            .next_back()
            .and_then(|entry| entry.value().upgrade())
            .filter(|existing| existing.end() > base);
        if let Some(existing) = overlapping {
            if base < existing.base() || end > existing.end() {
                return Err(Error::PartialOverlap {
                    base,
                    length,
                    existing: existing.id,
                    existing_base: existing.base(),
                    existing_length: existing.length(),
                });
            }
            if existing.access != access {
                return Err(Error::AccessConflict {
                    existing: existing.id,
                    registered: existing.access,
                    wanted: access,
                });
            }
            if existing.is_on_device() != (memory.location() == Location::Device) {
                return Err(Error::OtherMemory { existing: existing.id, base, length });
            }
            let offset = base - existing.base();
            return Region::reference(self, existing, offset, length);
        }
        let region = {
            let mut slots = inner.slots.write();
            let id = slots.next_id();
            let region = Arc::new(RegionInner::new(id, memory, access));
            slots.fill(id, region.clone());
            region
        };
        inner.by_address.insert(base, Arc::downgrade(&region));
        inner.count.fetch_add(1, Ordering::Relaxed);
        Region::reference(self, region, 0, length)
    }

    /// The region that covers `[address, address + length)`.
    ///
    /// # Errors
    /// [`Error::NotRegistered`] when none does.
    pub fn find(&self, address: u64, length: u64) -> Result<Region, Error> {
        let region = self.find_inner(address, length)?;
        let (offset, length) = (0, region.length());
        Region::reference(self, region, offset, length)
    }

    /// How many regions are registered.
    #[must_use]
    pub fn region_count(&self) -> u64 {
        self.0.count.load(Ordering::Relaxed)
    }

    /// How many grants are alive, standing ones included.
    #[must_use]
    pub fn grant_count(&self) -> usize {
        self.0.grants.count()
    }

    pub(crate) fn find_inner(&self, address: u64, length: u64) -> Result<Arc<RegionInner>, Error> {
        let not_registered = Error::NotRegistered { address, length };
        let Some(end) = address.checked_add(length) else { return Err(not_registered) };
        self.0
            .by_address
            .range(..=address)
            .next_back()
            .and_then(|entry| entry.value().upgrade())
            .filter(|region| end <= region.end() && length > 0)
            .ok_or(not_registered)
    }

    pub(crate) fn by_id(&self, id: RegionId) -> Option<Arc<RegionInner>> {
        let slots = self.0.slots.read();
        let slot = slots.slots.get(id.slot as usize)?;
        if slot.generation == id.generation { slot.region.clone() } else { None }
    }

    pub(crate) fn grants(&self) -> &GrantTable {
        &self.0.grants
    }

    pub(crate) fn table(&self) -> &Table {
        &self.0.table
    }

    /// Takes the last reference's region out of the registry.
    fn remove(&self, region: &RegionInner) {
        let _registering = self.0.registering.lock();
        self.0.by_address.remove(&region.base());
        self.0.slots.write().release(region.id);
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry")
            .field("regions", &self.region_count())
            .field("grants", &self.grant_count())
            .finish()
    }
}

impl Slots {
    fn next_id(&mut self) -> RegionId {
        if let Some(slot) = self.free.pop() {
            return RegionId { slot, generation: self.slots[slot as usize].generation };
        }
        // 2^32 regions do not fit the address space.
        let slot = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        self.slots.push(Slot { generation: 1, region: None });
        RegionId { slot, generation: 1 }
    }

    fn fill(&mut self, id: RegionId, region: Arc<RegionInner>) {
        self.slots[id.slot as usize].region = Some(region);
    }

    fn release(&mut self, id: RegionId) {
        let slot = &mut self.slots[id.slot as usize];
        slot.region = None;
        // A slot whose generations are used up is never used again.
        if let Some(generation) = slot.generation.checked_add(1) {
            slot.generation = generation;
            self.free.push(id.slot);
        }
    }
}
