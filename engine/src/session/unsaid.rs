//! Read slices that have landed, of which their sources are told together.

use std::collections::BTreeMap;

use kvferry_proto::{LaneId, TransferId};

/// What one lane's source has not been told.
#[derive(Debug, Default)]
struct OfLane {
    slices: Vec<(TransferId, u32)>,
    bytes: u64,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Unsaid(BTreeMap<LaneId, OfLane>);

impl Unsaid {
    /// A slice of so many bytes has landed. Returns how many are unsaid on the lane.
    pub(super) fn add(
        &mut self,
        lane: LaneId,
        transfer: TransferId,
        slice: u32,
        bytes: u32,
    ) -> u64 {
        let of_lane = self.0.entry(lane).or_default();
        of_lane.slices.push((transfer, slice));
        of_lane.bytes += u64::from(bytes);
        of_lane.bytes
    }

    /// What is to be said on a lane, which is nothing where it is gone.
    pub(super) fn take(&mut self, lane: LaneId) -> Vec<(TransferId, u32)> {
        self.0.remove(&lane).map(|of_lane| of_lane.slices).unwrap_or_default()
    }
}
