//! One transfer from the initiator's side, as a state machine: slices, acknowledgements, cancel,
//! deadline, fence and failover. It reads no clock, draws no randomness, and does no I/O: it is told
//! what happened and says what has to be done.
//!
//! ```text
//!              all slices done            notification taken
//!   Moving ----------------------> Notifying ---------------> Done
//!     |                                |
//!     | refusal, cancel, cut, ...      | the same
//!     v                                v
//!   Fencing --- the target confirms, or nothing is out any more ---> Failed (Fenced)
//!     |
//!     +-------- the deadline passes ------------------------------> Failed (Unknown)
//! ```
//!
//! Only writes are fenced: a read stores nothing at the peer, and its own memory is fenced by
//! whoever drives this, when the end is reported.

pub(crate) mod cargo;
mod terms;

use std::collections::VecDeque;
use std::time::Instant;

use kvferry_proto::LaneId;
use kvferry_proto::frame::Status;

use crate::error::{Error, Remote};

pub use terms::{Op, Outcome, Spec, Step};

/// What is known of one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slice {
    /// To be posted.
    Queued,
    /// On its way on a lane. A read slice is done when it has landed here and the source has said
    /// that it was held: by itself, or `asked` when it has landed.
    Posted { lane: LaneId, landed: bool, held: bool, asked: bool },
    /// Its lane is lost, and the target may still store what that lane carried.
    Adrift { lane: LaneId },
    /// Nothing is left to do for it.
    Done,
}

#[derive(Debug)]
enum Phase {
    Moving,
    Notifying { lane: Option<LaneId>, retry: bool },
    Fencing { cause: Error, lane: Option<LaneId> },
}

/// A transfer under way.
#[derive(Debug)]
pub struct TransferState {
    op: Op,
    slice_bytes: Vec<u32>,
    slices: Vec<Slice>,
    /// The first slice that was never posted.
    fresh: u32,
    /// Slices that have to be posted again.
    again: VecDeque<u32>,
    /// Slices that are not done.
    open: u32,
    /// Slices posted or adrift: a write's bytes may still land through them.
    out: u32,
    repeated: u32,
    touched: bool,
    phase: Phase,
    notifies: bool,
    by_reference: bool,
    begun: Instant,
    deadline: Instant,
}

impl TransferState {
    /// A transfer whose slices are all to be posted. One without slices begins with its
    /// notification.
    #[must_use]
    pub fn new(spec: Spec) -> Self {
        // A plan has at most 2^32 slices.
        let open = u32::try_from(spec.slice_bytes.len()).unwrap_or(u32::MAX);
        let mut transfer = Self {
            op: spec.op,
            slices: vec![Slice::Queued; spec.slice_bytes.len()],
            slice_bytes: spec.slice_bytes,
            fresh: 0,
            again: VecDeque::new(),
            open,
            out: 0,
            repeated: 0,
            touched: false,
            phase: Phase::Moving,
            notifies: spec.notifies,
            by_reference: spec.by_reference,
            begun: spec.begun,
            deadline: spec.deadline,
        };
        if open == 0 {
            transfer.phase = Phase::Notifying { lane: None, retry: false };
        }
        transfer
    }

    /// Which way the bytes go.
    #[must_use]
    pub fn op(&self) -> Op {
        self.op
    }

    /// When it began.
    #[must_use]
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// When it ends at the latest.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The payload bytes of a slice.
    #[must_use]
    pub fn bytes_of(&self, slice: u32) -> u32 {
        self.slice_bytes.get(slice as usize).copied().unwrap_or(0)
    }

    /// How many slices were posted more than once.
    #[must_use]
    pub fn repeated(&self) -> u32 {
        self.repeated
    }

    /// Whether the notification rides with the data: a write of a single slice that carries it.
    #[must_use]
    pub fn notifies_inline(&self) -> bool {
        self.op == Op::Write && self.slices.len() == 1 && self.notifies && !self.by_reference
    }

    /// Whether a slice waits to be posted.
    #[must_use]
    pub fn has_queued(&self) -> bool {
        matches!(self.phase, Phase::Moving)
            && (!self.again.is_empty() || (self.fresh as usize) < self.slices.len())
    }

    /// Whether a notification waits to be sent.
    #[must_use]
    pub fn wants_notify(&self) -> bool {
        matches!(self.phase, Phase::Notifying { lane: None, retry: false })
    }

    /// Whether the notification was not taken and has to be sent again after a while.
    #[must_use]
    pub fn wants_retry(&self) -> bool {
        matches!(self.phase, Phase::Notifying { retry: true, .. })
    }

    /// Whether the target has still to be told to fence.
    #[must_use]
    pub fn wants_fence(&self) -> bool {
        matches!(self.phase, Phase::Fencing { lane: None, .. })
    }

    /// Whether nothing is left to do for a slice.
    #[must_use]
    pub fn is_done(&self, slice: u32) -> bool {
        self.slices.get(slice as usize) == Some(&Slice::Done)
    }

    /// The slices that are on their way: lane and bytes of each.
    pub fn posted(&self) -> impl Iterator<Item = (LaneId, u32)> + '_ {
        self.slices.iter().zip(&self.slice_bytes).filter_map(|(slice, bytes)| match slice {
            Slice::Posted { lane, .. } => Some((*lane, *bytes)),
            _ => None,
        })
    }

    /// Whether the payload of a read slice is to come on a lane.
    #[must_use]
    pub fn awaits(&self, lane: LaneId, slice: u32) -> bool {
        let awaited = |slice: &Slice| matches!(slice, Slice::Posted { lane: on, landed: false, .. } if *on == lane);
        self.op == Op::Read && self.slices.get(slice as usize).is_some_and(awaited)
    }

    /// The lanes that slices of a write are out on: what has to be reset so that the target drops
    /// them when it cannot be asked.
    pub fn lanes_out(&self) -> impl Iterator<Item = LaneId> + '_ {
        let notification = match self.phase {
            Phase::Notifying { lane, .. } => lane,
            _ => None,
        };
        let writes = self.posted().filter(|_| self.op == Op::Write).map(|(lane, _)| lane);
        writes.chain(notification)
    }

    /// Takes the next slice to be posted, on `lane`.
    pub fn post(&mut self, lane: LaneId) -> Option<u32> {
        if !self.has_queued() {
            return None;
        }
        let slice = match self.again.pop_front() {
            Some(slice) => slice,
            None => {
                self.fresh += 1;
                self.fresh - 1
            }
        };
        self.slices[slice as usize] =
            Slice::Posted { lane, landed: false, held: false, asked: false };
        self.out += 1;
        self.touched = true;
        Some(slice)
    }

    /// The notification was sent on `lane`.
    pub fn notify_sent(&mut self, lane: LaneId) {
        if let Phase::Notifying { lane: sent, retry } = &mut self.phase {
            (*sent, *retry) = (Some(lane), false);
            self.touched = true;
        }
    }

    /// The target was told to fence, on `lane`.
    pub fn fence_sent(&mut self, lane: LaneId) {
        if let Phase::Fencing { lane: sent, .. } = &mut self.phase {
            *sent = Some(lane);
        }
    }

    /// The target says how a slice that it was sent on `lane` ended.
    pub fn on_ack(&mut self, lane: LaneId, slice: u32, status: Status) -> Step {
        if self.op != Op::Write || !self.is_out_on(slice, lane) {
            return Step::Stale;
        }
        let renotify = status == Status::Backpressure && self.notifies_inline();
        if status != Status::Done && !renotify {
            return self.refused(slice, refusal(slice, status));
        }
        self.finish(slice);
        if let Phase::Fencing { .. } = self.phase {
            return self.fenced_if_nothing_is_out();
        }
        if self.open > 0 {
            return Step::Nothing;
        }
        if renotify {
            self.phase = Phase::Notifying { lane: None, retry: true };
            return Step::Nothing;
        }
        if self.notifies_inline() { Step::End(Outcome::Done) } else { self.moved() }
    }

    /// The payload of a read slice is in place here, or why it is not.
    pub fn on_landed(&mut self, lane: LaneId, slice: u32, landed: Result<(), Error>) -> Step {
        if self.op != Op::Read {
            return Step::Stale;
        }
        match self.slices.get_mut(slice as usize) {
            Some(Slice::Posted { lane: posted, landed: mark, held, .. }) if *posted == lane => {
                match landed {
                    Err(error) => self.refused(slice, error),
                    Ok(()) if *held => self.held(slice),
                    Ok(()) => {
                        *mark = true;
                        Step::Nothing
                    }
                }
            }
            _ => Step::Stale,
        }
    }

    /// The source of a read slice says whether it was held.
    pub fn on_held(&mut self, lane: LaneId, slice: u32, status: Status) -> Step {
        if self.op != Op::Read {
            return Step::Stale;
        }
        match self.slices.get_mut(slice as usize) {
            Some(Slice::Posted { lane: posted, landed, held, asked }) if *posted == lane => {
                match (status, *landed) {
                    (Status::Done, true) => self.held(slice),
                    (Status::Done, false) => {
                        // The payload is still on its way through this process.
                        *held = true;
                        Step::Nothing
                    }
                    (Status::HeldUntilLanded, true) if !*asked => {
                        *asked = true;
                        Step::SayLanded(slice)
                    }
                    (Status::HeldUntilLanded, _) => Step::Stale,
                    // It was taken in part, or after it had changed.
                    (status, true) => self.refused(slice, Error::SourceReleased { status }),
                    (status, false) => self.refused(slice, refusal(slice, status)),
                }
            }
            _ => Step::Stale,
        }
    }

    fn held(&mut self, slice: u32) -> Step {
        self.finish(slice);
        if self.open > 0 { Step::Nothing } else { self.moved() }
    }

    /// All data is in place.
    fn moved(&mut self) -> Step {
        if !self.notifies {
            return Step::End(Outcome::Done);
        }
        self.phase = Phase::Notifying { lane: None, retry: false };
        Step::Notify
    }

    /// The target says how the notification ended.
    pub fn on_notified(&mut self, status: Status) -> Step {
        match (&mut self.phase, status) {
            (Phase::Notifying { lane: Some(_), .. }, Status::Done) => Step::End(Outcome::Done),
            (Phase::Notifying { lane: sent @ Some(_), retry }, Status::Backpressure) => {
                (*sent, *retry) = (None, true);
                Step::Nothing
            }
            (Phase::Notifying { lane: sent @ Some(_), .. }, status) => {
                *sent = None;
                self.fail(Error::Refused { slice: 0, status })
            }
            // It was delivered before the fence: all that was asked for is true.
            (Phase::Fencing { .. }, Status::Done) if self.open == 0 => Step::End(Outcome::Done),
            _ => Step::Stale,
        }
    }

    /// The notification may be sent again now.
    pub fn retry_notify(&mut self) -> Step {
        if let Phase::Notifying { retry: retry @ true, .. } = &mut self.phase {
            *retry = false;
            return Step::Notify;
        }
        Step::Stale
    }

    /// The target confirms that nothing more of this transfer can land.
    pub fn on_fenced(&mut self) -> Step {
        match &self.phase {
            Phase::Fencing { cause, .. } => {
                Step::End(Outcome::Failed(cause.clone(), Remote::Fenced))
            }
            _ => Step::Stale,
        }
    }

    /// A lane is lost. Returns whether slices of a write are adrift: the lane has to be fenced at
    /// the target before they can be posted again.
    pub fn on_lane_lost(&mut self, lost: LaneId) -> bool {
        let mut adrift = false;
        for index in 0..self.slices.len() {
            let Slice::Posted { lane, .. } = self.slices[index] else { continue };
            if lane != lost {
                continue;
            }
            // `slices` is as long as `slice_bytes`, whose length fits.
            let slice = u32::try_from(index).unwrap_or(u32::MAX);
            if self.op == Op::Write {
                self.slices[index] = Slice::Adrift { lane };
                adrift = true;
            } else {
                self.requeue(slice);
            }
        }
        match &mut self.phase {
            Phase::Notifying { lane, .. } | Phase::Fencing { lane, .. } if *lane == Some(lost) => {
                *lane = None;
            }
            _ => {}
        }
        adrift
    }

    /// The target confirms that nothing more that a lost lane carried can land.
    pub fn on_lane_fenced(&mut self, fenced: LaneId) -> Step {
        let fencing = matches!(self.phase, Phase::Fencing { .. });
        let mut step = Step::Stale;
        for index in 0..self.slices.len() {
            if self.slices[index] != (Slice::Adrift { lane: fenced }) {
                continue;
            }
            let slice = u32::try_from(index).unwrap_or(u32::MAX);
            if fencing {
                self.finish(slice);
            } else {
                self.requeue(slice);
            }
            step = Step::Post;
        }
        if fencing { self.fenced_if_nothing_is_out() } else { step }
    }

    /// Makes it fail: at once when nothing can land any more, after a fence otherwise.
    pub fn fail(&mut self, cause: Error) -> Step {
        if let Phase::Fencing { .. } = self.phase {
            return Step::Stale;
        }
        self.again.clear();
        // The target may be about to deliver it.
        let notifying = matches!(self.phase, Phase::Notifying { lane: Some(_), .. });
        if !notifying && (self.op == Op::Read || self.out == 0) {
            let remote = if self.touched { Remote::Fenced } else { Remote::Untouched };
            return Step::End(Outcome::Failed(cause, remote));
        }
        self.phase = Phase::Fencing { cause, lane: None };
        Step::Fence
    }

    /// Makes it fail now: the peer cannot be asked, or the time is over.
    #[must_use]
    pub fn give_up(&mut self, cause: Error) -> Outcome {
        let all_moved = self.open == 0;
        let (cause, may_be_told) = match &self.phase {
            Phase::Fencing { cause, .. } => (cause.clone(), all_moved),
            Phase::Notifying { lane, .. } => (cause, lane.is_some()),
            Phase::Moving => (cause, false),
        };
        let remote = match (self.op, self.out, self.touched) {
            (_, _, false) => Remote::Untouched,
            _ if may_be_told => Remote::Unknown,
            (Op::Read, _, true) | (Op::Write, 0, true) => Remote::Fenced,
            (Op::Write, _, true) => Remote::Unknown,
        };
        Outcome::Failed(cause, remote)
    }

    /// The deadline has passed.
    #[must_use]
    pub fn time_out(&mut self) -> Outcome {
        let after = self.deadline.saturating_duration_since(self.begun);
        self.give_up(Error::Deadline { after })
    }

    fn refused(&mut self, slice: u32, cause: Error) -> Step {
        self.finish(slice);
        if let Phase::Fencing { .. } = self.phase {
            return self.fenced_if_nothing_is_out();
        }
        self.fail(cause)
    }

    fn fenced_if_nothing_is_out(&self) -> Step {
        match &self.phase {
            // With nothing open it is the notification that is to be fenced.
            Phase::Fencing { cause, .. } if self.out == 0 && self.open > 0 => {
                Step::End(Outcome::Failed(cause.clone(), Remote::Fenced))
            }
            _ => Step::Nothing,
        }
    }

    fn is_out_on(&self, slice: u32, on: LaneId) -> bool {
        matches!(self.slices.get(slice as usize), Some(Slice::Posted { lane, .. }) if *lane == on)
    }

    fn finish(&mut self, slice: u32) {
        self.slices[slice as usize] = Slice::Done;
        self.open -= 1;
        self.out -= 1;
    }

    fn requeue(&mut self, slice: u32) {
        self.slices[slice as usize] = Slice::Queued;
        self.out -= 1;
        self.repeated += 1;
        self.again.push_back(slice);
    }
}

/// Why a slice was refused by its owner.
fn refusal(slice: u32, status: Status) -> Error {
    match status {
        Status::ChecksumMismatch => Error::ChecksumMismatch { slice },
        Status::RdmaOnly => {
            let reason = format!(
                "the peer was asked for slice {slice} in another way, or its adapter does not reach it"
            );
            Error::RdmaOnly { reason: reason.into() }
        }
        status => Error::Refused { slice, status },
    }
}
