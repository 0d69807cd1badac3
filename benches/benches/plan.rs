//! What a descriptor costs before any byte moves: planning, encoding, decoding, looking up.
//!
//! Each benchmark of the first two groups handles 10^6 descriptors, so milliseconds read as nanoseconds for
//! one. The budgets: 20 ns to plan pairs that do not merge, 8 ns in strided runs, 6 ns to encode,
//! 20 ns to decode and check.
#![forbid(unsafe_code)]

mod cases;

use std::fs::File;
use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use kvferry_engine::{Access, Memory, Region, Registry};

use cases::{BLOCK_BYTES, DESCRIPTORS};

/// Far below the limit on open files, which every mapped file counts against: memory of our own
/// would need 2 MiB a region.
const REGIONS: u32 = 512;

fn planning(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan 10^6 pairs (ms = ns a pair)");
    group.throughput(Throughput::Elements(DESCRIPTORS.into())).sample_size(20);
    let apart = cases::apart();
    assert_eq!(cases::plan(&apart), apart.len(), "these are not to merge");
    group.bench_function("that do not merge", |bencher| {
        bencher.iter(|| cases::plan(black_box(&apart)));
    });
    let scattered = cases::scattered();
    group.bench_function("in random order", |bencher| {
        bencher.iter(|| cases::plan(black_box(&scattered)));
    });
    let strided = cases::strided();
    assert!(cases::plan(&strided) < strided.len() / 100, "these are to merge");
    group.bench_function("in strided runs", |bencher| {
        bencher.iter(|| cases::plan(black_box(&strided)));
    });
    group.finish();
}

fn coding(criterion: &mut Criterion) {
    let descriptors = cases::descriptors();
    let mut group = criterion.benchmark_group("10^6 descriptors (ms = ns a descriptor)");
    group.throughput(Throughput::Elements(DESCRIPTORS.into())).sample_size(20);
    group.bench_function("encode", |bencher| {
        let mut out = Vec::new();
        bencher.iter(|| {
            cases::encode_all(black_box(&descriptors), &mut out);
            black_box(&out);
        });
    });
    let frames = cases::frames(&descriptors);
    group.bench_function("decode and check", |bencher| {
        bencher.iter(|| assert_eq!(cases::decode_all(black_box(&frames)), Ok(DESCRIPTORS.into())));
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
