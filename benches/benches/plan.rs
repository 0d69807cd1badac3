//! What a descriptor costs before any byte moves: planning, encoding, decoding, looking up.
//!
//! Each benchmark of the first two groups handles 10^6 descriptors, so milliseconds read as nanoseconds for
//! one. The budgets: 20 ns to plan pairs that do not merge, 8 ns in strided runs, 6 ns to encode,
//! 20 ns to decode and check.
#![forbid(unsafe_code)]

use std::fs::File;
use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use kvferry_engine::plan::{Pair, PlanLimits, Planner};
use kvferry_engine::{Access, Memory, Region, Registry};
use kvferry_proto::frame::{Descriptor, FrameError, Kind, Prefix, Request, SliceHead};
use kvferry_proto::{GrantId, RegionId, TransferId};

const DESCRIPTORS: u32 = 1_000_000;
const BLOCK_BYTES: u32 = 4096;

/// About as many scattered blocks of 4 KiB as a slice of 1 MiB holds, and a divisor of 10^6.
const DESCRIPTORS_PER_FRAME: usize = 250;

/// Far below the limit on open files, which every mapped file counts against: memory of our own
/// would need 2 MiB a region.
const REGIONS: u32 = 512;

/// The numbers below 10^6 in an order without a pattern that a branch predictor could learn.
fn shuffled(mut state: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..u64::from(DESCRIPTORS)).collect();
    for last in (1..order.len()).rev() {
        // Knuth's MMIX generator; its upper bits are the good ones.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let drawn = (state >> 32) % (last as u64 + 1);
        order.swap(last, usize::try_from(drawn).unwrap_or(last));
    }
    order
}

fn pair(local_block: u64, remote_block: u64) -> Pair {
    Pair {
        local: 0,
        remote: 0,
        local_offset: local_block * u64::from(BLOCK_BYTES),
        remote_offset: remote_block * u64::from(BLOCK_BYTES),
        bytes: BLOCK_BYTES.into(),
    }
}

fn plan(pairs: &[Pair]) -> usize {
    let mut planner = Planner::new(PlanLimits::default(), pairs.len());
    for pair in pairs {
        planner.push(*pair);
    }
    planner.finish().descriptors()
}

fn planning(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan 10^6 pairs (ms = ns a pair)");
    group.throughput(Throughput::Elements(DESCRIPTORS.into())).sample_size(20);
    let (local, remote) = (shuffled(1), shuffled(2));
    // Runs lead forward; here the local side never does.
    let apart: Vec<Pair> = (0..u64::from(DESCRIPTORS))
        .rev()
        .zip(&remote)
        .map(|(local, remote)| pair(local, *remote))
        .collect();
    assert_eq!(plan(&apart), apart.len(), "these are not to merge");
    group.bench_function("that do not merge", |bencher| bencher.iter(|| plan(black_box(&apart))));
    // Two of them that happen to lead forward at both ends make a run.
    let scattered: Vec<Pair> =
        local.iter().zip(&remote).map(|(local, remote)| pair(*local, *remote)).collect();
    group.bench_function("in random order", |bencher| bencher.iter(|| plan(black_box(&scattered))));
    let strided: Vec<Pair> =
        (0..DESCRIPTORS).map(|index| pair(u64::from(index) * 2, u64::from(index) * 3)).collect();
    assert!(plan(&strided) < strided.len() / 100, "these are to merge");
    group.bench_function("in strided runs", |bencher| bencher.iter(|| plan(black_box(&strided))));
    group.finish();
}

fn descriptors() -> Vec<Descriptor> {
    let descriptor = |block| Descriptor {
        offset: block * u64::from(BLOCK_BYTES),
        bytes: BLOCK_BYTES,
        count: 1,
        stride: 0,
    };
    shuffled(3).into_iter().map(descriptor).collect()
}

const HEAD: SliceHead = SliceHead {
    transfer: TransferId(1),
    floor: TransferId(1),
    slice: 0,
    remaining_us: 10_000_000,
    crc32c: 0,
};

fn encode(descriptors: &[Descriptor], out: &mut Vec<u8>) {
    let region = RegionId { slot: 0, generation: 1 };
    HEAD.encode(out, Prefix::new(Kind::Read), None, |sections| {
        sections.reserve(descriptors.len());
        for descriptor in descriptors {
            sections.push(GrantId(1), region, *descriptor);
        }
    });
}

/// Reads a frame as its owner does, every span checked against the region.
fn decode(frame: &[u8], region_bytes: u64) -> Result<u64, FrameError> {
    let (prefix, head) =
        frame.split_first_chunk().ok_or(FrameError::Truncated { what: "prefix" })?;
    let Request::Read(mut request) = Request::decode(&Prefix::decode(prefix)?, head)? else {
        return Err(FrameError::Value { what: "kind", found: 0 });
    };
    let mut inside = 0;
    let mut check = |descriptor: Descriptor| {
        if descriptor.end().is_some_and(|end| end <= region_bytes) {
            inside += 1;
        }
        Ok::<(), FrameError>(())
    };
    while request.sections.next_section(|_, descriptor| check(descriptor))?.is_some() {}
    Ok(inside)
}

fn coding(criterion: &mut Criterion) {
    let descriptors = descriptors();
    let mut group = criterion.benchmark_group("10^6 descriptors (ms = ns a descriptor)");
    group.throughput(Throughput::Elements(DESCRIPTORS.into())).sample_size(20);
    group.bench_function("encode", |bencher| {
        let mut out = Vec::new();
        bencher.iter(|| {
            for frame in black_box(&descriptors).chunks(DESCRIPTORS_PER_FRAME) {
                out.clear();
                encode(frame, &mut out);
                black_box(&out);
            }
        });
    });
    let frames: Vec<Vec<u8>> = descriptors
        .chunks(DESCRIPTORS_PER_FRAME)
        .map(|descriptors| {
            let mut frame = Vec::new();
            encode(descriptors, &mut frame);
            frame
        })
        .collect();
    let region_bytes = u64::from(DESCRIPTORS) * u64::from(BLOCK_BYTES);
    group.bench_function("decode and check", |bencher| {
        bencher.iter(|| {
            let checked = black_box(&frames).iter().map(|frame| decode(frame, region_bytes));
            let inside = checked.sum::<Result<u64, FrameError>>();
            assert_eq!(inside, Ok(DESCRIPTORS.into()));
        });
    });
    group.finish();
}

fn mapped_file(registry: &Registry) -> Region {
    let file: File = tempfile::tempfile().expect("a temporary file");
    file.set_len(BLOCK_BYTES.into()).expect("room for a page");
    let memory = Memory::map_file(file).expect("a mapping");
    registry.register(memory, Access::ReadWrite).expect("a region of its own")
}

fn looking_up(criterion: &mut Criterion) {
    let registry = Registry::new();
    let regions: Vec<Region> = (0..REGIONS).map(|_| mapped_file(&registry)).collect();
    let addresses: Vec<u64> = regions.iter().map(|region| region.base() + 100).collect();
    let mut group = criterion.benchmark_group("registry");
    group.throughput(Throughput::Elements(1));
    group.bench_function(format!("find one of {REGIONS} regions"), |bencher| {
        let mut next = addresses.iter().cycle();
        bencher.iter_batched(
            || *next.next().expect("the list goes round"),
            |address| registry.find(black_box(address), 8).map(|region| region.id()),
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

criterion_group!(benches, planning, coding, looking_up);
criterion_main!(benches);
