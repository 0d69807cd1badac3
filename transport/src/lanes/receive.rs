//! The receiving half of a lane.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::FramePrefix;
use super::beside::RING_PAYLOAD_BYTES;
use super::lane::{
    CloseReason, Incoming, Landed, Landing, Lane, Line, Progress, Source, Store, Storer, Work,
};
use super::{later, socket};
use crate::descriptor;
use crate::local::Consumer;
use crate::memory::IoVecs;

/// How much is received ahead: prefixes, heads, and payloads up to this size, which are copied into
/// place. Larger payloads go straight to their memory.
const BUFFER_BYTES: usize = 16 << 10;

/// A buffer that had to grow for a long head is given back when it is above this.
const BUFFER_KEEP_BYTES: usize = 64 << 10;

/// While a payload is due, wake-ups are held back until this much of it is there. Measured: the
/// fewer wake-ups, the faster, up to about this size.
const LOW_WATER_BYTES: usize = 256 << 10;

/// How much is dropped at once of a payload that nobody wants.
const DROP_BYTES: usize = 64 << 10;

/// How many descriptors may wait for the frames that they came with. A buffer holds the starts of
/// fewer frames than this at once, since a call takes no more bytes than came with one descriptor.
const DESCRIPTORS: usize = 8;

enum Phase {
    Prefix,
    Head { prefix: [u8; FramePrefix::BYTES], lengths: FramePrefix },
    Payload { landing: Box<dyn Landing>, left: usize, landed: Landed, by: By },
    Work(Box<dyn Work>),
}

/// By what a payload comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// The stream, as its frame does, in whose buffer it begins.
    Frames,
    /// The ring, as its frame does: through the buffer.
    Ring,
    /// The stream, while other frames may have come through the ring.
    Stream,
}

/// What [`Receiver::receive_some`] came to.
pub(super) enum Received {
    /// Nothing more is there now; whether a frame has come in part.
    Idle { in_frame: bool },
    /// The budget is spent and there may be more.
    More,
    /// Too much waits to be sent; the lane is read again once that is gone.
    Paused,
    /// The lane is over.
    Over(CloseReason),
}

/// What only the thread that receives may touch.
pub(super) struct Receiver {
    stream: Arc<OwnedFd>,
    /// Where there is one, frames come through it, and large payloads and descriptors through the
    /// stream.
    ring: Option<Consumer>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    phase: Phase,
    scratch: IoVecs,
    low_water: u32,
    busy: u64,
}

impl Receiver {
    pub(super) fn new(stream: Arc<OwnedFd>, ring: Option<Consumer>) -> Self {
        Self {
            stream,
            ring,
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            phase: Phase::Prefix,
            scratch: IoVecs::default(),
            low_water: 1,
            busy: 0,
        }
    }

    pub(super) fn stream(&self) -> &OwnedFd {
        &self.stream
    }

    /// Changes whenever something was received that more is likely to follow.
    pub(super) fn busy(&self) -> u64 {
        self.busy
    }

    /// Whether there may be something to do that costs a system call only where there is: frames that
    /// are there, a payload that is due, or work.
    pub(super) fn is_worth_a_look(&self) -> bool {
        match &self.ring {
            Some(ring) => {
                matches!(self.phase, Phase::Payload { by: By::Stream, .. } | Phase::Work(_))
                    || ring.has_more()
            }
            None => true,
        }
    }

    /// Receives up to about `budget` bytes and deals with them. What is sent because of them counts
    /// too, so that a lane on which answers arrive is not sent on until a transfer is through.
    pub(super) fn receive_some(&mut self, lane: &Lane, budget: usize) -> Received {
        let mut left = budget;
        loop {
            match later::send_within(&mut left, || self.consume(lane)) {
                Ok(true) => {}
                Ok(false) => {
                    // Into a ring nothing fails to go, so nobody else would find out.
                    if lane.is_over(self.stream.as_raw_fd()) {
                        return Received::Over(CloseReason::Eof);
                    }
                    lane.0.paused.store(true, Ordering::Release);
                    return Received::Paused;
                }
                Err(reason) => return Received::Over(reason),
            }
            if left == 0 {
                return Received::More;
            }
            if let Phase::Work(work) = &mut self.phase {
                self.busy += 1;
                match work.step(Line(self.stream.as_raw_fd())) {
                    Progress::More(bytes) => left = left.saturating_sub(bytes),
                    Progress::Over => {
                        if let Phase::Work(work) = std::mem::replace(&mut self.phase, Phase::Prefix)
                        {
                            later::send_within(&mut left, || work.finish(lane));
                        }
                    }
                }
                continue;
            }
            match self.fetch(lane) {
                Ok(0) => return Received::Over(CloseReason::Eof),
                Ok(bytes) => {
                    left = left.saturating_sub(bytes);
                    self.busy += u64::from(matches!(self.phase, Phase::Payload { .. }));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.hold_back_wakeups();
                    if let Some(beside) = &lane.0.ring {
                        beside.await_stream(matches!(
                            self.phase,
                            Phase::Payload { by: By::Stream, .. }
                        ));
                    }
                    let in_frame = !matches!(self.phase, Phase::Prefix) || self.start < self.end;
                    return Received::Idle { in_frame };
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return Received::Over(CloseReason::Violation(error.to_string()));
                }
                Err(error) => return Received::Over(CloseReason::Failed(error)),
            }
        }
    }

    /// Deals with everything that is in the buffer; false when too much waits to be sent first.
    fn consume(&mut self, lane: &Lane) -> Result<bool, CloseReason> {
        loop {
            let available = &self.buffer[self.start..self.end];
            match &mut self.phase {
                Phase::Prefix => {
                    if lane.0.backlog.load(Ordering::Relaxed) > lane.0.config.backlog_frames {
                        return Ok(false);
                    }
                    let Some(prefix) = available.first_chunk().copied() else { return Ok(true) };
                    let Some(lengths) = (lane.0.config.parse)(&prefix) else {
                        let what = format!("no frame starts with {:02x?}", &prefix[..4]);
                        return Err(CloseReason::Violation(what));
                    };
                    self.start += FramePrefix::BYTES;
                    self.phase = Phase::Head { prefix, lengths };
                }
                Phase::Head { prefix, lengths } => {
                    let Some(head) = available.get(..lengths.head_bytes) else { return Ok(true) };
                    let incoming = lane.0.handler.on_frame(lane, prefix, head);
                    let left = lengths.payload_bytes;
                    self.start += lengths.head_bytes;
                    if !matches!(incoming, Incoming::Quiet) {
                        self.busy += 1;
                    }
                    self.phase = match incoming {
                        Incoming::Done | Incoming::Quiet if left == 0 => Phase::Prefix,
                        Incoming::Payload(landing) => {
                            let by = match &self.ring {
                                None => By::Frames,
                                Some(_) if left <= RING_PAYLOAD_BYTES => By::Ring,
                                Some(_) => By::Stream,
                            };
                            Phase::Payload { landing, left, landed: Landed::Whole, by }
                        }
                        Incoming::Work(work) if left == 0 => Phase::Work(work),
                        Incoming::Done | Incoming::Quiet | Incoming::Work(_) => {
                            let what = "a payload behind a frame that has none".into();
                            return Err(CloseReason::Violation(what));
                        }
                        Incoming::Violation(what) => return Err(CloseReason::Violation(what)),
                    };
                }
                Phase::Payload { landing, left, landed, by } => {
                    let take = if *by == By::Stream { 0 } else { (*left).min(available.len()) };
                    if take > 0 {
                        let bytes = &available[..take];
                        if *landed == Landed::Whole {
                            let socket = self.stream.as_raw_fd();
                            let source = Source::Buffered(bytes);
                            match landing.store(&mut Storer { socket, source }) {
                                Store::Stored(Ok(stored)) if stored == take => {}
                                // Copies are whole or not at all.
                                Store::Stored(_) => *landed = Landed::Fault,
                                Store::Refused => *landed = Landed::Refused,
                            }
                        }
                        self.start += take;
                        *left -= take;
                    }
                    if *left > 0 {
                        return Ok(true);
                    }
                    if let Phase::Payload { landing, landed, .. } =
                        std::mem::replace(&mut self.phase, Phase::Prefix)
                    {
                        landing.finish(lane, landed);
                    }
                }
                Phase::Work(_) => return Ok(true),
            }
        }
    }

    /// Takes bytes: into place while a payload is due, into the buffer otherwise.
    fn fetch(&mut self, lane: &Lane) -> io::Result<usize> {
        let socket = self.stream.as_raw_fd();
        if let Phase::Payload { landing, left, landed, by } = &mut self.phase
            && *by != By::Ring
        {
            let tail = if *by == By::Frames {
                // `consume` left nothing in the buffer while a payload is due.
                (self.start, self.end) = (0, 0);
                &mut self.buffer[..BUFFER_BYTES]
            } else {
                &mut []
            };
            if *landed != Landed::Whole {
                let bytes = drop_some(socket, *left)?;
                *left -= bytes;
                return Ok(bytes);
            }
            let source = Source::Socket { tail, scratch: &mut self.scratch };
            let stored = landing.store(&mut Storer { socket, source });
            keep(lane, self.scratch.descriptors.drain(..));
            return match stored {
                Store::Stored(Ok(received)) => {
                    if *by == By::Frames {
                        self.end = received.saturating_sub(*left);
                    }
                    *left = left.saturating_sub(received);
                    Ok(received)
                }
                Store::Stored(Err(error)) if socket::is_memory_fault(&error) => {
                    tracing::warn!(%error, "the memory of a transfer cannot be written");
                    *landed = Landed::Fault;
                    Err(io::ErrorKind::Interrupted.into())
                }
                Store::Stored(Err(error)) => Err(error),
                Store::Refused => {
                    *landed = Landed::Refused;
                    Err(io::ErrorKind::Interrupted.into())
                }
            };
        }
        self.make_room();
        if let Some(ring) = &mut self.ring {
            let taken = ring.take(&mut self.buffer[self.end..])?;
            self.end += taken;
            if taken > 0 {
                return Ok(taken);
            }
            if lane.is_over(socket) {
                // What was written before it closed is there by now.
                let taken = ring.take(&mut self.buffer[self.end..])?;
                self.end += taken;
                return Ok(taken);
            }
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (received, descriptor) = descriptor::receive(socket, &mut self.buffer[self.end..])?;
        keep(lane, descriptor);
        self.end += received;
        Ok(received)
    }

    /// Makes room behind `end` for at least what the current prefix or head lacks.
    fn make_room(&mut self) {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let needed = match &self.phase {
            Phase::Head { lengths, .. } => lengths.head_bytes,
            Phase::Prefix | Phase::Payload { .. } | Phase::Work(_) => FramePrefix::BYTES,
        };
        if needed + BUFFER_BYTES / 2 > self.buffer.len() {
            self.buffer.resize(needed + BUFFER_BYTES, 0);
        } else if self.end < BUFFER_BYTES && self.buffer.len() > BUFFER_KEEP_BYTES {
            self.buffer.truncate(BUFFER_BYTES);
            self.buffer.shrink_to_fit();
        }
    }

    fn hold_back_wakeups(&mut self) {
        let wanted = match &self.phase {
            Phase::Payload { left, .. } => LOW_WATER_BYTES.min(*left).max(1),
            Phase::Prefix | Phase::Head { .. } | Phase::Work(_) => 1,
        };
        let wanted = u32::try_from(wanted).unwrap_or(1);
        if wanted != self.low_water
            && socket::set_receive_low_water(self.stream.as_raw_fd(), wanted).is_ok()
        {
            self.low_water = wanted;
        }
    }
}

fn drop_some(socket: RawFd, left: usize) -> io::Result<usize> {
    let mut buffer = [0; DROP_BYTES];
    socket::drop_into(socket, &mut buffer[..left.min(DROP_BYTES)])
}

/// Keeps descriptors for the frames that they came with. Beyond the bound they are closed, and the
/// frames that ask for them find none.
fn keep(lane: &Lane, descriptors: impl IntoIterator<Item = OwnedFd>) {
    let mut descriptors = descriptors.into_iter().peekable();
    if descriptors.peek().is_some() {
        let mut kept = lane.0.descriptors.lock();
        let room = DESCRIPTORS.saturating_sub(kept.len());
        kept.extend(descriptors.take(room));
    }
}
