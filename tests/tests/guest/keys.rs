//! Keys that are wrong, or become so: the adapter that they are of refuses them, which costs the slice
//! that needed them, and its neighbours are read all the same.

use std::time::{Duration, Instant};

use kvferry_engine::{Error, Region, Transport, Transports};
use kvferry_proto::frame::{Control, Descriptor, KeyLoan, Reply, Request, SliceHead, Status};
use kvferry_proto::{GrantId, LaneId, RegionId, TransferId};
use kvferry_tests::command::{Answer, Command, Setup};
use kvferry_tests::own::{Own, adapters};
use kvferry_tests::pattern;
use kvferry_tests::process::{Cache, Process};
use kvferry_tests::verbs::{Offer, Side};
use kvferry_tests::wire::{RawLane, grant};
use kvferry_transport::rdma::verbs::QueuePair;

use super::rails::{
    COUNT, FAR, NEAR, PATIENCE, SHARED, await_first, await_resources, resources, side,
};

/// Half of what a cache holds here.
const HALF: u64 = COUNT as u64 * (64 << 10) / 2;

const BLOCK: u64 = 64 << 10;

fn region(own: &Own, seed: u64) -> Region {
    let region = own.registry.allocate(HALF).unwrap();
    pattern::fill(&region, 0, HALF, seed, 0).unwrap();
    region
}

#[test]
fn a_region_that_goes_while_it_is_read_fails_its_transfer_and_no_other_of_its_lanes() {
    let mut target = side(FAR, SHARED);
    let own = Own::start_with(|builder| {
        builder.transports(Transports::Only(Transport::Rdma)).rdma(adapters(NEAR))
    });
    let peer = own.connect(&target);
    let remote = peer.regions().remove(0);
    let stays = region(&own, 2);
    let mut repeated = 0;
    for _ in 0..5 {
        let goes = region(&own, 1);
        target.fill(0..COUNT, 9);
        let submit = |from: &Region, to| {
            let request = peer.write(from.whole(), remote.span(to, HALF).unwrap());
            request.deadline(PATIENCE).submit().unwrap()
        };
        let (first, second) = (submit(&goes, 0), submit(&stays, HALF));
        await_first(&mut target, 1);
        // What the target reads just now has no key any more.
        let released = goes.unregister(Duration::ZERO);
        assert_eq!(released.cut, [first.id()]);
        let cause = first.wait().unwrap_err().cause;
        assert!(matches!(cause, Error::RegionWithdrawn), "{cause}");
        let report = second.wait().unwrap();
        assert_eq!((report.transport, report.bytes), ("rdma", HALF));
        repeated += report.repeated_slices;
        let blocks = COUNT / 2..COUNT;
        let pairs: Vec<_> = blocks.map(|block| (block, block - COUNT / 2)).collect();
        target.assert_holds_pairs(&pairs, 2);
    }
    assert!(repeated > 0, "none of its slices was ever read again");
}

/// The memory of a peer that speaks frames by hand, and its queue pairs.
struct Liar {
    side: Side,
    pairs: Vec<QueuePair>,
}

impl Liar {
    fn lane(&mut self, to: &Process, number: u32) -> RawLane {
        let pair = self.side.pair().unwrap();
        let offer = self.side.offer(&pair).on_the_wire();
        let (lane, theirs) = RawLane::open_with_pair(to, INITIATOR, number, &offer).unwrap();
        self.pairs.push(Offer::of_wire(&theirs).connect(pair).unwrap());
        lane
    }

    /// Lends all of its memory as one region, with a key that is as many off.
    fn lend(&self, region: RegionId, off: u32) -> Vec<u8> {
        let at = self.side.region.address_of(0);
        let key = at.key.wrapping_add(off);
        let bytes = self.side.memory.length();
        let mut frame = Vec::new();
        let loan = KeyLoan { region, offset: 0, bytes, address: at.address, key };
        Request::encode_lend_key(&mut frame, loan);
        frame
    }
}

const INITIATOR: u64 = 77;
const GOOD: RegionId = RegionId { slot: 4, generation: 2 };
const FORGED: RegionId = RegionId { slot: 5, generation: 2 };

/// A write of block `block` of the cache, from the same place of a lent region.
fn write(
    transfer: u64,
    (grant, target): (GrantId, RegionId),
    from: RegionId,
    block: u64,
) -> Vec<u8> {
    let head = SliceHead {
        transfer: TransferId(transfer),
        floor: TransferId(1),
        slice: 0,
        remaining_us: 30_000_000,
        crc32c: 0,
    };
    let bytes = u32::try_from(BLOCK).unwrap();
    let span = Descriptor { offset: block * BLOCK, bytes, count: 1, stride: 0 };
    let mut frame = Vec::new();
    head.encode_by_reference(
        &mut frame,
        true,
        |writer| writer.push(grant, target, span),
        |writer| writer.push(GrantId(0), from, span),
    );
    frame
}

fn ack(transfer: u64, status: Status) -> Reply {
    Reply::Ack { transfer: TransferId(transfer), slice: 0, status }
}

#[test]
fn a_forged_key_is_refused_by_the_adapter_and_its_neighbours_are_read_on_another_lane() {
    let before = resources();
    let cache = Cache { blocks: 8, block_bytes: BLOCK, share: false };
    let setup = Setup { rdma_devices: Some("rxe_b0".into()), ..Setup::default() };
    let mut target = Process::start_over(Transport::Rdma, setup, cache);
    target.fill(0..8, 5);
    let ticket = grant(&mut target, "g", INITIATOR, 0..8);
    let into = (ticket.grant, ticket.spans[0].region);
    let side = Side::open("rxe_a0", usize::try_from(8 * BLOCK).unwrap()).unwrap();
    for block in 0..8 {
        let at = block * BLOCK;
        side.memory.copy_in(at, &pattern::bytes_at(1, at, BLOCK)).unwrap();
    }
    let mut liar = Liar { side, pairs: Vec::new() };

    let mut lane = liar.lane(&target, 1);
    // Before it, with it, and behind it, all at once.
    let parts = [
        liar.lend(GOOD, 0),
        liar.lend(FORGED, 0x0101),
        write(1, into, GOOD, 0),
        write(2, into, FORGED, 1),
        write(3, into, GOOD, 2),
    ];
    lane.send(&parts.concat());
    // The answer to each that had one, and then the end of the lane.
    let began = Instant::now();
    let mut answers = Vec::new();
    while answers.last() != Some(&ack(2, Status::MemoryFault)) {
        assert!(began.elapsed() < PATIENCE, "{answers:?}");
        answers.push(lane.reply());
    }
    assert!(
        answers.iter().all(|one| [ack(1, Status::Done), ack(2, Status::MemoryFault)].contains(one))
    );
    assert!(lane.is_closed());
    target.assert_holds(1..2, 5);
    target.assert_holds(3..8, 5);

    // Another lane, by which the lost one is fenced; the neighbours again.
    let mut lane = liar.lane(&target, 2);
    let mut frames = Vec::new();
    Control::FenceLane { lane: LaneId(1) }.encode(&mut frames);
    lane.send(&frames);
    assert_eq!(lane.reply(), Reply::LaneFenced { lane: LaneId(1) });
    lane.send(&[liar.lend(GOOD, 0), write(1, into, GOOD, 0), write(3, into, GOOD, 2)].concat());
    assert_eq!(lane.reply(), ack(1, Status::Done));
    assert_eq!(lane.reply(), ack(3, Status::Done));
    target.assert_holds(0..1, 1);
    target.assert_holds(1..2, 5);
    target.assert_holds(2..3, 1);
    target.assert_holds(3..8, 5);
    drop((lane, liar));
    target.await_held("rid of its lanes", |held| held.lanes_accepted == 0);
    drop(target);
    await_resources(&before);
}
