use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn limits(slice_bytes: u32, slice_spans: u32) -> PlanLimits {
    PlanLimits { slice_bytes, slice_spans }
}

fn plan(limits: PlanLimits, pairs: &[Pair]) -> Plan {
    let mut planner = Planner::new(limits, pairs.len());
    for pair in pairs {
        planner.push(*pair);
    }
    planner.finish()
}

/// Every byte of the pairs as (local region, local offset, remote region, remote offset), in order.
fn bytes_of_pairs(pairs: &[Pair]) -> Vec<(u16, u64, u16, u64)> {
    pairs
        .iter()
        .flat_map(|pair| {
            (0..pair.bytes).map(|at| {
                (pair.local, pair.local_offset + at, pair.remote, pair.remote_offset + at)
            })
        })
        .collect()
}

/// The same of a plan, read as the wire and the scatter list read it.
fn bytes_of_plan(plan: &Plan) -> Vec<(u16, u64, u16, u64)> {
    let mut bytes = Vec::new();
    for slice in plan.slices() {
        let before = bytes.len();
        let mut spans = 0;
        for run in plan.runs(slice) {
            let descriptor = run.descriptor();
            assert_eq!(descriptor.count, run.count);
            spans += run.count;
            for (index, local) in run.local_offsets().enumerate() {
                let remote = descriptor.offset + index as u64 * descriptor.stride;
                for at in 0..u64::from(run.bytes) {
                    bytes.push((run.local, local + at, run.remote, remote + at));
                }
            }
        }
        assert_eq!(bytes.len() - before, slice.bytes as usize);
        assert_eq!(spans, slice.spans);
    }
    bytes
}

fn pair() -> impl Strategy<Value = Pair> {
    // Few distinct values, so that neighbours, strides and repeats come up often.
    (0..2_u16, 0..2_u16, 0..12_u64, 0..12_u64, 0..6_u64).prop_map(
        |(local, remote, local_block, remote_block, bytes)| Pair {
            local,
            remote,
            local_offset: local_block * 4,
            remote_offset: remote_block * 4,
            bytes,
        },
    )
}

fn pairs() -> impl Strategy<Value = Vec<Pair>> {
    let run = (0..64_u64, 0..64_u64, 0..9_u64, 0..9_u64, 1..6_u64, 1..20_u64).prop_map(
        |(local, remote, local_stride, remote_stride, bytes, count)| {
            (0..count)
                .map(|index| Pair {
                    local: 0,
                    remote: 0,
                    local_offset: local + index * local_stride,
                    remote_offset: remote + index * remote_stride,
                    bytes,
                })
                .collect::<Vec<_>>()
        },
    );
    vec(prop_oneof![run, vec(pair(), 1..8)], 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn every_byte_comes_exactly_once_in_order_and_within_limits(
        pairs in pairs(), slice_bytes in 1..40_u32, slice_spans in 1..8_u32,
    ) {
        let plan = plan(limits(slice_bytes, slice_spans), &pairs);
        prop_assert_eq!(bytes_of_plan(&plan), bytes_of_pairs(&pairs));
        prop_assert_eq!(plan.bytes(), pairs.iter().map(|pair| pair.bytes).sum::<u64>());
        for slice in plan.slices() {
            prop_assert!(slice.bytes <= slice_bytes && slice.spans <= slice_spans);
            prop_assert!(slice.bytes > 0);
        }
    }
}

fn block(local: u64, remote: u64) -> Pair {
    let bytes = 4096;
    Pair { local: 0, remote: 0, local_offset: local * bytes, remote_offset: remote * bytes, bytes }
}

#[test]
fn contiguous_pairs_become_one_span_a_slice() {
    let pairs: Vec<Pair> = (0..512).map(|index| block(7 + index, 90 + index)).collect();
    let plan = plan(PlanLimits::default(), &pairs);
    assert_eq!(plan.slices().len(), 2);
    assert_eq!(plan.descriptors(), 2);
    assert_eq!(plan.slices()[0].spans, 1);
}

#[test]
fn strided_pairs_become_one_descriptor_a_slice() {
    let pairs: Vec<Pair> = (0..512).map(|index| block(2 * index, 3 * index)).collect();
    let plan = plan(PlanLimits::default(), &pairs);
    assert_eq!(plan.slices().len(), 2);
    assert_eq!(plan.descriptors(), 2);
    assert_eq!(plan.slices()[0].spans, 256);
}

#[test]
fn a_long_span_is_cut_at_the_slice_size_and_nowhere_else() {
    let huge = Pair { local: 0, remote: 0, local_offset: 1, remote_offset: 3, bytes: 5 << 30 };
    let plan = plan(PlanLimits::default(), &[huge]);
    assert_eq!(plan.slices().len(), 5 << 10);
    assert_eq!(plan.descriptors(), 5 << 10);
    assert!(plan.slices().iter().all(|slice| slice.bytes == 1 << 20 && slice.spans == 1));
}
