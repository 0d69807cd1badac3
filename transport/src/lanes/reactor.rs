//! The threads that drive lanes: epoll, and nothing that blocks.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use parking_lot::Mutex;
use socket2::SockRef;

use super::hot::Hot;
use super::lane::{CLOSE, CloseReason, Lane, LaneConfig, LaneHandler, OPEN, RESET};
use super::receive::Received;
use super::send::Sent;
use super::socket;
use super::turn::ask_for_short_turns;
use super::watch::{Look, Watch, Watched, Watching};
use crate::local::Ring;

/// How much one lane may receive or send before the others have their turn.
pub(super) const TURN_BYTES: usize = 1 << 20;

const WAKER: Token = Token(0);

/// Added to a lane's token, the token of its doorbell.
const DOORBELL: usize = 1 << (usize::BITS - 1);

/// Settings of a reactor.
#[derive(Clone, Copy, Debug)]
pub struct ReactorConfig {
    /// How long a thread looks for more before it sleeps, after traffic.
    pub spin: Duration,
}

struct Shared {
    registry: Registry,
    waker: Waker,
    lanes: Mutex<BTreeMap<usize, Lane>>,
    watching: Watching,
    kicked: Mutex<Vec<usize>>,
    next_token: AtomicUsize,
    stopping: AtomicBool,
}

/// What a lane needs of its reactor.
#[derive(Clone)]
pub(super) struct Handle(Arc<Shared>);

impl Handle {
    /// Has the reactor look at a lane that no event will come for.
    pub(super) fn kick(&self, token: usize) {
        self.0.kicked.lock().push(token);
        // It fails only when the counter behind it is full, and then a wake-up is due anyway.
        let _ = self.0.waker.wake();
    }

    /// Has the reactor told when a connection takes bytes again; at once, if it does by now.
    pub(super) fn expect_room(&self, token: usize, connection: RawFd) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.0.registry.reregister(&mut SourceFd(&connection), Token(token), interest)
    }

    pub(super) fn watching(&self) -> &Watching {
        &self.0.watching
    }

    pub(super) fn unregister(&self, descriptor: RawFd) {
        // It fails for one that was never registered, which is as good.
        let _ = self.0.registry.deregister(&mut SourceFd(&descriptor));
    }
}

/// Drives lanes, on a thread of its own or whenever [`Reactor::round`] is called. Dropping it closes
/// its lanes and ends the thread.
pub struct Reactor {
    handle: Handle,
    driver: Driver,
}

enum Driver {
    Thread(Option<JoinHandle<()>>),
    Caller(Mutex<(Turns, Events)>),
}

impl Reactor {
    /// Starts a thread of this name.
    ///
    /// # Errors
    /// What the kernel says when it gives no thread, epoll or event descriptor.
    pub fn start(name: &str, config: ReactorConfig) -> io::Result<Self> {
        let (handle, turns) = Self::prepare(config)?;
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || turns.run())?;
        Ok(Self { handle, driver: Driver::Thread(Some(thread)) })
    }

    /// One without a thread: its lanes go on when [`Reactor::round`] is called, and only then. For
    /// whoever has to decide what happens when, as a simulation does.
    ///
    /// # Errors
    /// What the kernel says when it gives no epoll or event descriptor.
    pub fn without_thread() -> io::Result<Self> {
        let (handle, turns) = Self::prepare(ReactorConfig { spin: Duration::ZERO })?;
        Ok(Self { handle, driver: Driver::Caller(Mutex::new((turns, events()))) })
    }

    /// Lets every lane of a reactor [without a thread](Reactor::without_thread) that has something to
    /// do have one turn. Whether any had, and so may have more. Not to be called by a lane's handler.
    ///
    /// # Errors
    /// What epoll says.
    pub fn round(&self) -> io::Result<bool> {
        match &self.driver {
            Driver::Thread(_) => Ok(false),
            Driver::Caller(turns) => {
                let (turns, events) = &mut *turns.lock();
                turns.round(events, Some(Duration::ZERO))
            }
        }
    }

    fn prepare(config: ReactorConfig) -> io::Result<(Handle, Turns)> {
        let poll = Poll::new()?;
        let shared = Shared {
            registry: poll.registry().try_clone()?,
            waker: Waker::new(poll.registry(), WAKER)?,
            lanes: Mutex::new(BTreeMap::new()),
            watching: Mutex::default(),
            kicked: Mutex::new(Vec::new()),
            next_token: AtomicUsize::new(WAKER.0 + 1),
            stopping: AtomicBool::new(false),
        };
        let handle = Handle(Arc::new(shared));
        let turns = Turns {
            poll,
            shared: handle.0.clone(),
            config,
            unfinished: BTreeMap::new(),
            hot: Hot::default(),
            looking_until: Instant::now(),
            worked: false,
        };
        Ok((handle, turns))
    }

    /// Takes over a connection whose hello is through: a stream socket of any family.
    ///
    /// # Errors
    /// What the kernel says when it does not take the connection into its epoll.
    pub fn add(
        &self,
        stream: OwnedFd,
        config: LaneConfig,
        handler: Arc<dyn LaneHandler>,
    ) -> io::Result<Lane> {
        self.add_with(stream, None, config, handler)
    }

    /// The same, with a ring that the other end of the connection has an end of, too. Then the
    /// connection has to be a Unix socket.
    ///
    /// # Errors
    /// As [`Reactor::add`].
    pub fn add_with(
        &self,
        stream: OwnedFd,
        ring: Option<Ring>,
        config: LaneConfig,
        handler: Arc<dyn LaneHandler>,
    ) -> io::Result<Lane> {
        // Calls that take no flag for it must not block either.
        SockRef::from(&stream).set_nonblocking(true)?;
        let token = self.handle.0.next_token.fetch_add(1, Ordering::Relaxed);
        let (stream_fd, bell_fd) =
            (stream.as_raw_fd(), ring.as_ref().map(|ring| ring.shared.bell()));
        let lane = Lane::new(token, stream, ring, config, handler, self.handle.clone());
        self.handle.0.lanes.lock().insert(token, lane.clone());
        let register = |fd: RawFd, token| {
            // Not for room to send: a Unix socket has that told whenever the other end reads.
            self.handle.0.registry.register(&mut SourceFd(&fd), Token(token), Interest::READABLE)
        };
        // The doorbell first: from the stream on, the lane can close at any time, and give both back.
        let registered = bell_fd
            .map_or(Ok(()), |bell| register(bell, token | DOORBELL))
            .and_then(|()| register(stream_fd, token));
        if let Err(error) = registered {
            self.handle.0.lanes.lock().remove(&token);
            if let Some(bell) = bell_fd {
                self.handle.unregister(bell);
            }
            return Err(error);
        }
        Ok(lane)
    }

    /// Looks at something beside lanes, when its descriptor says so and for a while after, until what is
    /// returned is dropped.
    ///
    /// # Errors
    /// What the kernel says when it does not take the descriptor into its epoll.
    pub fn watch(
        &self,
        descriptor: BorrowedFd<'_>,
        watched: Arc<dyn Watched>,
    ) -> io::Result<Watch> {
        let token = self.handle.0.next_token.fetch_add(1, Ordering::Relaxed);
        let registry = &self.handle.0.registry;
        Watch::new(self.handle.clone(), registry, token, descriptor, watched)
    }

    /// How many lanes it drives.
    #[must_use]
    pub fn lane_count(&self) -> usize {
        self.handle.0.lanes.lock().len()
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        match &mut self.driver {
            Driver::Thread(thread) => {
                self.handle.0.stopping.store(true, Ordering::Release);
                let _ = self.handle.0.waker.wake();
                if let Some(thread) = thread.take() {
                    let _ = thread.join();
                }
            }
            Driver::Caller(turns) => turns.get_mut().0.close_all(),
        }
    }
}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactor").field("lanes", &self.lane_count()).finish_non_exhaustive()
    }
}

fn events() -> Events {
    Events::with_capacity(256)
}

/// What is to be done for a lane.
#[derive(Clone, Copy, Default)]
struct Turn {
    receive: bool,
    send: bool,
    /// Something has come by the lane's stream.
    stream: bool,
}

impl Turn {
    fn add(&mut self, other: Self) {
        self.receive |= other.receive;
        self.send |= other.send;
        self.stream |= other.stream;
    }
}

struct Turns {
    poll: Poll,
    shared: Arc<Shared>,
    config: ReactorConfig,
    /// What is left to do for lanes whose turn was over too soon, by token.
    unfinished: BTreeMap<usize, Turn>,
    /// Lanes whose rings this thread looks at, so that nobody wakes it for them.
    hot: Hot,
    /// What is watched is looked at until then without being told to.
    looking_until: Instant,
    /// Something was received or sent in this round.
    worked: bool,
}

impl Turns {
    fn run(mut self) {
        if let Err(error) = ask_for_short_turns() {
            tracing::debug!(%error, "a lane thread has turns as long as others'");
        }
        let mut events = events();
        let mut busy_until = Instant::now();
        while !self.shared.stopping.load(Ordering::Acquire) {
            let spinning =
                !self.unfinished.is_empty() || Instant::now() < busy_until || self.cool();
            let timeout = if spinning { Some(Duration::ZERO) } else { None };
            if let Err(error) = self.round(&mut events, timeout) {
                tracing::error!(%error, "epoll failed; the lanes of this thread are closed");
                break;
            }
            // Not after an event whose cause another thread has dealt with: that one looks already.
            if self.worked && !self.config.spin.is_zero() {
                busy_until = Instant::now() + self.config.spin;
            } else if spinning {
                // Whoever is woken by what was sent is often put on this very processor, and what is
                // looked for comes from there: it goes first.
                std::thread::yield_now();
            }
        }
        self.close_all();
    }

    /// Waits for events, for as long as `timeout` says, and gives every lane that has something to do
    /// one turn. Whether any had.
    fn round(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<bool> {
        self.worked = false;
        let has_time = self.unfinished.is_empty();
        let rung = self.hot.due(has_time);
        if has_time && self.hot.comes_first() {
            events.clear();
        } else {
            let timeout = if rung.is_empty() { timeout } else { Some(Duration::ZERO) };
            match self.poll.poll(events, timeout) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => events.clear(),
                Err(error) => return Err(error),
            }
        }
        // A lane has one turn, whatever is the cause, and those that did not come to an end in their
        // last one come last: what is small does not wait behind them.
        let mut last = std::mem::take(&mut self.unfinished);
        let mut first: BTreeMap<usize, Turn> = BTreeMap::new();
        let mut add = |token, turn| match last.get_mut(&token) {
            Some(unfinished) => unfinished.add(turn),
            None => first.entry(token).or_default().add(turn),
        };
        for token in rung {
            add(token, Turn { receive: true, ..Turn::default() });
        }
        for event in &*events {
            let Token(token) = event.token();
            if token & DOORBELL != 0 {
                // Something has come through the ring, or there is room in it.
                let turn = Turn { receive: true, send: true, stream: false };
                add(token & !DOORBELL, turn);
            } else if event.token() != WAKER {
                let receive = event.is_readable() || event.is_read_closed() || event.is_error();
                add(token, Turn { receive, send: event.is_writable(), stream: true });
            }
        }
        for token in std::mem::take(&mut *self.shared.kicked.lock()) {
            add(token, Turn { receive: true, send: true, stream: false });
        }
        let any = !first.is_empty() || !last.is_empty();
        for (token, turn) in first.into_iter().chain(last) {
            self.turn(token, turn);
        }
        Ok(any)
    }

    fn close_all(&mut self) {
        let lanes = std::mem::take(&mut *self.shared.lanes.lock());
        for lane in lanes.into_values() {
            self.close(&lane, &CloseReason::Local);
        }
    }

    fn turn(&mut self, token: usize, mut turn: Turn) {
        let lane = self.shared.lanes.lock().get(&token).cloned();
        let Some(lane) = lane else { return self.look(token) };
        match lane.0.closing.load(Ordering::Acquire) {
            OPEN => {}
            CLOSE => return self.close(&lane, &CloseReason::Local),
            _ => return self.close(&lane, &CloseReason::Reset),
        }
        if std::mem::take(&mut turn.stream) {
            lane.note_stream();
        }
        if turn.send {
            turn.send = self.send(&lane);
        }
        if turn.receive {
            match self.receive(&lane) {
                Received::Idle { in_frame } => {
                    turn.receive = false;
                    lane.rest(!in_frame);
                }
                Received::Paused => {
                    turn.receive = false;
                    // What was held back may be all that it waits for.
                    lane.rest(true);
                }
                Received::More => {}
                Received::Over(reason) => return self.close(&lane, &reason),
            }
        }
        if lane.is_due_again() {
            lane.0.paused.store(false, Ordering::Release);
            turn.receive = true;
        }
        if turn.receive || turn.send {
            self.unfinished.insert(token, turn);
        }
    }

    /// Looks at something that is watched: again and again while it has something to do and for as long
    /// as a thread looks for more, then when its descriptor says so.
    fn look(&mut self, token: usize) {
        let watched = self.shared.watching.lock().get(&token).cloned();
        let Some(watched) = watched else { return };
        let is_again = match watched.look() {
            Look::Idle => false,
            Look::Worked => {
                self.worked = true;
                self.looking_until = Instant::now() + self.config.spin;
                true
            }
            Look::Waiting => Instant::now() < self.looking_until || watched.rest(),
        };
        if is_again {
            self.unfinished.insert(token, Turn { receive: true, ..Turn::default() });
        }
    }

    /// Sends; true when there is more to send and the connection takes it.
    fn send(&mut self, lane: &Lane) -> bool {
        let mut sender = lane.0.sender.take();
        let Some(open) = sender.as_mut() else { return false };
        self.worked |= lane.backlog_frames() > 0;
        open.unblock();
        let sent = open.send_some(lane, &mut { TURN_BYTES });
        drop(sender);
        // The second look: see `Baton::take`.
        sent == Sent::More || (sent == Sent::All && !lane.0.queue.lock().is_empty())
    }

    fn receive(&mut self, lane: &Lane) -> Received {
        let mut receiver = lane.0.receiver.lock();
        let Some(receiver) = receiver.as_mut() else { return Received::Idle { in_frame: true } };
        let before = receiver.busy();
        let received = receiver.receive_some(lane, TURN_BYTES);
        if receiver.busy() != before {
            self.worked = true;
            if !self.config.spin.is_zero() {
                self.hot.warm(lane);
            }
        }
        received
    }

    /// This thread is about to sleep, and has to be woken from now on. Whether something has come meanwhile.
    fn cool(&mut self) -> bool {
        for token in self.hot.cool() {
            self.unfinished.insert(token, Turn { receive: true, ..Turn::default() });
        }
        !self.unfinished.is_empty()
    }

    fn close(&mut self, lane: &Lane, reason: &CloseReason) {
        self.shared.lanes.lock().remove(&lane.0.token);
        self.hot.remove(lane);
        let Some(receiver) = lane.0.receiver.lock().take() else { return };
        let sender = lane.0.sender.take().take();
        let asked_for_reset = lane.0.closing.swap(RESET, Ordering::AcqRel) == RESET;
        if asked_for_reset || matches!(reason, CloseReason::Violation(_)) {
            // Where the kernel does not take it, the close is an ordinary one: the other end
            // finds the connection shut all the same.
            let _ = socket::reset_on_close(receiver.stream());
        }
        let fd = receiver.stream().as_raw_fd();
        let _ = self.shared.registry.deregister(&mut SourceFd(&fd));
        if let Some(beside) = &lane.0.ring {
            let _ = self.shared.registry.deregister(&mut SourceFd(&beside.ring().bell()));
        }
        drop((receiver, sender));
        let queued = lane.0.queue.lock().clear();
        drop(queued);
        lane.0.descriptors.lock().clear();
        lane.0.handler.on_closed(lane, reason);
    }
}
