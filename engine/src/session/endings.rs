//! How transfers go on and end: their steps followed, their lanes unloaded.

use std::collections::BTreeSet;
use std::time::Instant;

use kvferry_proto::frame::Control;
use kvferry_proto::{LaneId, TransferId};

use super::table::Entry;
use super::{Action, Session};
use crate::error::{Error, Remote};
use crate::transfer::{Op, Outcome, Step, TransferState};

impl<T: Clone> Session<T> {
    /// Tells a transfer about one of its slices, and the lane that the slice is off it.
    pub(super) fn settle(
        &mut self,
        lane: LaneId,
        id: TransferId,
        slice: u32,
        event: impl FnOnce(&mut TransferState) -> Step,
    ) {
        let Some(entry) = self.transfers.get_mut(id) else {
            self.stale += 1;
            return;
        };
        let bytes = entry.transfer.bytes_of(slice);
        let was_done = entry.transfer.is_done(slice);
        let step = event(&mut entry.transfer);
        if !was_done && entry.transfer.is_done(slice) {
            self.lanes.unload(lane, bytes);
        }
        if let Step::SayLanded(slice) = step {
            return self.note_landed(lane, id, slice, bytes);
        }
        self.follow(id, step);
    }

    pub(super) fn apply(&mut self, id: TransferId, event: impl FnOnce(&mut TransferState) -> Step) {
        match self.transfers.get_mut(id) {
            Some(entry) => {
                let step = event(&mut entry.transfer);
                self.follow(id, step);
            }
            None => self.stale += 1,
        }
    }

    pub(super) fn follow(&mut self, id: TransferId, step: Step) {
        match step {
            Step::Nothing | Step::SayLanded(_) => {}
            Step::Post => self.queue(id),
            Step::Notify => self.to_notify.push_back(id),
            Step::Fence => self.to_fence.push_back(id),
            Step::End(outcome) => self.end(id, outcome),
            Step::Stale => self.stale += 1,
        }
    }

    /// The peer had no room for a notification: it is sent again after a while.
    pub(super) fn note_retry(&mut self, now: Instant, id: TransferId) {
        if self.transfers.get(id).is_some_and(|entry| entry.transfer.wants_retry()) {
            self.retries.push_back((now + self.settings.notify_retry, id));
        }
    }

    pub(super) fn on_lane_fenced(&mut self, lane: LaneId) {
        if self.lost.remove(&lane).is_none() {
            self.stale += 1;
            return;
        }
        for id in self.transfers.ids() {
            let Some(entry) = self.transfers.get_mut(id) else { continue };
            match entry.transfer.on_lane_fenced(lane) {
                Step::Stale => {}
                step => self.follow(id, step),
            }
        }
    }

    pub(super) fn time_out(&mut self, id: TransferId) {
        let Some(entry) = self.transfers.get_mut(id) else {
            self.deadlines.retain(|(_, other)| *other != id);
            return;
        };
        let begun = entry.transfer.begun();
        let out: BTreeSet<LaneId> = entry.transfer.posted().map(|(lane, _)| lane).collect();
        let outcome = entry.transfer.time_out();
        for lane in out {
            self.lanes.doubt(lane, begun, self.heard, self.settings.barren_after);
        }
        self.end_now(id, outcome);
    }

    /// Ends a transfer that its target may still be busy with.
    pub(super) fn end_now(&mut self, id: TransferId, outcome: Outcome) {
        let Some(entry) = self.transfers.get_mut(id) else { return };
        let unknown = matches!(outcome, Outcome::Failed(_, Remote::Unknown));
        let out: BTreeSet<LaneId> =
            if unknown { entry.transfer.lanes_out().collect() } else { BTreeSet::new() };
        self.end(id, outcome);
        // The target may be stopped with all of it in its socket. A reset makes it drop that.
        for lane in out {
            self.lanes.retire(lane);
            self.actions.push_back(Action::CloseLane { lane, reset: true });
        }
    }

    pub(super) fn end(&mut self, id: TransferId, outcome: Outcome) {
        let Some(entry) = self.transfers.remove(id) else { return };
        let Entry { transfer, token, .. } = entry;
        self.deadlines.remove(&(transfer.deadline(), id));
        let mut out = false;
        for (lane, bytes) in transfer.posted() {
            self.lanes.unload(lane, bytes);
            out = true;
        }
        // The owner may stop serving what nobody waits for any more.
        if out
            && transfer.op() == Op::Read
            && let Some(lane) = self.lanes.control()
        {
            let floor = self.transfers.floor();
            let control = Control::Cancel { transfer: id, floor };
            self.actions.push_back(Action::Send { lane, control });
        }
        let repeated = transfer.repeated();
        if planted!(DoubleEnd) {
            let (outcome, token) = (outcome.clone(), token.clone());
            self.actions.push_back(Action::End { transfer: id, outcome, repeated, token });
        }
        self.actions.push_back(Action::End { transfer: id, outcome, repeated, token });
    }

    pub(super) fn give_up_all(&mut self, cause: &Error) {
        for id in self.transfers.ids() {
            if let Some(entry) = self.transfers.get_mut(id) {
                let outcome = entry.transfer.give_up(cause.clone());
                self.end(id, outcome);
            }
        }
    }
}
