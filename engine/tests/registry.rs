//! The registry: ranges, references, generations, and the size that it carries.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use kvferry_engine::{Access, Error, Layout, Memory, Region, Registry};

const NOW: Duration = Duration::ZERO;

/// Memory whose parts are registered one by one.
struct Arena {
    memory: Memory,
}

impl Arena {
    fn new(bytes: usize) -> Self {
        Self { memory: Memory::allocate(bytes).unwrap() }
    }

    fn part(&self, offset: u64, length: usize) -> Memory {
        assert!(offset + length as u64 <= self.memory.length());
        let base = std::ptr::with_exposed_provenance_mut(
            usize::try_from(self.memory.base() + offset).unwrap(),
        );
        // SAFETY: the arena outlives the parts in every test, and nobody holds references into it.
        unsafe { Memory::foreign(base, length) }.unwrap()
    }

    fn register(&self, registry: &Registry, offset: u64, length: usize) -> Result<Region, Error> {
        registry.register(self.part(offset, length), Access::ReadWrite)
    }
}

#[test]
fn a_range_inside_a_region_is_a_reference_to_it() {
    let (registry, arena) = (Registry::new(), Arena::new(1 << 20));
    let whole = arena.register(&registry, 4096, 8192).unwrap();
    let same = arena.register(&registry, 4096, 8192).unwrap();
    let inside = arena.register(&registry, 8192, 100).unwrap();
    assert_eq!((whole.id(), same.id()), (inside.id(), inside.id()));
    assert_eq!(registry.region_count(), 1);
    assert_eq!((inside.base(), inside.length()), (arena.memory.base() + 8192, 100));
    inside.write_at(99, &[9]).unwrap();
    assert!(matches!(inside.write_at(99, &[9, 9]), Err(Error::OutOfBounds { .. })));
    let mut byte = [0];
    whole.read_at(4096 + 99, &mut byte).unwrap();
    assert_eq!(byte, [9]);
    assert!(whole.unregister(NOW).still_referenced);
    assert!(same.unregister(NOW).still_referenced);
    assert!(registry.find(arena.memory.base() + 8192, 1).is_ok());
    assert!(!inside.unregister(NOW).still_referenced);
    assert_eq!(registry.region_count(), 0);
    assert!(matches!(
        registry.find(arena.memory.base() + 8192, 1),
        Err(Error::NotRegistered { length: 1, .. })
    ));
}

#[test]
fn memory_of_a_device_is_no_part_of_a_region_of_the_host_nor_the_other_way_round() {
    let registry = Registry::new();
    let on_device = |base: u64, length: u64| {
        let exported = tempfile::tempfile().unwrap();
        exported.set_len(length).unwrap();
        Memory::dma_buf(exported.into(), 0, base, length).unwrap()
    };
    let base = 0x0dea_0000_0000;
    let gpu = registry.register(on_device(base, 1 << 20), Access::ReadWrite).unwrap();
    let same = registry.register(on_device(base + 4096, 4096), Access::ReadWrite).unwrap();
    assert_eq!(same.id(), gpu.id());
    let other = |memory| match registry.register(memory, Access::ReadWrite) {
        Err(Error::OtherMemory { existing, .. }) => existing,
        other => panic!("{other:?}"),
    };
    let inside = std::ptr::without_provenance_mut(usize::try_from(base).unwrap());
    // SAFETY: a range that is refused is never touched.
    assert_eq!(other(unsafe { Memory::foreign(inside, 4096) }.unwrap()), gpu.id());
    let host = registry.allocate(1 << 20).unwrap();
    assert_eq!(other(on_device(host.base(), 4096)), host.id());

    let mut byte = [0];
    for error in [gpu.read_at(0, &mut byte), gpu.write_at(0, &byte)] {
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Memory(_)), "{error}");
        assert!(error.to_string().contains("moves by RDMA only"), "{error}");
    }
    assert!(kvferry_engine::crc32c(&[host.whole(), gpu.whole()]).is_err());
}

#[test]
fn ranges_that_overlap_in_part_or_ask_for_other_access_are_refused_by_name() {
    let (registry, arena) = (Registry::new(), Arena::new(1 << 20));
    let region = arena.register(&registry, 4096, 4096).unwrap();
    for (offset, length) in [(0, 4097), (8191, 2), (0, 20_000), (4096, 4097), (4095, 4097)] {
        match arena.register(&registry, offset, length) {
            Err(Error::PartialOverlap { existing, .. }) => assert_eq!(existing, region.id()),
            other => panic!("{offset}+{length}: {other:?}"),
        }
    }
    let neighbours = [(0, 4096), (8192, 4096)];
    for (offset, length) in neighbours {
        assert_ne!(arena.register(&registry, offset, length).unwrap().id(), region.id());
    }
    let error = registry.register(arena.part(4096, 10), Access::Read).unwrap_err();
    assert!(matches!(error, Error::AccessConflict { wanted: Access::Read, .. }), "{error}");
    let read_only = registry.register(arena.part(65_536, 10), Access::Read).unwrap();
    let error = read_only.share(Access::Write).unwrap_err();
    assert!(matches!(error, Error::AccessConflict { .. }), "{error}");
}

#[test]
fn the_same_range_registered_again_is_another_generation() {
    let (registry, arena) = (Registry::new(), Arena::new(1 << 20));
    let first = arena.register(&registry, 0, 4096).unwrap();
    let (id, grant) = (first.id(), first.share(Access::ReadWrite).unwrap());
    drop(first);
    assert_eq!(registry.grant_count(), 0);
    let second = arena.register(&registry, 0, 8192).unwrap();
    assert_eq!(second.id().slot, id.slot);
    assert_ne!(second.id().generation, id.generation);
    assert_ne!(second.share(Access::ReadWrite).unwrap(), grant);
}

#[test]
fn layouts_are_views_that_may_overlap_and_must_fit() {
    let registry = Registry::new();
    let region = registry.allocate(10_000).unwrap();
    let layout = Layout { offset: 0, block_bytes: 1000, stride: 900, count: 11 };
    let view = region.layout(layout).unwrap();
    let block = view.block(10).unwrap();
    assert_eq!((block.offset(), block.length()), (9000, 1000));
    assert!(matches!(view.block(11), Err(Error::NoSuchBlock { index: 11, count: 11 })));
    for bad in [
        Layout { count: 12, ..layout },
        Layout { count: 0, ..layout },
        Layout { block_bytes: 0, ..layout },
        Layout { stride: u64::MAX, ..layout },
        Layout { offset: u64::MAX, ..layout },
    ] {
        assert!(matches!(region.layout(bad), Err(Error::BadLayout { .. })), "{bad:?}");
    }
    view.publish("a").unwrap();
    assert!(matches!(view.publish("a"), Err(Error::NameTaken { .. })));
    assert!(registry.withdraw("a"));
    assert!(!registry.withdraw("a"));
    view.publish("a").unwrap();
    assert!(matches!(view.publish(&"x".repeat(1025)), Err(Error::NameTooLong { .. })));
    drop(region);
    assert!(matches!(view.publish("b"), Err(Error::Unregistered { .. })));
    assert!(!registry.withdraw("a"), "it went with its region");
}

#[test]
fn a_hundred_thousand_regions_are_found_each_by_any_of_its_bytes() {
    let (registry, arena) = (Registry::new(), Arena::new(64 << 20));
    let count = 100_000_u64;
    let began = Instant::now();
    let mut regions = Vec::new();
    for index in 0..count {
        // In an order that favours no structure; 600 bytes, with a gap of 40.
        let index = index * 61_843 % count;
        regions.push((index, arena.register(&registry, index * 640, 600).unwrap()));
    }
    println!("registering takes {:?} a region", began.elapsed() / 100_000);
    let base = arena.memory.base();
    let began = Instant::now();
    for (index, region) in &regions {
        let found = registry.find(base + index * 640 + 599, 1).unwrap();
        assert_eq!(found.id(), region.id());
    }
    println!("finding takes {:?} a region", began.elapsed() / 100_000);
    assert!(registry.find(base + 600, 1).is_err(), "a gap");
    assert!(registry.find(base + 599, 2).is_err(), "across an end");
    let began = Instant::now();
    drop(regions);
    println!("unregistering takes {:?} a region", began.elapsed() / 100_000);
    assert_eq!(registry.region_count(), 0);
}

#[test]
fn readers_find_regions_while_others_come_and_go() {
    let (registry, arena) = (Registry::new(), Arena::new(1 << 20));
    let stays = arena.register(&registry, 512 << 10, 4096).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..2000_u64 {
                let region = arena.register(&registry, round % 100 * 4096, 4096).unwrap();
                region.share(Access::Read).unwrap();
            }
        });
        while !writer.is_finished() {
            assert_eq!(registry.find(stays.base() + 17, 100).unwrap().id(), stays.id());
        }
    });
    assert_eq!((registry.region_count(), registry.grant_count()), (1, 0));
}
