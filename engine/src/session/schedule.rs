//! What is started next: a handshake, lanes, controls, slices.

use std::time::Instant;

use kvferry_proto::frame::Control;
use kvferry_proto::{LaneId, TransferId};

use super::{Action, Link, Session};

impl<T: Clone> Session<T> {
    /// Starts whatever can be started.
    pub(super) fn pump(&mut self, now: Instant) {
        match self.link {
            Link::Down { retry_at } => {
                if self.has_work() && retry_at.is_none_or(|at| at <= now) {
                    self.link = Link::Shaking;
                    self.actions.push_back(Action::Handshake);
                }
            }
            Link::Up { .. } => {
                if self.wants_lanes(now) {
                    self.open_wanted(now);
                }
                if self.transfers.is_empty() {
                    // What is adrift of ended transfers is nobody's any more.
                    self.lost.clear();
                }
                self.send_controls();
                self.post_slices();
                self.close_leaving();
            }
            Link::Shaking | Link::Closed => {}
        }
    }

    pub(super) fn has_work(&self) -> bool {
        self.wanted || !self.transfers.is_empty()
    }

    /// Whether nothing was asked of it for so long that its lanes close. One that only comes up then
    /// brings no others back: they would close and open in turn for ever.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.transfers.is_empty() && now >= self.used + self.settings.idle_after
    }

    /// Lanes are wanted while there is work, and stay until the session rests.
    fn wants_lanes(&self, now: Instant) -> bool {
        self.has_work() || (self.lanes.up().next().is_some() && !self.is_idle(now))
    }

    fn send_controls(&mut self) {
        let Some(lane) = self.lanes.control() else { return };
        for (lost, asked) in &mut self.lost {
            if asked.is_none() {
                *asked = Some(lane);
                let control = Control::FenceLane { lane: *lost };
                self.actions.push_back(Action::Send { lane, control });
            }
        }
        let floor = self.transfers.floor();
        while let Some(id) = self.to_fence.pop_front() {
            let Some(entry) = self.transfers.get_mut(id) else { continue };
            if entry.transfer.wants_fence() {
                entry.transfer.fence_sent(lane);
                let control = Control::Cancel { transfer: id, floor };
                self.actions.push_back(Action::Send { lane, control });
            }
        }
        while let Some(id) = self.to_notify.pop_front() {
            let Some(entry) = self.transfers.get_mut(id) else { continue };
            if entry.transfer.wants_notify() {
                entry.transfer.notify_sent(lane);
                let token = entry.token.clone();
                self.actions.push_back(Action::Notify { lane, transfer: id, floor, token });
            }
        }
    }

    fn post_slices(&mut self) {
        let window = self.settings.window_bytes;
        while let Some(id) = self.small.front().copied() {
            let Some(lane) = self.lanes.express(window) else { break };
            self.small.pop_front();
            if self.post(id, lane) {
                self.small.push_front(id);
            }
        }
        while let Some(id) = self.bulk.front().copied() {
            let Some(lane) = self.lanes.least_loaded(window) else { break };
            self.bulk.pop_front();
            // The next slice of this transfer waits for one of each other.
            if self.post(id, lane) {
                self.bulk.push_back(id);
            }
        }
    }

    /// A transfer has slices to be posted again.
    pub(super) fn queue(&mut self, id: TransferId) {
        if let Some(entry) = self.transfers.get_mut(id)
            && !std::mem::replace(&mut entry.queued, true)
        {
            self.bulk.push_back(id);
        }
    }

    /// Posts one slice. Returns whether the transfer has more of them.
    fn post(&mut self, id: TransferId, lane: LaneId) -> bool {
        let floor = self.transfers.floor();
        let Some(entry) = self.transfers.get_mut(id) else { return false };
        let posted = entry.transfer.post(lane);
        let more = entry.transfer.has_queued();
        entry.queued = more;
        let Some(slice) = posted else { return false };
        let bytes = entry.transfer.bytes_of(slice);
        // Answers may be sent together, but never so late that a window runs dry, and the last of
        // a transfer at once.
        let due = self.lanes.load(lane, bytes) >= self.settings.window_bytes / 4;
        let answer_now = due || !more;
        if answer_now {
            self.lanes.answer_due(lane);
        }
        let (transfer, token) = (id, entry.token.clone());
        self.actions.push_back(Action::Post { lane, transfer, slice, answer_now, floor, token });
        more
    }
}
