//! Addresses and lengths at their edges: nothing, one byte, around powers of two, unaligned, the last
//! byte of a region and one more, sums that overflow, offsets above 4 GiB, a hundred thousand spans,
//! destinations that overlap (Mooncake#2313, Mooncake#2570). The right bytes arrive and no others
//! change, or an error names what is wrong and nothing does.
//!
//! Checksums at such lengths stand in `engine/tests/two_engines`; what an owner says to spans that
//! an honest initiator would not send stands in `promises/ownership`.

use std::fs::File;

use kvferry_engine::{
    Access, Error, Layout, LocalSpans, Memory, Peer, Region, Remote, RemoteRegion, RemoteSpans,
    Transport,
};
use kvferry_tests::command::{Answer, Command, Piece, Setup};
use kvferry_tests::own::Own;
use kvferry_tests::pattern;
use kvferry_tests::process::{Cache, Process, over_by_environment};
use rustix::fs::{MemfdFlags, memfd_create};

const LENGTH: u64 = 4 << 20;

const CACHE: Cache = Cache { blocks: LENGTH / 4096, block_bytes: 4096, share: true };

/// Bytes around a destination that must not change.
const MARGIN: u64 = 64;

/// Contents: what is moved, and what was there before.
const MOVED: u64 = 1;
const BEFORE: u64 = 2;

fn put(process: &mut Process, seed: u64, pieces: Vec<Piece>) {
    process.ok(&Command::Put { pieces, seed });
}

fn wrong(process: &mut Process, seed: u64, pieces: Vec<Piece>) -> Vec<u32> {
    match process.tell(&Command::Look { pieces, seed }) {
        Answer::Wrong(wrong) => wrong,
        other => panic!("{other:?}"),
    }
}

/// A range whose bytes are those of its own place.
fn at(offset: u64, length: u64) -> Piece {
    Piece { offset, length, source: offset }
}

/// What is to carry memory that is no file's.
fn carrier() -> String {
    over_by_environment().unwrap_or(Transport::Tcp).to_string()
}

/// A process that shares its cache, an engine here with as much memory, and how each is named.
fn pair() -> (Process, Own, Region, Peer, RemoteRegion) {
    let there = Process::start_with(Setup::default(), CACHE);
    let own = Own::start();
    let here = own.registry.allocate(LENGTH).unwrap();
    let peer = own.connect(&there);
    let remote = peer.regions().remove(0);
    (there, own, here, peer, remote)
}

#[test]
fn every_length_arrives_at_every_alignment_and_changes_nothing_around_it() {
    let (mut there, _own, here, peer, remote) = pair();
    for length in [0, 1, 511, 512, 513, 4095, 64 << 10, 1 << 20] {
        let last = LENGTH - length;
        for (local, far) in [(0, 0), (1, 3), (4093, 8199), (last, 5), (7, last), (last, last)] {
            let (start, end) = (far.saturating_sub(MARGIN), (far + length + MARGIN).min(LENGTH));
            let around = vec![at(start, far - start), at(far + length, end - far - length)];
            put(&mut there, BEFORE, vec![at(start, end - start)]);
            pattern::fill(&here, local, length, MOVED, local).unwrap();
            let spans = (here.span(local, length).unwrap(), remote.span(far, length).unwrap());
            let report = peer.write(spans.0.clone(), spans.1).submit().unwrap().wait().unwrap();
            assert_eq!(report.bytes, length);
            assert!(length == 0 || report.transport == carrier(), "{length}: {report:?}");
            let landed = vec![Piece { offset: far, length, source: local }];
            assert!(wrong(&mut there, MOVED, landed).is_empty(), "{length} to {far}");
            assert!(wrong(&mut there, BEFORE, around).is_empty(), "around {length} to {far}");

            let (start, end) =
                (local.saturating_sub(MARGIN), (local + length + MARGIN).min(LENGTH));
            put(&mut there, MOVED, vec![at(far, length)]);
            pattern::fill(&here, start, end - start, BEFORE, start).unwrap();
            let report = peer.read(spans.1, spans.0).submit().unwrap().wait().unwrap();
            assert!(length == 0 || report.transport == carrier(), "{length}: {report:?}");
            let behind = local + length;
            for (seed, from, count, source) in [
                (BEFORE, start, local - start, start),
                (MOVED, local, length, far),
                (BEFORE, behind, end - behind, behind),
            ] {
                let found = pattern::first_wrong(&here, from, count, seed, source).unwrap();
                assert_eq!(found, None, "reading {length} from {far} to {local}");
            }
        }
    }
}

#[test]
fn what_reaches_outside_or_overflows_is_refused_by_name_and_changes_nothing() {
    let (mut there, _own, here, peer, remote) = pair();
    put(&mut there, BEFORE, vec![at(0, LENGTH)]);
    pattern::fill(&here, 0, LENGTH, BEFORE, 0).unwrap();
    let outside = [(LENGTH, 1), (LENGTH - 1, 2), (0, LENGTH + 1), (u64::MAX, 1), (u64::MAX - 3, 8)];
    for (offset, length) in outside {
        assert!(matches!(here.span(offset, length), Err(Error::OutOfBounds { .. })));
        assert!(matches!(remote.span(offset, length), Err(Error::OutOfBounds { .. })));
        let whole = here.whole().part(offset, length);
        assert!(matches!(whole, Err(Error::OutOfBounds { .. })), "{whole:?}");
        assert!(matches!(remote.whole().part(offset, length), Err(Error::OutOfBounds { .. })));
        let layout = Layout { offset, block_bytes: length, stride: length, count: 1 };
        assert!(matches!(here.layout(layout), Err(Error::BadLayout { .. })), "{layout:?}");
    }
    let (low, high) = (here.base(), here.base() + LENGTH);
    let (far_low, far_high) = (remote.base(), remote.base() + LENGTH);
    let good = (LocalSpans::addresses([(low, 8)]), RemoteSpans::addresses([(far_low, 8)]));
    let bad_local = [(high - 7, 8), (high, 8), (low - 1, 8), (u64::MAX - 3, 8), (0, 8)];
    for (address, length) in bad_local {
        let bad = LocalSpans::addresses([(address, length)]);
        for request in [peer.write(bad.clone(), good.1.clone()), peer.read(good.1.clone(), bad)] {
            let error = request.submit().unwrap_err();
            assert_eq!(error.remote, Remote::Untouched);
            assert!(matches!(error.cause, Error::NotRegistered { .. }), "{address:#x}: {error}");
        }
    }
    let bad_remote =
        [(far_high - 7, 8), (far_high, 8), (far_low - 1, 8), (u64::MAX - 3, 8), (0, 8)];
    for (address, length) in bad_remote {
        // Behind one that is good: nothing of a transfer is sent before all of it is checked.
        let bad = RemoteSpans::addresses([(far_low, 8), (address, length)]);
        let two = LocalSpans::addresses([(low, 8), (low + 8, 8)]);
        for request in [peer.write(two.clone(), bad.clone()), peer.read(bad, two)] {
            let error = request.submit().unwrap_err();
            assert_eq!(error.remote, Remote::Untouched);
            assert!(matches!(error.cause, Error::NotShared { .. }), "{address:#x}: {error}");
        }
    }
    assert!(wrong(&mut there, BEFORE, vec![at(0, LENGTH)]).is_empty());
    assert_eq!(pattern::first_wrong(&here, 0, LENGTH, BEFORE, 0).unwrap(), None);
}

#[test]
fn offsets_above_four_gibibytes_are_themselves_and_not_their_lower_halves() {
    const GIB: u64 = 1 << 30;
    const BLOCK: u64 = 1 << 20;
    let cache = Cache { blocks: 6 * GIB / BLOCK, block_bytes: BLOCK, share: true };
    let mut there = Process::start_with(Setup { sparse: true, ..Setup::default() }, cache);
    let own = Own::start();
    let file = File::from(memfd_create("kvferry-test", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(6 * GIB).unwrap();
    let here = own.registry.register(Memory::map_file(file).unwrap(), Access::ReadWrite).unwrap();
    let peer = own.connect(&there);
    let remote = peer.regions().remove(0);
    let length = 3 * BLOCK + 5;
    for (local, far) in [(5 * GIB + 3, 4 * GIB - BLOCK), (4 * GIB - 7, 5 * GIB + 1)] {
        pattern::fill(&here, local, length, MOVED, local).unwrap();
        let spans = (here.span(local, length).unwrap(), remote.span(far, length).unwrap());
        peer.write(spans.0, spans.1).submit().unwrap().wait().unwrap();
        let landed = vec![Piece { offset: far, length, source: local }];
        assert!(wrong(&mut there, MOVED, landed).is_empty());
        let back = here.span(local + GIB / 2, length).unwrap();
        peer.read(spans.1, back).submit().unwrap().wait().unwrap();
        let found = pattern::first_wrong(&here, local + GIB / 2, length, MOVED, local).unwrap();
        assert_eq!(found, None);
    }
    // Blocks on both sides of the line, in one run whose strides and ends need more than 32 bits.
    let indices = [100, 2000, 3900, 4095, 4096, 5000, 6143];
    let layout = Layout { offset: 0, block_bytes: BLOCK, stride: BLOCK, count: cache.blocks };
    let (blocks, far) = (here.layout(layout).unwrap(), peer.layout("cache").unwrap());
    let places: Vec<_> = indices.iter().map(|index| at(u64::from(*index) * BLOCK, BLOCK)).collect();
    put(&mut there, BEFORE, places.clone());
    peer.read(far.blocks(indices), blocks.blocks(indices)).submit().unwrap().wait().unwrap();
    for place in &places {
        let found = pattern::first_wrong(&here, place.offset, BLOCK, BEFORE, place.offset).unwrap();
        assert_eq!(found, None, "block at {}", place.offset);
        pattern::fill(&here, place.offset, BLOCK, MOVED, place.offset).unwrap();
    }
    peer.write(blocks.blocks(indices), far.blocks(indices)).submit().unwrap().wait().unwrap();
    assert!(wrong(&mut there, MOVED, places).is_empty());
    // What a cut offset would have hit: the same places, 4 GiB lower.
    let mut zeros = vec![1; 16];
    here.read_at(GIB + 3, &mut zeros).unwrap();
    assert_eq!(zeros, [0; 16]);
}

#[test]
fn a_hundred_thousand_scattered_spans_go_where_they_belong_both_ways() {
    const COUNT: u64 = 100_000;
    // 40 bytes each, of which 1 to 37 count, at places that share no order on the two sides.
    let place = |index: u64, step: u64| index * step % COUNT * 40;
    let length = |index: u64| 1 + index % 37;
    let (mut there, _own, here, peer, remote) = pair();
    put(&mut there, BEFORE, vec![at(0, LENGTH)]);
    pattern::fill(&here, 0, LENGTH, MOVED, 0).unwrap();
    let local: Vec<_> =
        (0..COUNT).map(|i| here.span(place(i, 61_843), length(i)).unwrap()).collect();
    let far: Vec<_> =
        (0..COUNT).map(|i| remote.span(place(i, 7_919), length(i)).unwrap()).collect();
    let report = peer.write(local.clone(), far.clone()).submit().unwrap().wait().unwrap();
    assert_eq!((report.pairs, report.bytes), (COUNT, (0..COUNT).map(length).sum()));
    assert_eq!(report.transport, carrier());
    let landed = (0..COUNT).map(|i| Piece {
        offset: place(i, 7_919),
        length: length(i),
        source: place(i, 61_843),
    });
    assert!(wrong(&mut there, MOVED, landed.collect()).is_empty());
    let between = (0..COUNT).map(|i| at(place(i, 7_919) + length(i), 40 - length(i)));
    assert!(wrong(&mut there, BEFORE, between.collect()).is_empty());

    pattern::fill(&here, 0, LENGTH, BEFORE, 0).unwrap();
    let report = peer.read(far, local).submit().unwrap().wait().unwrap();
    assert_eq!(report.transport, carrier());
    for i in 0..COUNT {
        let (offset, length) = (place(i, 61_843), length(i));
        let found = pattern::first_wrong(&here, offset, length, MOVED, offset).unwrap();
        assert_eq!(found, None, "span {i}");
        let (offset, length) = (offset + length, 40 - length);
        let found = pattern::first_wrong(&here, offset, length, BEFORE, offset).unwrap();
        assert_eq!(found, None, "behind span {i}");
    }
}

#[test]
fn destinations_that_overlap_get_bytes_of_one_source_or_the_other_and_nothing_else_changes() {
    const OVERLAP: u64 = 8192;
    let (mut there, _own, here, peer, remote) = pair();
    let (low, high) = (1 << 20, (1 << 20) + 3 * OVERLAP / 2);
    for checksum in [false, true] {
        put(&mut there, BEFORE, vec![at(low - MARGIN, high - low + 2 * MARGIN)]);
        pattern::fill(&here, 0, LENGTH, MOVED, 0).unwrap();
        // Two sources for destinations of which half is the same.
        let sources = [0, 1 << 16];
        let local = sources.map(|offset| here.span(offset, OVERLAP).unwrap()).to_vec();
        let places = [low, low + OVERLAP / 2];
        let far = places.map(|offset| remote.span(offset, OVERLAP).unwrap()).to_vec();
        match peer.write(local, far).checksum(checksum).submit().unwrap().wait() {
            Ok(report) => assert_eq!(report.bytes, 2 * OVERLAP),
            // What is in place is not what the sender summed up.
            Err(error) => {
                assert!(
                    checksum && matches!(error.cause, Error::ChecksumMismatch { .. }),
                    "{error}"
                );
            }
        }
        let from = |source: usize, offset: u64| Piece {
            offset,
            length: 1,
            source: offset - places[source] + sources[source],
        };
        let byte_by_byte = |source: usize, range: std::ops::Range<u64>| {
            range.map(|offset| from(source, offset)).collect::<Vec<_>>()
        };
        let shared = low + OVERLAP / 2..low + OVERLAP;
        assert!(wrong(&mut there, MOVED, byte_by_byte(0, low..shared.start)).is_empty());
        assert!(wrong(&mut there, MOVED, byte_by_byte(1, shared.end..high)).is_empty());
        let not_first = wrong(&mut there, MOVED, byte_by_byte(0, shared.clone()));
        let not_second = wrong(&mut there, MOVED, byte_by_byte(1, shared));
        assert!(not_first.iter().all(|byte| !not_second.contains(byte)), "of neither source");
        let around = vec![at(low - MARGIN, MARGIN), at(high, MARGIN)];
        assert!(wrong(&mut there, BEFORE, around).is_empty());
    }
}
