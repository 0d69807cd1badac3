//! The sending half of a lane.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::beside::RING_PAYLOAD_BYTES;
use super::lane::{Lane, RESET};
use super::outgoing::{Load, Loader, Outgoing, Start, Way};
use super::pages::PagePipe;
use super::socket;
use crate::descriptor;
use crate::local::Producer;
use crate::memory::IoVecs;

/// How much is collected of frames without payload before it is sent.
const COLLECT_BYTES: usize = 64 << 10;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

enum Item {
    Frames(Vec<u8>),
    WithDescriptor(Vec<u8>, OwnedFd),
    Bulk(Box<dyn Outgoing>),
}

/// Frames in the order in which they go out.
#[derive(Default)]
pub(super) struct Queue(VecDeque<Item>);

impl Queue {
    pub(super) fn push_bytes(&mut self, frames: &[u8], backlog: &AtomicUsize) {
        match self.0.back_mut() {
            Some(Item::Frames(waiting)) if waiting.len() < COLLECT_BYTES => {
                waiting.extend_from_slice(frames);
                backlog.fetch_sub(1, Ordering::Relaxed);
            }
            _ => self.0.push_back(Item::Frames(frames.to_vec())),
        }
    }

    pub(super) fn push_with(&mut self, frame: &[u8], descriptor: OwnedFd) {
        self.0.push_back(Item::WithDescriptor(frame.to_vec(), descriptor));
    }

    pub(super) fn push_bulk(&mut self, frame: Box<dyn Outgoing>) {
        self.0.push_back(Item::Bulk(frame));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) -> VecDeque<impl Sized + use<>> {
        std::mem::take(&mut self.0)
    }
}

/// What [`Sender::send_some`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Everything that was queued is out.
    All,
    /// The budget is spent and there is more.
    More,
    /// The connection takes nothing now; the reactor is told when it does.
    Blocked,
    /// The connection is gone; the reactor finds out too.
    Broken,
}

/// The payload that is being sent.
struct Current {
    frame: Box<dyn Outgoing>,
    left: usize,
    /// The payload goes through the ring.
    by_ring: bool,
    /// Where the frame starts in `out`, while none of it is sent: it can be taken back then.
    unsent_at: Option<usize>,
    /// Permission was withdrawn; zeros go out in its place.
    filling: bool,
}

/// A frame in `out` whose first byte takes a descriptor along.
struct Attached {
    start: usize,
    end: usize,
    descriptor: OwnedFd,
}

/// What only the thread that sends may touch.
pub(super) struct Sender {
    stream: Arc<OwnedFd>,
    /// Where there is one it takes frames, in their order; large payloads and descriptors go through the
    /// stream, each in the order of its frame.
    ring: Option<Producer>,
    /// Prefixes, heads and frames without payload that go before the current payload.
    out: Vec<u8>,
    out_sent: usize,
    attached: Option<Attached>,
    current: Option<Current>,
    scratch: IoVecs,
    pipe: PagePipe,
    blocked: bool,
    /// The connection was full once, so the reactor is told whenever it has room.
    expects_room: bool,
}

impl Sender {
    pub(super) fn new(stream: Arc<OwnedFd>, ring: Option<Producer>) -> Self {
        Self {
            stream,
            ring,
            out: Vec::new(),
            out_sent: 0,
            attached: None,
            current: None,
            scratch: IoVecs::default(),
            pipe: PagePipe::default(),
            blocked: false,
            expects_room: false,
        }
    }

    /// The connection takes bytes again.
    pub(super) fn unblock(&mut self) {
        self.blocked = false;
    }

    fn block(&mut self, lane: &Lane) -> Sent {
        self.blocked = true;
        // The connection itself may be what is full.
        let is_told_by_doorbell = self.ring.as_mut().is_some_and(Producer::has_refused);
        if !self.expects_room && !is_told_by_doorbell {
            if let Err(error) = lane.expect_room(self.stream.as_raw_fd()) {
                tracing::error!(%error, "epoll does not tell when a lane has room; it is reset");
                lane.reset();
                return Sent::Broken;
            }
            self.expects_room = true;
        }
        Sent::Blocked
    }

    /// Sends what is queued, up to about `budget` bytes, and takes from it what was sent.
    pub(super) fn send_some(&mut self, lane: &Lane, budget: &mut usize) -> Sent {
        let sent = self.send_while(lane, budget);
        if let Some(ring) = &mut self.ring {
            ring.ring_if_due();
        }
        sent
    }

    fn send_while(&mut self, lane: &Lane, budget: &mut usize) -> Sent {
        if self.blocked {
            return Sent::Blocked;
        }
        loop {
            if !self.collect(lane) {
                return Sent::All;
            }
            if *budget == 0 {
                return Sent::More;
            }
            match self.send_once(lane) {
                Ok(bytes) => *budget = budget.saturating_sub(bytes),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.block(lane);
                }
                Err(_) => {
                    // The reactor may not have noticed yet, and never does for a broken pipe.
                    lane.reset();
                    return Sent::Broken;
                }
            }
        }
    }

    /// Moves frames from the queue to `out`, up to the next payload. False when nothing is left.
    fn collect(&mut self, lane: &Lane) -> bool {
        if self.out_sent == self.out.len() {
            self.out.clear();
            self.out_sent = 0;
        }
        while self.current.is_none() && self.attached.is_none() && self.out.len() < COLLECT_BYTES {
            let Some(item) = lane.0.queue.lock().0.pop_front() else { break };
            match item {
                Item::Frames(frames) => {
                    self.out.extend_from_slice(&frames);
                    lane.0.backlog.fetch_sub(1, Ordering::Relaxed);
                }
                Item::WithDescriptor(frame, descriptor) => {
                    let start = self.out.len();
                    self.out.extend_from_slice(&frame);
                    let end = self.out.len();
                    self.attached = Some(Attached { start, end, descriptor });
                    lane.0.backlog.fetch_sub(1, Ordering::Relaxed);
                }
                Item::Bulk(mut frame) => {
                    let at = self.out.len();
                    match frame.start(&mut self.out) {
                        Start::Payload(left) => {
                            let by_ring = self.ring.is_some() && left <= RING_PAYLOAD_BYTES;
                            let (unsent_at, filling) = (Some(at), false);
                            self.current =
                                Some(Current { frame, left, by_ring, unsent_at, filling });
                        }
                        Start::Bare => self.finish(lane, frame, true),
                        Start::Skip => {
                            lane.0.backlog.fetch_sub(1, Ordering::Relaxed);
                        }
                    }
                }
            }
        }
        self.current.is_some() || self.out_sent < self.out.len()
    }

    fn finish(&mut self, lane: &Lane, frame: Box<dyn Outgoing>, whole: bool) {
        lane.0.backlog.fetch_sub(1, Ordering::Relaxed);
        frame.sent(whole, &mut self.out);
    }

    fn send_once(&mut self, lane: &Lane) -> io::Result<usize> {
        let socket = self.stream.as_raw_fd();
        if let Some(attached) = &self.attached {
            // Nothing is collected behind such a frame, so no payload waits.
            if self.out_sent < attached.start {
                let end = attached.start;
                return self.send_out(end);
            }
            let descriptor = attached.descriptor.as_fd();
            if self.ring.is_some() {
                // Before its frame, so that it is there when the frame is.
                descriptor::send(socket, &[0], descriptor)?;
            } else {
                let frame = &self.out[attached.start..attached.end];
                self.out_sent += descriptor::send(socket, frame, descriptor)?;
            }
            self.attached = None;
            return Ok(1);
        }
        // Into a ring nothing goes together, so what is before a frame goes before permission for it is
        // looked at, and the frame can be taken back until then.
        let alone = match &self.current {
            None => self.out.len(),
            Some(_) if self.ring.is_none() => self.out_sent,
            Some(Current { filling: true, .. }) => self.out.len(),
            Some(current) => current.unsent_at.unwrap_or(self.out_sent),
        };
        if self.out_sent < alone {
            return self.send_out(alone);
        }
        let head = &self.out[self.out_sent..];
        let Some(current) = &mut self.current else { return Ok(0) };
        let head_bytes = head.len();
        let sent = if current.filling {
            // Zeros go on their own: this is rare, and the head is long gone or goes first.
            let zeros = &ZEROS[..current.left.min(ZEROS.len())];
            match &mut self.ring {
                Some(ring) if current.by_ring => ring.push(zeros)?,
                _ => socket::send(socket, if head.is_empty() { zeros } else { head })?,
            }
        } else {
            let way = match &mut self.ring {
                Some(ring) if current.by_ring => Way::Ring { ring, left: current.left },
                Some(ring) => Way::Beside { ring, socket },
                None => Way::Socket(socket),
            };
            let mut loader = Loader { way, head, scratch: &mut self.scratch, pipe: &mut self.pipe };
            match current.frame.load(&mut loader) {
                Load::Sent(Err(error)) if socket::is_memory_fault(&error) => {
                    tracing::warn!(%error, "the memory of a transfer cannot be read");
                    return self.withdraw(lane, false);
                }
                Load::Sent(sent) => sent?,
                Load::Fill => return self.withdraw(lane, true),
                Load::Reset => return self.withdraw(lane, false),
            }
        };
        if sent > 0 && current.unsent_at.is_some_and(|at| self.out_sent + sent > at) {
            current.unsent_at = None;
        }
        self.out_sent += sent.min(head_bytes);
        current.left -= sent.saturating_sub(head_bytes);
        if current.left == 0
            && let Some(current) = self.current.take()
        {
            self.finish(lane, current.frame, !current.filling);
        }
        Ok(sent)
    }

    /// Sends what is in `out` up to `end`.
    fn send_out(&mut self, end: usize) -> io::Result<usize> {
        let bytes = &self.out[self.out_sent..end];
        let sent = match &mut self.ring {
            Some(ring) => ring.push(bytes)?,
            None => socket::send(self.stream.as_raw_fd(), bytes)?,
        };
        self.out_sent += sent;
        if let Some(current) = &mut self.current
            && current.unsent_at.is_some_and(|at| self.out_sent > at)
        {
            current.unsent_at = None;
        }
        Ok(sent)
    }

    /// Permission for the current payload was withdrawn: takes the frame back when none of it is
    /// out, fills it with zeros when the receiver drops them, and resets the lane otherwise.
    fn withdraw(&mut self, lane: &Lane, receiver_drops: bool) -> io::Result<usize> {
        let Some(current) = &mut self.current else { return Ok(0) };
        self.pipe.discard();
        if let Some(at) = current.unsent_at {
            self.out.truncate(at);
            if let Some(current) = self.current.take() {
                self.finish(lane, current.frame, false);
            }
            return Ok(0);
        }
        if receiver_drops {
            current.filling = true;
            return Ok(0);
        }
        lane.0.closing.fetch_max(RESET, Ordering::AcqRel);
        Err(io::ErrorKind::ConnectionAborted.into())
    }
}
