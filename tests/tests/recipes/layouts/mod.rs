//! The two sides lay blocks out differently: other numbers of blocks, of ranks and of heads in a
//! rank, blocks of other sizes, a last block that is filled in part, a block that stands for none
//! (vllm#52516, vllm#50558). Every byte of the destination is written exactly once, or the transfer
//! is refused before any is.
//!
//! A byte that was written twice, or to a wrong place, is one that is missing elsewhere: what is
//! checked is that all bytes are right, and that no more were moved than there are.
//!
//! `ranks` has heads that are spread differently, `blocks` everything else.

mod blocks;
mod ranks;

use kvferry_engine::{Layout, LayoutView, Peer, Region, RemoteLayout};
use kvferry_tests::command::{Answer, Command, Piece, Setup, View};
use kvferry_tests::own::Own;
use kvferry_tests::pattern;
use kvferry_tests::process::{Cache, Process};

const CONTENTS: u64 = 1;
const BEFORE: u64 = 2;

fn layout(region: &Region, View { offset, block_bytes, stride, count }: View) -> LayoutView {
    region.layout(Layout { offset, block_bytes, stride, count }).unwrap()
}

/// A process with a cache of `bytes`, an engine here with as much, and the two connected.
fn pair(bytes: u64) -> (Process, Own, Region, Peer) {
    let cache = Cache { blocks: bytes, block_bytes: 1, share: true };
    let there = Process::start_with(Setup::default(), cache);
    let own = Own::start();
    let here = own.registry.allocate(bytes).unwrap();
    let peer = own.connect(&there);
    (there, own, here, peer)
}

fn publish(there: &mut Process, own: &Own, peer: &Peer, name: &str, view: View) -> RemoteLayout {
    there.ok(&Command::Publish { name: name.into(), view });
    own.catch_up(peer);
    peer.layout(name).unwrap()
}

fn put(there: &mut Process, seed: u64, pieces: Vec<Piece>) {
    there.ok(&Command::Put { pieces, seed });
}

fn assert_there(there: &mut Process, seed: u64, pieces: Vec<Piece>, what: &str) {
    match there.tell(&Command::Look { pieces, seed }) {
        Answer::Wrong(wrong) => assert!(wrong.is_empty(), "{what}: {wrong:?}"),
        other => panic!("{other:?}"),
    }
}

fn assert_here(here: &Region, seed: u64, pieces: &[Piece], what: &str) {
    for Piece { offset, length, source } in pieces {
        let found = pattern::first_wrong(here, *offset, *length, seed, *source).unwrap();
        assert_eq!(found, None, "{what}: at {offset}");
    }
}

fn whole(bytes: u64) -> Vec<Piece> {
    vec![Piece { offset: 0, length: bytes, source: 0 }]
}
