//! The work that is measured: 10^6 pairs and descriptors, and what is done with them.

use kvferry_engine::plan::{Pair, PlanLimits, Planner};
use kvferry_proto::frame::{Descriptor, FrameError, Kind, Prefix, Request, SliceHead};
use kvferry_proto::{GrantId, RegionId, TransferId};

pub(crate) const DESCRIPTORS: u32 = 1_000_000;
pub(crate) const BLOCK_BYTES: u32 = 4096;

/// About as many scattered blocks of 4 KiB as a slice of 1 MiB holds, and a divisor of 10^6.
const DESCRIPTORS_PER_FRAME: usize = 250;

/// The numbers below 10^6 in an order without a pattern that a branch predictor could learn.
pub(crate) fn shuffled(mut state: u64) -> Vec<u64> {
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

pub(crate) fn plan(pairs: &[Pair]) -> usize {
    let mut planner = Planner::new(PlanLimits::default(), pairs.len());
    for pair in pairs {
        planner.push(*pair);
    }
    planner.finish().descriptors()
}

/// Pairs of which no two merge: runs lead forward, and here the local side never does.
pub(crate) fn apart() -> Vec<Pair> {
    let remote = shuffled(2);
    let local = (0..u64::from(DESCRIPTORS)).rev();
    local.zip(&remote).map(|(local, remote)| pair(local, *remote)).collect()
}

/// Pairs in random order at both ends: two of them that happen to lead forward could be a run.
pub(crate) fn scattered() -> Vec<Pair> {
    let (local, remote) = (shuffled(1), shuffled(2));
    local.iter().zip(&remote).map(|(local, remote)| pair(*local, *remote)).collect()
}

/// Pairs at fixed distances.
pub(crate) fn strided() -> Vec<Pair> {
    (0..DESCRIPTORS).map(|index| pair(u64::from(index) * 2, u64::from(index) * 3)).collect()
}

pub(crate) fn descriptors() -> Vec<Descriptor> {
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

/// All descriptors, frame by frame.
pub(crate) fn frames(descriptors: &[Descriptor]) -> Vec<Vec<u8>> {
    let frames = descriptors.chunks(DESCRIPTORS_PER_FRAME).map(|descriptors| {
        let mut frame = Vec::new();
        encode(descriptors, &mut frame);
        frame
    });
    frames.collect()
}

/// Encodes all of them into the same buffer, frame by frame.
pub(crate) fn encode_all(descriptors: &[Descriptor], out: &mut Vec<u8>) {
    for frame in descriptors.chunks(DESCRIPTORS_PER_FRAME) {
        out.clear();
        encode(frame, out);
    }
}

/// Reads all frames. How many descriptors lie inside the region.
pub(crate) fn decode_all(frames: &[Vec<u8>]) -> Result<u64, FrameError> {
    let region_bytes = u64::from(DESCRIPTORS) * u64::from(BLOCK_BYTES);
    frames.iter().map(|frame| decode(frame, region_bytes)).sum()
}
