//! Heads of a model, spread over ranks of other numbers on the two sides.

use kvferry_engine::{LocalSpans, Peer, RemoteSpans};
use kvferry_tests::command::{Command, Piece, View};
use kvferry_tests::own::Own;
use kvferry_tests::pattern;
use kvferry_tests::process::Process;

use super::{BEFORE, CONTENTS, assert_here, assert_there, layout, pair, put, whole};

const COUNTS: [u64; 4] = [1, 2, 4, 8];

/// Bytes of one head in one block: of no special size.
const HEAD: u64 = 88;

const BLOCKS: u64 = 13;

/// All ranks of one side together, at the most.
const SIDE: u64 = 8 * HEAD * BLOCKS;

/// One side: a model's heads, spread over ranks that lie one behind the other in its cache. Where
/// there are more ranks than heads, several hold the same.
#[derive(Clone, Copy, Debug)]
struct Side {
    heads: u64,
    ranks: u64,
    /// Which physical block a logical one is in: this many further, around the end.
    shift: u64,
}

impl Side {
    /// How many heads a rank holds.
    fn held(&self) -> u64 {
        (self.heads / self.ranks).max(1)
    }

    fn first_head(&self, rank: u64) -> u64 {
        rank * self.heads / self.ranks
    }

    fn view(&self, rank: u64) -> View {
        let block_bytes = self.held() * HEAD;
        let offset = rank * block_bytes * BLOCKS;
        View { offset, block_bytes, stride: block_bytes, count: BLOCKS }
    }

    fn name(&self, rank: u64) -> String {
        format!("{}-heads-{}-ranks-{rank}", self.heads, self.ranks)
    }

    fn indices(&self) -> Vec<u32> {
        (0..BLOCKS).map(|block| u32::try_from((block + self.shift) % BLOCKS).unwrap()).collect()
    }

    /// Where every head of every block lies, and which bytes of the contents belong there.
    fn pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for rank in 0..self.ranks {
            let View { offset, block_bytes, .. } = self.view(rank);
            for (block, index) in (0..).zip(self.indices()) {
                for held in 0..self.held() {
                    let head = self.first_head(rank) + held;
                    pieces.push(Piece {
                        offset: offset + u64::from(index) * block_bytes + held * HEAD,
                        length: HEAD,
                        source: (head * BLOCKS + block) * HEAD,
                    });
                }
            }
        }
        pieces
    }

    /// The rank that holds a head, the first where several do, and where in its blocks.
    fn find(&self, head: u64) -> (u64, u64) {
        let rank = (0..self.ranks)
            .find(|rank| {
                (self.first_head(*rank)..self.first_head(*rank) + self.held()).contains(&head)
            })
            .unwrap();
        (rank, head - self.first_head(rank))
    }
}

/// Which heads of which rank of the source fill a rank of the destination: rank, where in its
/// blocks, where in the destination's, and how many.
fn parts(from: &Side, to: &Side, rank: u64) -> Vec<(u64, u64, u64, u64)> {
    let mut parts: Vec<(u64, u64, u64, u64)> = Vec::new();
    for held in 0..to.held() {
        let (source, within) = from.find(to.first_head(rank) + held);
        match parts.last_mut() {
            Some((last, start, _, count)) if *last == source && *start + *count == within => {
                *count += 1;
            }
            _ => parts.push((source, within, held, 1)),
        }
    }
    parts
}

/// Every pair of sides with the same heads.
fn all_pairs() -> impl Iterator<Item = (Side, Side)> {
    COUNTS.into_iter().flat_map(|heads| {
        COUNTS.into_iter().flat_map(move |from| {
            COUNTS.into_iter().map(move |to| {
                let side = |ranks, shift| Side { heads, ranks, shift };
                (side(from, 3), side(to, 8))
            })
        })
    })
}

/// Publishes every rank of every split of every model at the process.
fn publish_all(there: &mut Process, own: &Own, peer: &Peer) {
    for heads in COUNTS {
        for ranks in COUNTS {
            let side = Side { heads, ranks, shift: 0 };
            for rank in 0..ranks {
                let (name, view) = (side.name(rank), side.view(rank));
                there.ok(&Command::Publish { name, view });
            }
        }
    }
    own.catch_up(peer);
}

#[test]
fn ranks_of_every_number_pull_their_heads_from_ranks_of_every_number() {
    let (mut there, own, here, peer) = pair(SIDE);
    publish_all(&mut there, &own, &peer);
    for (from, to) in all_pairs() {
        let what = format!("{from:?} to {to:?}");
        put(&mut there, CONTENTS, from.pieces());
        pattern::fill(&here, 0, SIDE, BEFORE, 0).unwrap();
        let mut moved = 0;
        for rank in 0..to.ranks {
            let local = layout(&here, to.view(rank));
            let (mut spans, mut sources) = (LocalSpans::default(), RemoteSpans::default());
            for (source, within, held, count) in parts(&from, &to, rank) {
                let remote = peer.layout(&from.name(source)).unwrap();
                let remote = remote.narrow(within * HEAD, count * HEAD).unwrap();
                let local = local.narrow(held * HEAD, count * HEAD).unwrap();
                spans = spans.and(local.blocks(to.indices()));
                sources = sources.and(remote.blocks(from.indices()));
            }
            moved += peer.read(sources, spans).submit().unwrap().wait().unwrap().bytes;
        }
        let bytes = to.ranks * to.held() * HEAD * BLOCKS;
        assert_eq!(moved, bytes, "{what}");
        assert_here(&here, CONTENTS, &to.pieces(), &what);
        let behind = Piece { offset: bytes, length: SIDE - bytes, source: bytes };
        assert_here(&here, BEFORE, &[behind], &what);
    }
}

#[test]
fn ranks_of_every_number_push_their_heads_to_ranks_of_every_number() {
    let (mut there, own, here, peer) = pair(SIDE);
    publish_all(&mut there, &own, &peer);
    for (from, to) in all_pairs() {
        let what = format!("{from:?} to {to:?}");
        put(&mut there, BEFORE, whole(SIDE));
        for Piece { offset, length, source } in from.pieces() {
            pattern::fill(&here, offset, length, CONTENTS, source).unwrap();
        }
        // Each rank that has something sends what the others lack of it.
        let mut moved = 0;
        for source in 0..from.ranks {
            let local = layout(&here, from.view(source));
            let (mut spans, mut targets) = (LocalSpans::default(), RemoteSpans::default());
            for rank in 0..to.ranks {
                for (from_rank, within, held, count) in parts(&from, &to, rank) {
                    if from_rank != source {
                        continue;
                    }
                    let remote = peer.layout(&to.name(rank)).unwrap();
                    let remote = remote.narrow(held * HEAD, count * HEAD).unwrap();
                    let local = local.narrow(within * HEAD, count * HEAD).unwrap();
                    spans = spans.and(local.blocks(from.indices()));
                    targets = targets.and(remote.blocks(to.indices()));
                }
            }
            moved += peer.write(spans, targets).submit().unwrap().wait().unwrap().bytes;
        }
        let bytes = to.ranks * to.held() * HEAD * BLOCKS;
        assert_eq!(moved, bytes, "{what}");
        assert_there(&mut there, CONTENTS, to.pieces(), &what);
        let behind = Piece { offset: bytes, length: SIDE - bytes, source: bytes };
        assert_there(&mut there, BEFORE, vec![behind], &what);
    }
}
