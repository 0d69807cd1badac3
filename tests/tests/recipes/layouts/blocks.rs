//! Other numbers of blocks on the two sides, blocks of other sizes, blocks that are filled in part,
//! and one that stands for none.

use kvferry_engine::{Error, LocalSpans, Remote, RemoteSpans};
use kvferry_tests::command::{Move, Piece, Setup, View};
use kvferry_tests::pattern;
use kvferry_tests::process::{Cache, Process, push};

use super::{BEFORE, CONTENTS, assert_here, assert_there, layout, pair, publish, put, whole};

/// A view of blocks of this size over all of so many bytes.
fn blocks_of(block_bytes: u64, bytes: u64) -> View {
    View { offset: 0, block_bytes, stride: block_bytes, count: bytes / block_bytes }
}

#[test]
fn where_one_side_has_more_blocks_the_tails_are_aligned_or_the_transfer_is_refused() {
    const BLOCK: u64 = 512;
    const BYTES: u64 = 64 * BLOCK;
    let (mut there, own, here, peer) = pair(BYTES);
    let remote = publish(&mut there, &own, &peer, "blocks", blocks_of(BLOCK, BYTES));
    let local = layout(&here, blocks_of(BLOCK, BYTES));
    put(&mut there, CONTENTS, whole(BYTES));
    // P has blocks 10 and on, D wants them at 30 and on; the last ones belong together.
    for (has, wants) in [(20_u32, 20_u32), (20, 12), (12, 20), (20, 0), (1, 20)] {
        pattern::fill(&here, 0, BYTES, BEFORE, 0).unwrap();
        let (sources, places): (Vec<_>, Vec<_>) =
            ((10..10 + has).collect(), (30..30 + wants).collect());
        if has != wants {
            let request = peer.read(remote.blocks(sources.clone()), local.blocks(places.clone()));
            let error = request.submit().unwrap_err();
            assert!(matches!(error.cause, Error::CountMismatch { .. }), "{error}");
            assert_eq!(error.remote, Remote::Untouched);
            assert_here(&here, BEFORE, &whole(BYTES), "refused");
        }
        let count = has.min(wants) as usize;
        let tail = |blocks: &[u32]| blocks[blocks.len() - count..].to_vec();
        let (sources, places) = (tail(&sources), tail(&places));
        let request = peer.read(remote.blocks(sources.clone()), local.blocks(places.clone()));
        assert_eq!(request.submit().unwrap().wait().unwrap().bytes, count as u64 * BLOCK);
        for block in 0..64 {
            let offset = u64::from(block) * BLOCK;
            let (seed, source) = match places.iter().position(|place| *place == block) {
                Some(at) => (CONTENTS, u64::from(sources[at]) * BLOCK),
                None => (BEFORE, offset),
            };
            let piece = Piece { offset, length: BLOCK, source };
            assert_here(&here, seed, &[piece], &format!("{has} to {wants}, block {block}"));
        }
    }
}

#[test]
fn a_last_block_that_is_filled_in_part_changes_no_more_than_that() {
    const BLOCK: u64 = 512;
    const BYTES: u64 = 16 * BLOCK;
    const FILLED: u64 = 77;
    let (mut there, own, here, peer) = pair(BYTES);
    let remote = publish(&mut there, &own, &peer, "blocks", blocks_of(BLOCK, BYTES));
    let local = layout(&here, blocks_of(BLOCK, BYTES));
    let piece = |offset, length, source| Piece { offset, length, source };
    let moved = [piece(0, BLOCK, 2 * BLOCK), piece(9 * BLOCK, FILLED, 5 * BLOCK)];
    let rest = [
        piece(BLOCK, 8 * BLOCK, BLOCK),
        piece(9 * BLOCK + FILLED, 7 * BLOCK - FILLED, 9 * BLOCK + FILLED),
    ];

    put(&mut there, CONTENTS, whole(BYTES));
    pattern::fill(&here, 0, BYTES, BEFORE, 0).unwrap();
    let sources = RemoteSpans::from(remote.blocks([2]));
    let sources = sources.and(remote.block(5).unwrap().part(0, FILLED).unwrap());
    let places = LocalSpans::from(local.blocks([0]));
    let places = places.and(local.block(9).unwrap().part(0, FILLED).unwrap());
    peer.read(sources, places).submit().unwrap().wait().unwrap();
    assert_here(&here, CONTENTS, &moved, "pulled");
    assert_here(&here, BEFORE, &rest, "pulled");

    put(&mut there, BEFORE, whole(BYTES));
    pattern::fill(&here, 0, BYTES, CONTENTS, 0).unwrap();
    let sources = LocalSpans::from(local.blocks([2]));
    let sources = sources.and(local.block(5).unwrap().part(0, FILLED).unwrap());
    let places = RemoteSpans::from(remote.blocks([0]));
    let places = places.and(remote.block(9).unwrap().part(0, FILLED).unwrap());
    peer.write(sources, places).submit().unwrap().wait().unwrap();
    assert_there(&mut there, CONTENTS, moved.to_vec(), "pushed");
    assert_there(&mut there, BEFORE, rest.to_vec(), "pushed");
    // A whole block and a part of one do not belong together.
    let part = local.block(5).unwrap().part(0, FILLED).unwrap();
    let error = peer.write(part, remote.blocks([9])).submit().unwrap_err();
    assert!(matches!(error.cause, Error::LengthMismatch { .. }), "{error}");
}

#[test]
fn blocks_of_16_tokens_fill_blocks_of_32_whatever_the_order_of_heads_and_tokens() {
    const HEADS: u64 = 4;
    const TOKEN: u64 = 24;
    const BYTES: u64 = 12 * 32 * HEADS * TOKEN;
    let small = blocks_of(16 * HEADS * TOKEN, BYTES);
    let large = blocks_of(32 * HEADS * TOKEN, BYTES);
    let (mut there, own, here, peer) = pair(BYTES);
    let remote = publish(&mut there, &own, &peer, "small", small);
    let local = layout(&here, large);
    // Seven small blocks in an order of their own: three large ones, and half of a fourth.
    let sources = [21_u32, 4, 17, 0, 9, 10, 3];
    let places = [5_u32, 1, 11, 6];
    let place_of =
        |logical: u64| (u64::from(places[usize::try_from(logical / 2).unwrap()]), logical % 2);
    // A byte's place in the contents: small block, head, token, or with the last two exchanged.
    for heads_first in [true, false] {
        put(&mut there, CONTENTS, whole(BYTES));
        pattern::fill(&here, 0, BYTES, BEFORE, 0).unwrap();
        let (mut from, mut to) = (RemoteSpans::default(), LocalSpans::default());
        let mut expected = Vec::new();
        let (runs, run) = if heads_first { (HEADS, 16 * TOKEN) } else { (1, 16 * HEADS * TOKEN) };
        for index in 0..runs {
            for half in 0..2 {
                let even = (0..).zip(sources).filter(|(logical, _)| logical % 2 == half);
                let (logical, these): (Vec<u64>, Vec<u32>) = even.unzip();
                let those =
                    logical.iter().map(|logical| places[usize::try_from(logical / 2).unwrap()]);
                let narrow = local.narrow((2 * index + half) * run, run).unwrap();
                to = to.and(narrow.blocks(those));
                from = from.and(remote.narrow(index * run, run).unwrap().blocks(these));
            }
            for (logical, source) in (0..).zip(sources) {
                let (place, half) = place_of(logical);
                expected.push(Piece {
                    offset: place * large.block_bytes + (2 * index + half) * run,
                    length: run,
                    source: u64::from(source) * small.block_bytes + index * run,
                });
            }
        }
        let report = peer.read(from, to).submit().unwrap().wait().unwrap();
        assert_eq!(report.bytes, 7 * small.block_bytes);
        assert_here(&here, CONTENTS, &expected, &format!("heads first: {heads_first}"));
        // The second half of the last one is as it was.
        for index in 0..runs {
            let offset = 6 * large.block_bytes + (2 * index + 1) * run;
            let piece = Piece { offset, length: run, source: offset };
            assert_here(&here, BEFORE, &[piece], "the half that nothing fills");
        }
    }
}

#[test]
fn a_block_that_stands_for_none_is_not_granted_and_so_never_written() {
    let cache = Cache { share: false, ..Cache::default() };
    let mut target = Process::start_with(Setup::default(), cache);
    let mut initiator = Process::start();
    target.fill(0..256, BEFORE);
    initiator.fill(0..256, CONTENTS);
    initiator.connect(&target);
    let ticket = Some(target.grant("all but block 0", 1..256, &initiator, true));
    let padded = Move {
        local: vec![5, 6, 7],
        remote: vec![9, 0, 0],
        ticket: ticket.clone(),
        ..push(&target, 0)
    };
    let end = initiator.transfer(padded);
    assert_eq!((end.cause(), end.remote()), ("OutsideGrant", "untouched"), "{end:?}");
    target.assert_holds(0..256, BEFORE);
    let end =
        initiator.transfer(Move { local: vec![5], remote: vec![9], ticket, ..push(&target, 0) });
    assert!(end.is_done(), "{end:?}");
    target.assert_holds_pairs(&[(9, 5)], CONTENTS);
    target.assert_holds(0..9, BEFORE);
}
