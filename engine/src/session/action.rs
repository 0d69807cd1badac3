//! What a session asks its driver to do.

use kvferry_proto::frame::Control;
use kvferry_proto::{LaneId, TransferId};

use super::Means;
use crate::error::Error;
use crate::transfer::Outcome;

/// What has to be done. `T` is whatever the driver attached to the transfer.
#[derive(Debug)]
pub enum Action<T> {
    /// Start a handshake; [`Session::on_handshake`](super::Session::on_handshake) takes the answer, or that there was none.
    Handshake,
    /// The peer is there: the first lane is open after a handshake.
    Connected,
    /// The peer is gone, for this cause where one is known: nothing that was remembered about it
    /// is valid any more.
    Forget(Option<Error>),
    /// Open a lane; [`Session::on_lane_up`](super::Session::on_lane_up) or [`Session::on_lane_down`](super::Session::on_lane_down) follows.
    OpenLane {
        /// Which.
        lane: LaneId,
        /// By what.
        means: Means,
    },
    /// Close a lane; [`Session::on_lane_down`](super::Session::on_lane_down) follows.
    CloseLane {
        /// Which.
        lane: LaneId,
        /// Drop what is queued, and have the target drop what it has not stored.
        reset: bool,
    },
    /// Post a slice on a lane.
    Post {
        /// The lane.
        lane: LaneId,
        /// The transfer.
        transfer: TransferId,
        /// The slice.
        slice: u32,
        /// Its answer must not be held back.
        answer_now: bool,
        /// The oldest transfer that has not ended.
        floor: TransferId,
        /// The transfer's attachment.
        token: T,
    },
    /// Send something without a payload on a lane.
    Send {
        /// The lane.
        lane: LaneId,
        /// What.
        control: Control,
    },
    /// Send a transfer's notification on a lane.
    Notify {
        /// The lane.
        lane: LaneId,
        /// The transfer.
        transfer: TransferId,
        /// The oldest transfer that has not ended.
        floor: TransferId,
        /// The transfer's attachment.
        token: T,
    },
    /// A transfer is over: fence its memory here, then tell its caller.
    End {
        /// The transfer.
        transfer: TransferId,
        /// How it ended.
        outcome: Outcome,
        /// How many slices were posted more than once.
        repeated: u32,
        /// The transfer's attachment.
        token: T,
    },
}
