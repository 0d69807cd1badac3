//! What a target remembers about one initiator, as a state machine without I/O: its lanes, what it
//! cancelled, and which notifications it has delivered. All of it is bounded, and forgotten as the
//! initiator's transfers end.

use std::collections::{BTreeSet, HashMap};

use kvferry_proto::frame::{Refusal, Status, limits};
use kvferry_proto::{LaneId, TransferId};

/// Why a frame breaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The transfer's id is too far ahead of the oldest that has not ended.
    #[error("transfer {transfer} is more than {limit} ahead of the oldest open one, {floor}")]
    Spread {
        /// The transfer.
        transfer: TransferId,
        /// The oldest that has not ended.
        floor: TransferId,
        /// How far apart they may be.
        limit: u64,
    },
}

/// What one initiator may still do, and what it has done. See the module's documentation.
#[derive(Debug)]
pub struct Inbound {
    /// Transfers below have ended at the initiator: whatever comes of them is late.
    floor: TransferId,
    cancelled: BTreeSet<TransferId>,
    delivered: BTreeSet<TransferId>,
    lanes: HashMap<LaneId, Lane>,
    most_lanes: usize,
}

/// What is known of an open lane.
#[derive(Clone, Debug, Default)]
struct Lane {
    fenced: bool,
    /// The slices that are on their way by it: one, where its payload comes on the lane.
    landings: Vec<(TransferId, u32)>,
}

impl Inbound {
    /// Knows nothing yet, and lets the initiator hold up to `most_lanes` lanes.
    #[must_use]
    pub fn new(most_lanes: usize) -> Self {
        Self {
            floor: TransferId(0),
            cancelled: BTreeSet::new(),
            delivered: BTreeSet::new(),
            lanes: HashMap::new(),
            most_lanes,
        }
    }

    /// The initiator opens a lane.
    ///
    /// # Errors
    /// Why it may not.
    pub fn open_lane(&mut self, lane: LaneId) -> Result<(), Refusal> {
        if self.lanes.contains_key(&lane) {
            return Err(Refusal::LaneReused);
        }
        if self.lanes.len() >= self.most_lanes {
            return Err(Refusal::TooManyLanes);
        }
        self.lanes.insert(lane, Lane::default());
        Ok(())
    }

    /// A lane is closed and stores nothing any more.
    pub fn close_lane(&mut self, lane: LaneId) {
        self.lanes.remove(&lane);
    }

    /// How many lanes are open.
    #[must_use]
    pub fn lane_count(&self) -> usize {
        self.lanes.len()
    }

    /// A frame names a transfer and the oldest that has not ended.
    ///
    /// # Errors
    /// [`Violation`] when these cannot be: the lane is to be closed.
    pub fn observe(&mut self, transfer: TransferId, floor: TransferId) -> Result<(), Violation> {
        if floor > self.floor {
            self.floor = floor;
            self.cancelled = self.cancelled.split_off(&floor);
            self.delivered = self.delivered.split_off(&floor);
        }
        if transfer.0 >= self.floor.0.saturating_add(limits::TRANSFER_SPREAD) {
            let (floor, limit) = (self.floor, limits::TRANSFER_SPREAD);
            return Err(Violation::Spread { transfer, floor, limit });
        }
        Ok(())
    }

    /// Whether bytes of a transfer that come on a lane may be stored, or sent, now.
    ///
    /// # Errors
    /// The refusal that the initiator is told.
    pub fn check(&self, lane: LaneId, transfer: TransferId) -> Result<(), Status> {
        let fenced = self.lanes.get(&lane).is_none_or(|lane| lane.fenced);
        if fenced || transfer < self.floor || self.cancelled.contains(&transfer) {
            return Err(Status::Cancelled);
        }
        Ok(())
    }

    /// Nothing more of a transfer is stored.
    pub fn cancel(&mut self, transfer: TransferId) {
        if transfer >= self.floor
            && transfer.0 < self.floor.0.saturating_add(limits::TRANSFER_SPREAD)
        {
            self.cancelled.insert(transfer);
        }
    }

    /// Nothing more that a lane carries is stored. A lane that is not open stores nothing already.
    pub fn fence_lane(&mut self, lane: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.fenced = true;
        }
    }

    /// The payload of a slice begins to come on a lane.
    ///
    /// # Errors
    /// [`Status::InUse`] while the same slice is on its way already: an honest initiator has the lane
    /// fenced that carried it before it repeats it.
    pub fn begin_landing(
        &mut self,
        lane: LaneId,
        transfer: TransferId,
        slice: u32,
    ) -> Result<(), Status> {
        if self.lands(|_, landing| landing == (transfer, slice)) {
            return Err(Status::InUse);
        }
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.landings.push((transfer, slice));
        }
        Ok(())
    }

    /// A slice on a lane is whole, stored or dropped.
    pub fn end_landing(&mut self, lane: LaneId, transfer: TransferId, slice: u32) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.landings.retain(|landing| *landing != (transfer, slice));
        }
    }

    fn lands(&self, is_it: impl Fn(LaneId, (TransferId, u32)) -> bool) -> bool {
        let lanes = self.lanes.iter().filter(|(_, lane)| !lane.fenced);
        let mut landings =
            lanes.flat_map(|(id, lane)| lane.landings.iter().map(|landing| (*id, *landing)));
        landings.any(|(lane, landing)| is_it(lane, landing))
    }

    /// Whether a transfer's notification that came on a lane may be delivered now.
    ///
    /// # Errors
    /// The refusal that the initiator is told: that of [`Inbound::check`], or [`Status::InUse`]
    /// while a slice of the transfer is on its way: another than the one that it came with, if it
    /// rides with one.
    pub fn check_notification(
        &self,
        lane: LaneId,
        transfer: TransferId,
        rides_with: Option<u32>,
    ) -> Result<(), Status> {
        self.check(lane, transfer)?;
        let is_its_own = |on, slice| on == lane && rides_with == Some(slice);
        if self.lands(|on, (landing, slice)| landing == transfer && !is_its_own(on, slice)) {
            return Err(Status::InUse);
        }
        Ok(())
    }

    /// Whether a transfer's notification was delivered: then all of its data was in place, and the
    /// memory may be somebody else's by now. What comes of it is a repeat.
    #[must_use]
    pub fn is_delivered(&self, transfer: TransferId) -> bool {
        self.delivered.contains(&transfer)
    }

    /// A transfer's notification was delivered.
    pub fn delivered(&mut self, transfer: TransferId) {
        self.delivered.insert(transfer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANE: LaneId = LaneId(1);

    fn inbound() -> Inbound {
        let mut inbound = Inbound::new(4);
        inbound.open_lane(LANE).unwrap();
        inbound
    }

    #[test]
    fn what_is_cancelled_fenced_or_over_is_refused() {
        let mut inbound = inbound();
        let transfer = TransferId(7);
        inbound.observe(transfer, TransferId(5)).unwrap();
        assert_eq!(inbound.check(LANE, transfer), Ok(()));
        assert_eq!(inbound.check(LANE, TransferId(4)), Err(Status::Cancelled));
        inbound.cancel(transfer);
        assert_eq!(inbound.check(LANE, transfer), Err(Status::Cancelled));
        assert_eq!(inbound.check(LANE, TransferId(8)), Ok(()));
        inbound.fence_lane(LANE);
        assert_eq!(inbound.check(LANE, TransferId(8)), Err(Status::Cancelled));
        assert_eq!(inbound.check(LaneId(9), TransferId(8)), Err(Status::Cancelled));
    }

    #[test]
    fn an_id_is_in_use_while_something_of_it_is_on_its_way_on_a_lane_that_is_not_fenced() {
        let mut inbound = inbound();
        let (transfer, other) = (TransferId(7), LaneId(2));
        inbound.open_lane(other).unwrap();
        inbound.begin_landing(LANE, transfer, 0).unwrap();
        assert_eq!(inbound.begin_landing(other, transfer, 0), Err(Status::InUse));
        assert_eq!(inbound.begin_landing(LANE, transfer, 0), Err(Status::InUse));
        assert_eq!(inbound.check_notification(other, transfer, None), Err(Status::InUse));
        assert_eq!(inbound.check_notification(LANE, transfer, None), Err(Status::InUse));
        let riding = inbound.check_notification(LANE, transfer, Some(0));
        assert_eq!(riding, Ok(()), "it rides with the slice");
        inbound.begin_landing(other, transfer, 1).unwrap();
        let riding = inbound.check_notification(LANE, transfer, Some(0));
        assert_eq!(riding, Err(Status::InUse));
        inbound.end_landing(other, transfer, 1);
        inbound.begin_landing(other, TransferId(8), 0).unwrap();
        assert_eq!(inbound.check_notification(LANE, TransferId(8), None), Err(Status::InUse));
        inbound.fence_lane(other);
        assert_eq!(inbound.check_notification(LANE, TransferId(8), None), Ok(()));
        inbound.fence_lane(LANE);
        assert_eq!(inbound.check(LANE, transfer), Err(Status::Cancelled));
        inbound.begin_landing(other, transfer, 0).unwrap();
    }

    #[test]
    fn a_notification_is_delivered_once() {
        let mut inbound = inbound();
        let transfer = TransferId(3);
        assert!(!inbound.is_delivered(transfer));
        inbound.delivered(transfer);
        assert!(inbound.is_delivered(transfer));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut inbound = inbound();
        for id in limits::TRANSFER_SPREAD - 1000..limits::TRANSFER_SPREAD + 1000 {
            inbound.cancel(TransferId(id));
        }
        assert_eq!(inbound.cancelled.len(), 1000);
        let ahead = TransferId(limits::TRANSFER_SPREAD);
        assert!(inbound.observe(ahead, TransferId(0)).is_err());
        inbound.observe(ahead, TransferId(1)).unwrap();
        let beyond = TransferId(limits::TRANSFER_SPREAD + 5);
        inbound.observe(beyond, beyond).unwrap();
        assert!(inbound.cancelled.is_empty());
    }

    #[test]
    fn lanes_are_bounded_and_never_used_twice_at_once() {
        let mut inbound = inbound();
        assert_eq!(inbound.open_lane(LANE), Err(Refusal::LaneReused));
        for lane in 2..5 {
            inbound.open_lane(LaneId(lane)).unwrap();
        }
        assert_eq!(inbound.open_lane(LaneId(9)), Err(Refusal::TooManyLanes));
        inbound.close_lane(LANE);
        inbound.open_lane(LaneId(9)).unwrap();
    }
}
