//! Read slices that have landed, of which their sources are told together.
//!
//! A source that is told of each by itself, and answers each, never sleeps: its looking for the next
//! takes from the copy, where both share cores. So a slice that has landed is said when its lane has
//! nothing more to deal with, or a quarter of a window has landed: never so late that a window runs dry.

use std::collections::BTreeMap;

use kvferry_proto::frame::Control;
use kvferry_proto::{LaneId, TransferId};

use super::{Action, Session};

/// What one lane's source has not been told.
#[derive(Debug, Default)]
struct OfLane {
    slices: Vec<(TransferId, u32)>,
    bytes: u64,
}

/// What sources have not been told, by the lane that it came on.
#[derive(Debug, Default)]
pub(super) struct Unsaid(BTreeMap<LaneId, OfLane>);

impl Unsaid {
    /// What came on a lane is not said any more: the lane is gone, and it is asked for again.
    pub(super) fn forget(&mut self, lane: LaneId) {
        self.0.remove(&lane);
    }
}

impl<T: Clone> Session<T> {
    /// A slice of so many bytes has landed, whose source waits to hear that.
    pub(super) fn note_landed(
        &mut self,
        lane: LaneId,
        transfer: TransferId,
        slice: u32,
        bytes: u32,
    ) {
        let unsaid = self.unsaid.0.entry(lane).or_default();
        unsaid.slices.push((transfer, slice));
        unsaid.bytes += u64::from(bytes);
        if unsaid.bytes >= self.settings.window_bytes / 4 {
            self.on_lane_idle(lane);
        }
    }

    /// Whether [`Session::on_lane_idle`] has something to say on a lane.
    #[must_use]
    pub fn has_unsaid(&self, lane: LaneId) -> bool {
        self.unsaid.0.contains_key(&lane)
    }

    /// Nothing more can be dealt with on a lane now: the source is told of what has landed.
    pub fn on_lane_idle(&mut self, lane: LaneId) {
        let Some(unsaid) = self.unsaid.0.remove(&lane) else { return };
        for (transfer, slice) in unsaid.slices {
            // What has ended meanwhile has nobody who waits for the answer.
            if self.transfers.get(transfer).is_some() {
                let control = Control::Landed { transfer, slice };
                self.actions.push_back(Action::Send { lane, control });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use kvferry_proto::Incarnation;
    use kvferry_proto::frame::{Reply, Status};

    use super::*;
    use crate::net::Endpoint;
    use crate::session::Settings;
    use crate::transfer::{Op, Spec};

    const SLICE: u32 = 1000;

    /// A session whose one bulk lane carries a read of so many slices.
    struct Reading {
        session: Session<()>,
        now: Instant,
        lane: LaneId,
        transfer: TransferId,
    }

    impl Reading {
        fn of(slices: usize) -> Self {
            let now = Instant::now();
            let settings = Settings {
                window_bytes: u64::from(SLICE) * 16,
                small_bytes: 0,
                ..Settings::default()
            };
            let mut session = Session::new(Endpoint::new("source", 1), settings, now);
            let spec = Spec {
                op: Op::Read,
                slice_bytes: vec![SLICE; slices],
                notifies: false,
                by_reference: true,
                begun: now,
                deadline: now + Duration::from_secs(10),
            };
            let incarnation = Incarnation(1);
            let transfer = session.submit(now, incarnation, spec, ()).unwrap();
            session.on_handshake(now, Ok(incarnation));
            let mut reading = Self { session, now, lane: LaneId(0), transfer };
            reading.lane = reading.open_lanes().unwrap();
            reading
        }

        /// Opens what is asked for, and says which lane is for bulk.
        fn open_lanes(&mut self) -> Option<LaneId> {
            let mut bulk = None;
            for action in self.session.take_actions() {
                if let Action::OpenLane { lane, .. } = action {
                    self.session.on_lane_up(self.now, lane);
                    bulk = Some(lane);
                }
            }
            bulk
        }

        fn lands(&mut self, slice: u32) {
            let Self { session, now, lane, transfer } = self;
            session.on_landed(*now, *lane, *transfer, slice, Ok(()));
        }

        fn hears(&mut self, slice: u32, status: Status) {
            let Self { session, now, lane, transfer } = self;
            let reply = Reply::Held { transfer: *transfer, slice, status };
            session.on_reply(*now, *lane, reply);
        }

        /// What sources were told since this was asked last, by lane.
        fn said(&mut self) -> Vec<(LaneId, u32)> {
            let actions = self.session.take_actions();
            let said = actions.into_iter().filter_map(|action| match action {
                Action::Send { lane, control: Control::Landed { slice, .. } } => {
                    Some((lane, slice))
                }
                _ => None,
            });
            said.collect()
        }
    }

    #[test]
    fn slices_that_have_landed_are_said_together_and_once_when_nothing_more_can_be_done() {
        let mut reading = Reading::of(3);
        let lane = reading.lane;
        for slice in 0..3 {
            reading.lands(slice);
            reading.hears(slice, Status::HeldUntilLanded);
            // Once more is no reason to say it twice.
            reading.hears(slice, Status::HeldUntilLanded);
        }
        assert!(reading.session.has_unsaid(lane));
        assert_eq!(reading.said(), []);
        reading.session.on_lane_idle(lane);
        assert_eq!(reading.said(), [(lane, 0), (lane, 1), (lane, 2)]);
        assert!(!reading.session.has_unsaid(lane));
        reading.session.on_lane_idle(lane);
        assert_eq!(reading.said(), []);
        for slice in 0..3 {
            reading.hears(slice, Status::Done);
        }
        assert_eq!(reading.session.open_transfers(), 0);
    }

    #[test]
    fn what_is_found_idle_before_the_last_has_landed_leaves_that_to_the_next_time() {
        let mut reading = Reading::of(2);
        let lane = reading.lane;
        reading.lands(0);
        reading.session.on_lane_idle(lane);
        assert_eq!(reading.said(), []);
        reading.hears(0, Status::HeldUntilLanded);
        assert!(reading.session.has_unsaid(lane));
        reading.session.on_lane_idle(lane);
        assert_eq!(reading.said(), [(lane, 0)]);
    }

    #[test]
    fn a_quarter_of_a_window_is_said_while_there_is_more_to_do() {
        let mut reading = Reading::of(6);
        let lane = reading.lane;
        for slice in 0..6 {
            reading.lands(slice);
            reading.hears(slice, Status::HeldUntilLanded);
        }
        assert_eq!(reading.said(), [(lane, 0), (lane, 1), (lane, 2), (lane, 3)]);
        reading.session.on_lane_idle(lane);
        assert_eq!(reading.said(), [(lane, 4), (lane, 5)]);
    }

    #[test]
    fn what_landed_by_a_lane_that_is_lost_is_asked_for_again_and_not_said_on_another() {
        let mut reading = Reading::of(1);
        let lost = reading.lane;
        reading.lands(0);
        reading.hears(0, Status::HeldUntilLanded);
        reading.session.on_lane_down(reading.now, lost, None);
        reading.session.on_lane_idle(lost);
        reading.lane = reading.open_lanes().unwrap();
        assert_ne!(reading.lane, lost);
        assert_eq!(reading.said(), []);
        reading.lands(0);
        reading.hears(0, Status::HeldUntilLanded);
        reading.session.on_lane_idle(reading.lane);
        assert_eq!(reading.said(), [(reading.lane, 0)]);
    }

    #[test]
    fn nobody_is_told_of_what_has_ended() {
        let mut reading = Reading::of(1);
        reading.lands(0);
        reading.hears(0, Status::HeldUntilLanded);
        reading.session.fail(reading.now, reading.transfer, crate::Error::Cancelled);
        reading.session.on_lane_idle(reading.lane);
        assert_eq!(reading.said(), []);
    }
}
