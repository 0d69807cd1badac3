//! A lane, and what its user decides about the frames on it.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering, fence};

use parking_lot::Mutex;

use super::ParsePrefix;
use super::beside::Beside;
use super::later;
use super::outgoing::Outgoing;
use super::reactor::{Handle, TURN_BYTES};
use super::receive::Receiver;
use super::send::{Queue, Sender, Sent};
use super::socket;
use crate::baton::Baton;
use crate::local::Ring;
use crate::memory::{IoVecs, MemoryError, SpanList};

/// Settings of a lane.
#[derive(Clone, Copy, Debug)]
pub struct LaneConfig {
    /// Reads a frame's prefix.
    pub parse: ParsePrefix,
    /// While this many frames wait to be sent, none is read: a peer that asks without listening
    /// fills its own socket and not our memory.
    pub backlog_frames: usize,
}

/// Decides what happens to the frames that arrive on a lane. Called on a reactor thread, or one that
/// looks at the lane by itself ([`Lane::look`]), so it must not block; it may send on any lane.
pub trait LaneHandler: Send + Sync {
    /// A frame's prefix and head have arrived.
    fn on_frame(&self, lane: &Lane, prefix: &[u8; 16], head: &[u8]) -> Incoming;

    /// Nothing more can be dealt with now: what waits for company is to be sent. Called by whoever
    /// dealt with something, after that, so no frame is without a call that comes behind it: when
    /// nothing more has come, and before the lane is not read for a while because too much waits to be
    /// sent. Not when the lane closes.
    fn on_idle(&self, _lane: &Lane) {}

    /// The lane is closed and touches nothing any more. Called once.
    fn on_closed(&self, lane: &Lane, reason: &CloseReason);
}

/// What to do about a frame.
pub enum Incoming {
    /// It is dealt with; it has no payload.
    Done,
    /// The same, and nothing follows from it: the thread need not look for more.
    Quiet,
    /// Its payload goes here.
    Payload(Box<dyn Landing>),
    /// It has no payload, and this is to be done about it before the next frame is looked at.
    Work(Box<dyn Work>),
    /// It breaks the protocol: close the lane.
    Violation(String),
}

/// The place of one payload.
pub trait Landing: Send {
    /// Stores a part of the payload by one call of `storer`, made while permission to touch the
    /// memory is held, so that whoever withdraws the permission knows that nothing is stored after
    /// it. [`Store::Refused`] when there is none: the rest of the payload is read and dropped.
    fn store(&mut self, storer: &mut Storer<'_>) -> Store;

    /// The payload has been taken off the lane, and either stored or not.
    fn finish(self: Box<Self>, lane: &Lane, landed: Landed);
}

/// Something that takes longer than a frame may: it is done piece by piece, and other lanes have
/// their turn in between. Dropped half done when the lane closes.
pub trait Work: Send {
    /// Does a piece. Where that touches memory, it is done while permission is held, as in
    /// [`Landing::store`].
    fn step(&mut self, line: Line) -> Progress;

    /// All of it is done, or given up.
    fn finish(self: Box<Self>, lane: &Lane);
}

/// What one piece of [`Work`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// This many bytes were dealt with, and there is more to do.
    More(usize),
    /// There is nothing left to do.
    Over,
}

/// The connection that a frame came by.
#[derive(Clone, Copy, Debug)]
pub struct Line(pub(super) RawFd);

impl Line {
    /// Whether it is known to be broken, reset, or closed by the other end.
    #[must_use]
    pub fn is_unhealthy(self) -> bool {
        socket::is_unhealthy(self.0)
    }
}

/// The result of [`Landing::store`].
#[derive(Debug)]
pub enum Store {
    /// Permission was there, and this came of it.
    Stored(io::Result<usize>),
    /// There is no permission any more.
    Refused,
}

/// How a payload ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landed {
    /// Every byte is in place.
    Whole,
    /// Permission was withdrawn.
    Refused,
    /// The memory could not be touched.
    Fault,
}

/// Stores bytes of a payload: those already in the receive buffer, or those in the socket.
#[derive(Debug)]
pub struct Storer<'a> {
    pub(super) socket: RawFd,
    pub(super) source: Source<'a>,
}

#[derive(Debug)]
pub(super) enum Source<'a> {
    Buffered(&'a [u8]),
    Socket { tail: &'a mut [u8], scratch: &'a mut IoVecs },
}

impl Storer<'_> {
    /// Whether the connection is known to be broken, reset, or closed by the other end.
    #[must_use]
    pub fn is_unhealthy(&self) -> bool {
        socket::is_unhealthy(self.socket)
    }

    /// Stores what is there into `spans`.
    ///
    /// # Errors
    /// What the kernel says, `WouldBlock` included.
    pub fn store(&mut self, spans: &mut SpanList) -> io::Result<usize> {
        match &mut self.source {
            Source::Buffered(bytes) => spans.copy_in(bytes).map_err(fault),
            Source::Socket { tail, scratch } => spans.scatter(self.socket, tail, scratch),
        }
    }
}

/// A [`MemoryError`] as an I/O error that [`socket::is_memory_fault`] recognises.
fn fault(error: MemoryError) -> io::Error {
    io::Error::other(error)
}

/// Why a lane closed.
#[derive(Debug)]
pub enum CloseReason {
    /// The other end closed it.
    Eof,
    /// The connection failed.
    Failed(io::Error),
    /// The other end broke the protocol.
    Violation(String),
    /// [`Lane::close`] was called.
    Local,
    /// [`Lane::reset`] was called, or a frame was half sent when its permission was withdrawn.
    Reset,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eof => f.write_str("the other end closed it"),
            Self::Failed(error) => write!(f, "the connection failed: {error}"),
            Self::Violation(what) => write!(f, "the other end broke the protocol: {what}"),
            Self::Local => f.write_str("closed here"),
            Self::Reset => f.write_str("reset here"),
        }
    }
}

pub(super) const OPEN: u8 = 0;
pub(super) const CLOSE: u8 = 1;
pub(super) const RESET: u8 = 2;

pub(super) struct Inner {
    pub(super) token: usize,
    pub(super) config: LaneConfig,
    pub(super) handler: Arc<dyn LaneHandler>,
    pub(super) reactor: Handle,
    /// Frames waiting to be sent: pushed by anybody, taken by whoever holds `sender`.
    pub(super) queue: Mutex<Queue>,
    /// Frames queued or half sent.
    pub(super) backlog: AtomicUsize,
    /// `None` once the lane is closed.
    pub(super) sender: Baton<Option<Sender>>,
    /// `None` once the lane is closed. Held by the reactor thread while it reads.
    pub(super) receiver: Mutex<Option<Receiver>>,
    /// [`OPEN`], [`CLOSE`] or [`RESET`]: what was asked for.
    pub(super) closing: AtomicU8,
    /// Reading stopped because of the backlog.
    pub(super) paused: AtomicBool,
    /// Descriptors that came with frames, in order.
    pub(super) descriptors: Mutex<VecDeque<OwnedFd>>,
    /// Where frames go through a ring: that, and the stream that goes with it.
    pub(super) ring: Option<Beside>,
}

/// One connection, driven by a reactor. Clones are handles to the same lane.
#[derive(Clone)]
pub struct Lane(pub(super) Arc<Inner>);

impl Lane {
    pub(super) fn new(
        token: usize,
        stream: OwnedFd,
        ring: Option<Ring>,
        config: LaneConfig,
        handler: Arc<dyn LaneHandler>,
        reactor: Handle,
    ) -> Self {
        let stream = Arc::new(stream);
        let beside = ring.as_ref().map(|ring| Beside::new(ring, &stream));
        let (producer, consumer) = match ring {
            Some(ring) => (Some(ring.producer), Some(ring.consumer)),
            None => (None, None),
        };
        Self(Arc::new(Inner {
            token,
            config,
            handler,
            reactor,
            queue: Mutex::new(Queue::default()),
            backlog: AtomicUsize::new(0),
            sender: Baton::new(Some(Sender::new(stream.clone(), producer))),
            receiver: Mutex::new(Some(Receiver::new(stream, consumer))),
            closing: AtomicU8::new(OPEN),
            paused: AtomicBool::new(false),
            descriptors: Mutex::default(),
            ring: beside,
        }))
    }

    /// Queues whole frames without payload, and sends what the connection takes at once.
    pub fn send(&self, frames: &[u8]) {
        self.0.backlog.fetch_add(1, Ordering::Relaxed);
        self.0.queue.lock().push_bytes(frames, &self.0.backlog);
        self.flush();
    }

    /// Queues a frame with a payload, and sends what the connection takes at once.
    pub fn send_bulk(&self, frame: Box<dyn Outgoing>) {
        self.0.backlog.fetch_add(1, Ordering::Relaxed);
        self.0.queue.lock().push_bulk(frame);
        self.flush();
    }

    /// Queues several frames with payloads, then sends what the connection takes at once.
    pub fn send_all(&self, frames: impl IntoIterator<Item = Box<dyn Outgoing>>) {
        {
            let mut queue = self.0.queue.lock();
            for frame in frames {
                self.0.backlog.fetch_add(1, Ordering::Relaxed);
                queue.push_bulk(frame);
            }
        }
        self.flush();
    }

    /// Queues whole frames without payload, to go out with whatever is sent next, or when all that
    /// the other end has sent is dealt with.
    pub fn send_later(&self, frames: &[u8]) {
        self.0.backlog.fetch_add(1, Ordering::Relaxed);
        self.0.queue.lock().push_bytes(frames, &self.0.backlog);
    }

    /// Queues a whole frame without payload whose first byte takes a descriptor along, to go out as
    /// with [`Lane::send_later`]. For lanes over Unix sockets: others take none, and fail.
    pub fn send_later_with(&self, frame: &[u8], descriptor: OwnedFd) {
        self.0.backlog.fetch_add(1, Ordering::Relaxed);
        self.0.queue.lock().push_with(frame, descriptor);
    }

    /// Sends what is queued, as much as the connection takes at once.
    pub fn send_queued(&self) {
        self.flush();
    }

    /// The descriptor that came with the frame at hand: frames that have one are to ask for it in
    /// the order in which they come.
    #[must_use]
    pub fn take_descriptor(&self) -> Option<OwnedFd> {
        let kept = self.0.descriptors.lock().pop_front();
        kept.or_else(|| self.0.ring.as_ref()?.take_descriptor())
    }

    /// Closes the lane once what the connection has taken is sent. [`LaneHandler::on_closed`]
    /// follows.
    pub fn close(&self) {
        self.send_some(TURN_BYTES);
        self.ask_to_close(CLOSE);
    }

    /// Closes the lane at once, drops what is queued anywhere, and tells the other end.
    /// [`LaneHandler::on_closed`] follows.
    pub fn reset(&self) {
        self.ask_to_close(RESET);
    }

    fn ask_to_close(&self, how: u8) {
        self.0.closing.fetch_max(how, Ordering::AcqRel);
        self.0.reactor.kick(self.0.token);
    }

    /// An answer that this end owes and has not come to: it counts as a frame that waits to be sent,
    /// so that an end that asks for more than is done is not read any more.
    #[must_use]
    pub fn owe(&self) -> Owed {
        self.0.backlog.fetch_add(1, Ordering::Relaxed);
        Owed(self.clone())
    }

    /// How many frames wait to be sent.
    #[must_use]
    pub fn backlog_frames(&self) -> usize {
        self.0.backlog.load(Ordering::Relaxed)
    }

    /// Something that did not come by the connection is dealt with, and nothing more can be now: what
    /// was held back goes out, as after frames.
    pub fn idle(&self) {
        self.rest(true);
    }

    /// Nothing more can be dealt with now. Unless the other end is in the middle of a frame it is through
    /// with what it had to say: then nothing is held back that it may be waiting for.
    pub(super) fn rest(&self, is_through: bool) {
        self.0.handler.on_idle(self);
        if is_through && self.backlog_frames() > 0 {
            self.flush();
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.0.paused.load(Ordering::Acquire)
    }

    /// Something has come by the stream of a lane with a ring, or it has ended.
    pub(super) fn note_stream(&self) {
        if let Some(beside) = &self.0.ring {
            beside.note();
        }
    }

    /// Whether the other end of a lane with a ring has closed it.
    pub(super) fn is_over(&self, stream: RawFd) -> bool {
        self.0.ring.as_ref().is_some_and(|beside| beside.is_over(stream))
    }

    /// Whether the lane is not read because too much waits to be sent, and no more of that than may.
    pub(super) fn is_due_again(&self) -> bool {
        // Whoever pauses looks here after it has said so, and whoever sends after it has sent: one of
        // the two sees what the other has written.
        fence(Ordering::SeqCst);
        self.is_paused() && self.backlog_frames() <= self.0.config.backlog_frames
    }

    /// Sends what is queued, as much as a thread may at once; or has it sent when this thread is
    /// through with what it is doing.
    pub(super) fn flush(&self) {
        if !later::is_later(self) {
            self.send_some(TURN_BYTES);
        }
    }

    /// Sends what is queued, up to about `budget` bytes, unless somebody else is at it, who then
    /// sends this too. What is left is the reactor's. Returns how much was sent.
    pub(super) fn send_some(&self, budget: usize) -> usize {
        let mut left = budget;
        self.0.sender.run(
            |sender| {
                let Some(open) = sender else { return ControlFlow::Break(()) };
                match open.send_some(self, &mut left) {
                    Sent::All => return ControlFlow::Continue(()),
                    // This thread has other things to do than to send everybody's frames.
                    Sent::More => self.0.reactor.kick(self.0.token),
                    Sent::Blocked | Sent::Broken => {}
                }
                ControlFlow::Break(())
            },
            || !self.0.queue.lock().is_empty(),
        );
        if self.is_due_again() {
            // No event may tell.
            self.0.reactor.kick(self.0.token);
        }
        budget - left
    }

    /// Has the reactor told when the connection takes bytes again, now and ever after.
    pub(super) fn expect_room(&self, connection: RawFd) -> io::Result<()> {
        self.0.reactor.expect_room(self.0.token, connection)
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// An answer that is owed: see [`Lane::owe`].
#[derive(Debug)]
pub struct Owed(Lane);

impl Owed {
    /// The lane that it is owed on.
    #[must_use]
    pub fn lane(&self) -> &Lane {
        &self.0
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        let inner = &self.0.0;
        let before = inner.backlog.fetch_sub(1, Ordering::AcqRel);
        // The lane may be read again, and no event may tell.
        if before.checked_sub(1) == Some(inner.config.backlog_frames) {
            inner.reactor.kick(inner.token);
        }
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane")
            .field("token", &self.0.token)
            .field("backlog_frames", &self.backlog_frames())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("Done"),
            Self::Quiet => f.write_str("Quiet"),
            Self::Payload(_) => f.write_str("Payload"),
            Self::Work(_) => f.write_str("Work"),
            Self::Violation(what) => f.debug_tuple("Violation").field(what).finish(),
        }
    }
}
