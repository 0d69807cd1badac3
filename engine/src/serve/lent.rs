//! Slices without a payload, between processes of one host: writes that this process copies by itself,
//! from memory that the initiator has lent, and reads whose source is held while the initiator does.

use std::collections::BTreeMap;

use kvferry_proto::TransferId;
use kvferry_proto::frame::{Sections, Status};
use kvferry_transport::lanes::{Lane, Line, Progress, Work};
use kvferry_transport::local::PeerSpans;
use kvferry_transport::memory::SpanList;
use parking_lot::Mutex;

use super::authority::{Authority, Refused};
use super::write::SliceOf;
use crate::loan::{Borrowed, Borrowings, PIECE_BYTES, Uncopied};
use crate::passage;

/// A write slice on its way from the initiator's memory into this process's.
pub(super) struct LentWrite {
    pub(super) slice: SliceOf,
    /// Why not, where the slice is refused; `Done` for a repeat.
    pub(super) target: Result<LentTarget, Status>,
    /// The initiator's memory is out of reach: it has to post the slice again.
    out_of_reach: bool,
}

impl LentWrite {
    pub(super) fn new(slice: SliceOf, target: Result<LentTarget, Status>) -> Self {
        Self { slice, target, out_of_reach: false }
    }
}

/// Why a piece of a write is not copied.
enum Halt {
    Refused(Status),
    Uncopied(Uncopied),
}

pub(super) struct LentTarget {
    pub(super) authority: Authority,
    pub(super) to: SpanList,
    pub(super) from: PeerSpans,
}

impl Work for LentWrite {
    fn step(&mut self, line: Line) -> Progress {
        let Ok(LentTarget { authority, to, from }) = &mut self.target else {
            return Progress::Over;
        };
        let copied = passage::enter(|| {
            // An initiator that has closed the lane has given up on what it asked for on it, and may
            // have told its caller so.
            if line.is_unhealthy() {
                return Err(Halt::Refused(Status::Cancelled));
            }
            authority.check().map_err(Halt::Refused)?;
            to.copy_from(from, PIECE_BYTES).map_err(|error| Halt::Uncopied(error.into()))
        });
        match copied {
            Ok(_) if to.remaining() == 0 => {}
            Ok(copied @ 1..) => return Progress::More(copied),
            // Both sides are as long as each other, so neither ends first.
            Ok(0) | Err(Halt::Uncopied(Uncopied::Fault | Uncopied::PeerFault)) => {
                self.target = Err(Status::MemoryFault);
            }
            Err(Halt::Uncopied(Uncopied::OutOfReach)) => self.out_of_reach = true,
            Err(Halt::Refused(status)) => self.target = Err(status),
        }
        Progress::Over
    }

    fn finish(self: Box<Self>, lane: &Lane) {
        if self.out_of_reach {
            return lane.reset();
        }
        self.slice.acknowledge(lane, self.target.err().unwrap_or(Status::Done));
    }
}

/// The spans that an initiator names in what it has lent.
pub(super) fn sources(
    mut sections: Sections<'_>,
    borrowings: &Borrowings,
) -> Result<PeerSpans, Status> {
    let mut spans = PeerSpans::new();
    let mut attached = None;
    loop {
        let section = sections.next_section::<Refused>(|section, descriptor| {
            if attached != Some(section.region) {
                match borrowings.get(section.region) {
                    Some(Borrowed::Readable(memory)) => spans.attach(&memory),
                    Some(Borrowed::Unreadable) => return Err(Refused(Status::MemoryFault)),
                    None => return Err(Refused(Status::RegionGone)),
                }
                attached = Some(section.region);
            }
            let mut offset = descriptor.offset;
            for _ in 0..descriptor.count {
                let pushed = spans.push(offset, descriptor.bytes);
                pushed.map_err(|_| Refused(Status::OutOfBounds))?;
                offset = offset.wrapping_add(descriptor.stride);
            }
            Ok(())
        });
        match section {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(spans),
            Err(Refused(status)) => return Err(status),
        }
    }
}

/// How many read slices may be held on one lane until they have landed. What is above it is sent as
/// a payload.
const MOST_HELD: usize = 16_384;

/// Read slices of one lane whose source is held while the initiator copies it.
#[derive(Default)]
pub(super) struct Holds(Mutex<Held>);

#[derive(Default)]
struct Held {
    slices: BTreeMap<(TransferId, u32), (Authority, u32)>,
    /// Of all of them.
    bytes: u64,
}

impl Holds {
    /// Whether another can be held. What is held for transfers below `floor` is let go.
    pub(super) fn has_room(&self, floor: TransferId) -> bool {
        let mut held = self.0.lock();
        if held.slices.first_key_value().is_some_and(|((transfer, _), _)| *transfer < floor) {
            held.slices = held.slices.split_off(&(floor, 0));
            held.bytes = held.slices.values().map(|(_, bytes)| u64::from(*bytes)).sum();
        }
        held.slices.len() < MOST_HELD
    }

    pub(super) fn hold(&self, transfer: TransferId, slice: u32, authority: Authority, bytes: u32) {
        let mut held = self.0.lock();
        held.bytes += u64::from(bytes);
        if let Some((_, before)) = held.slices.insert((transfer, slice), (authority, bytes)) {
            held.bytes -= u64::from(before);
        }
    }

    /// A slice has landed. Whether its source was held until then: a permission that is over never
    /// comes back, so it was if it is there now.
    pub(super) fn landed(&self, transfer: TransferId, slice: u32) -> Status {
        let mut held = self.0.lock();
        match held.slices.remove(&(transfer, slice)) {
            Some((authority, bytes)) => {
                held.bytes -= u64::from(bytes);
                authority.check().err().unwrap_or(Status::Done)
            }
            None => Status::GrantGone,
        }
    }

    /// How many bytes are held.
    pub(super) fn bytes(&self) -> u64 {
        self.0.lock().bytes
    }

    /// The lane is closed.
    pub(super) fn clear(&self) {
        *self.0.lock() = Held::default();
    }
}
