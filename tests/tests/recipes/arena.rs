//! Memory that is registered again and again at one address.

use kvferry_engine::{Access, Layout, Memory, Region, Registry};

/// The blocks that it is published as.
pub(crate) const BLOCK: u64 = 32 << 10;

/// Memory at an address that stays.
pub(crate) struct Arena(Memory);

impl Arena {
    pub(crate) fn new() -> Self {
        Self(Memory::allocate(32 << 20).unwrap())
    }

    /// Registers the first `count` blocks.
    pub(crate) fn register(&self, registry: &Registry, count: u32) -> Region {
        let length = u64::from(count) * BLOCK;
        assert!(length <= self.0.length());
        let base = usize::try_from(self.0.base()).unwrap();
        let base = std::ptr::with_exposed_provenance_mut(base);
        // SAFETY: the arena outlives every engine and region in these tests, and nobody holds
        // references into it.
        let part = unsafe { Memory::foreign(base, usize::try_from(length).unwrap()) }.unwrap();
        registry.register(part, Access::ReadWrite).unwrap()
    }

    /// The same, shared, and published as what peers look up.
    pub(crate) fn share(&self, registry: &Registry, count: u32) -> Region {
        let region = self.register(registry, count);
        let layout =
            Layout { offset: 0, block_bytes: BLOCK, stride: BLOCK, count: u64::from(count) };
        region.layout(layout).unwrap().publish("cache").unwrap();
        region.share(Access::ReadWrite).unwrap();
        region
    }
}
