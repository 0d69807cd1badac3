//! What has become of posted requests.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use parking_lot::Mutex;

use super::abi::{IBV_WC_RECV, IBV_WC_WITH_IMM, ibv_comp_channel, ibv_cq, ibv_wc};
use super::context::{Context, Open};
use super::error::VerbsError;
use super::nonblocking::set_nonblocking;

/// How many completions are fetched by one call of the driver.
const AT_ONCE: usize = 32;

/// Where queue pairs put what has completed, with a descriptor to wait for more. Clones are handles
/// of the same.
///
/// It is looked at by [`poll`](Self::poll) while there is work. To sleep until there is some:
/// [`arm`](Self::arm), poll once more, and wait for the descriptor.
#[derive(Clone, Debug)]
pub struct CompletionQueue(pub(super) Arc<Queue>);

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) queue: NonNull<ibv_cq>,
    channel: Channel,
    depth: u32,
    served: Mutex<Served>,
    pub(super) open: Arc<Open>,
}

// SAFETY: the library's functions on a completion queue may be called from any thread; of the
// structure only what never changes is read.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

/// The queue pairs that complete here. A queue that overflows loses completions for good, so each has
/// its room before it can post, and posts no more than that. Held while completions are fetched.
#[derive(Debug, Default)]
struct Served {
    /// How many completions there may be of those that exist.
    held: u32,
    /// Of those that are gone, whose completions may still be in the queue.
    retired: u32,
    /// What each has posted, by its number.
    ledgers: BTreeMap<u32, Arc<Mutex<Ledger>>>,
}

/// What a queue pair may post, and has posted that is not known to be over.
#[derive(Debug)]
pub(super) struct Ledger {
    /// For requests.
    requests: u32,
    /// For announcements of the peer.
    announcements: u32,
    posted: u32,
    expected: u32,
    /// Of the requests that were posted, in order: after how many more there is one that completes.
    until_signaled: VecDeque<u32>,
    /// Requests after the last one that completes by itself.
    unsignaled: u32,
    /// One has failed: everything completes now, and what is over cannot be told apart any more.
    has_failed: bool,
}

impl Ledger {
    pub(super) fn new(requests: u32, announcements: u32) -> Self {
        Self {
            requests,
            announcements,
            posted: 0,
            expected: 0,
            until_signaled: VecDeque::new(),
            unsignaled: 0,
            has_failed: false,
        }
    }

    /// How many completions there may be at once.
    fn most(&self) -> u32 {
        self.requests.saturating_add(self.announcements)
    }

    /// How many more requests there is room for.
    pub(super) fn free_requests(&self) -> Result<usize, VerbsError> {
        self.check()?;
        Ok((self.requests - self.posted) as usize)
    }

    /// How many more announcements there is room for.
    pub(super) fn free_announcements(&self) -> Result<usize, VerbsError> {
        self.check()?;
        Ok((self.announcements - self.expected) as usize)
    }

    fn check(&self) -> Result<(), VerbsError> {
        if self.has_failed { Err(VerbsError::QueuePairFailed) } else { Ok(()) }
    }

    /// A request was posted.
    pub(super) fn post(&mut self, signaled: bool) {
        self.posted += 1;
        self.unsignaled += 1;
        if signaled {
            self.until_signaled.push_back(std::mem::take(&mut self.unsignaled));
        }
    }

    /// An announcement is expected.
    pub(super) fn expect(&mut self) {
        self.expected += 1;
    }

    /// Something was fetched from the queue: so what was posted before it is over.
    fn complete(&mut self, outcome: Outcome) {
        match outcome {
            _ if self.has_failed => {}
            Outcome::Failed { .. } => self.has_failed = true,
            Outcome::Done => self.posted -= self.until_signaled.pop_front().unwrap_or(0),
            Outcome::Announced { .. } => self.expected = self.expected.saturating_sub(1),
        }
    }
}

#[derive(Debug)]
struct Channel {
    channel: NonNull<ibv_comp_channel>,
    open: Arc<Open>,
}

/// The end of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number that was given to the request.
    pub id: u64,
    /// The number of its queue pair.
    pub queue_pair: u32,
    /// What has become of it.
    pub outcome: Outcome,
}

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A write has been acknowledged, or a read is in place; so have all that were posted before it
    /// on its queue pair.
    Done,
    /// The peer has announced something; what it wrote before on the queue pair is in place.
    Announced {
        /// The peer's word.
        word: u32,
    },
    /// It failed, and with it the queue pair. Everything that was posted after it is flushed.
    Failed {
        /// Why.
        status: Status,
        /// The vendor's own code, for its support.
        vendor: u32,
    },
}

/// Why a request failed: `enum ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// A local span is not covered by a registration, or one that is gone.
    LocalProtection,
    /// The queue pair had failed before, or was taken down.
    Flushed,
    /// The peer's key is wrong, gone, or does not allow it.
    RemoteAccess,
    /// The peer could not carry it out.
    RemoteOperation,
    /// The peer did not answer: it, or the way to it, is gone.
    Unanswered,
    /// The peer had posted no receive for an announcement.
    NotExpected,
    /// Something else, by the library's number.
    Other(i32),
}

impl CompletionQueue {
    /// A queue for `depth` completions, as the sum of what its queue pairs may have posted at once.
    ///
    /// # Errors
    /// Where the device has no such queue.
    pub fn new(context: &Context, depth: u32) -> Result<Self, VerbsError> {
        let open = Arc::clone(&context.0);
        let channel = Channel::new(&open)?;
        let wanted = c_int::try_from(depth).unwrap_or(c_int::MAX);
        // SAFETY: context and channel exist, and outlive the queue, which holds both.
        let queue = unsafe {
            (open.library().create_cq)(
                open.context.as_ptr(),
                wanted,
                ptr::null_mut(),
                channel.channel.as_ptr(),
                0,
            )
        };
        let queue = NonNull::new(queue).ok_or_else(|| open.last_error("ibv_create_cq"))?;
        Ok(Self(Arc::new(Queue { queue, channel, depth, served: Mutex::default(), open })))
    }

    /// Fetches up to `most` completions, and says how many there were. Does not wait.
    ///
    /// # Errors
    /// Where the device is gone.
    pub fn poll(&self, into: &mut Vec<Completion>, most: usize) -> Result<usize, VerbsError> {
        let queue = &*self.0;
        let mut served = queue.served.lock();
        let mut fetched = 0;
        while fetched < most {
            let mut room = [const { MaybeUninit::<ibv_wc>::uninit() }; AT_ONCE];
            let wanted = AT_ONCE.min(most - fetched);
            let got = queue.fetch(&mut room[..wanted])?;
            for entry in &room[..got] {
                // SAFETY: the driver has filled as many as it says.
                let end = told(unsafe { entry.assume_init_ref() });
                if let Some(ledger) = served.ledgers.get(&end.queue_pair) {
                    ledger.lock().complete(end.outcome);
                }
                into.push(end);
            }
            queue.open.tally.complete(got);
            fetched += got;
            if got < wanted {
                // Empty: of queue pairs that are gone, nothing can come any more.
                served.retired = 0;
                break;
            }
        }
        Ok(fetched)
    }

    /// Has the descriptor become readable with the next completion that arrives from now on. One
    /// that is in the queue already does not count: poll once more before waiting.
    ///
    /// # Errors
    /// Where the device is gone.
    pub fn arm(&self) -> Result<(), VerbsError> {
        let queue = &*self.0;
        // SAFETY: the queue exists, and so does its context, whose table does not change. A driver
        // sets this function; without it the queue could not have been made.
        let status = unsafe {
            let notify = (*queue.open.context.as_ptr()).ops.req_notify_cq;
            notify.map_or(libc::ENOSYS, |notify| notify(queue.queue.as_ptr(), 0))
        };
        queue.open.tally.arm();
        queue.open.check("ibv_req_notify_cq", status)
    }

    /// Takes the word that there are completions, so that the descriptor is not readable any more,
    /// and says whether there was one.
    ///
    /// # Errors
    /// Where the device is gone.
    pub fn take_wakeup(&self) -> Result<bool, VerbsError> {
        let Queue { channel, open, .. } = &*self.0;
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel exists, and the call writes both pointers where it succeeds.
        let status = unsafe {
            (open.library().get_cq_event)(
                channel.channel.as_ptr(),
                &raw mut queue,
                &raw mut context,
            )
        };
        if status != 0 {
            let source = io::Error::last_os_error();
            return match source.kind() {
                io::ErrorKind::WouldBlock => Ok(false),
                _ => Err(open.error("ibv_get_cq_event", source)),
            };
        }
        // SAFETY: the channel serves one queue, this one, and the event is acknowledged once.
        unsafe { (open.library().ack_cq_events)(queue, 1) };
        Ok(true)
    }
}

impl AsFd for CompletionQueue {
    /// Readable when there are completions, once [`arm`](CompletionQueue::arm)ed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.channel.descriptor()
    }
}

impl Queue {
    fn fetch(&self, room: &mut [MaybeUninit<ibv_wc>]) -> Result<usize, VerbsError> {
        let most = c_int::try_from(room.len()).unwrap_or(c_int::MAX);
        // SAFETY: as in `arm`; the driver writes at most as many entries as it is told there is
        // room for.
        let got = unsafe {
            let poll = (*self.open.context.as_ptr()).ops.poll_cq;
            poll.map_or(-1, |poll| poll(self.queue.as_ptr(), most, room.as_mut_ptr().cast()))
        };
        let broken = || self.open.error("ibv_poll_cq", io::Error::from_raw_os_error(libc::EIO));
        usize::try_from(got).map_err(|_| broken())
    }

    /// Sets room aside for what a queue pair may have completed at once.
    pub(super) fn reserve(&self, ledger: &Ledger) -> Result<(), VerbsError> {
        let wanted = ledger.most();
        let mut served = self.served.lock();
        let free = self.depth.saturating_sub(served.held).saturating_sub(served.retired);
        if wanted > free {
            return Err(VerbsError::CompletionsFull { depth: self.depth, free, wanted });
        }
        served.held += wanted;
        Ok(())
    }

    /// Gives the room back of one that could not be made after all.
    pub(super) fn forgo(&self, ledger: &Ledger) {
        self.served.lock().held -= ledger.most();
    }

    /// Counts what this queue pair completes.
    pub(super) fn serve(&self, number: u32, ledger: &Arc<Mutex<Ledger>>) {
        self.served.lock().ledgers.insert(number, Arc::clone(ledger));
    }

    /// A queue pair is gone: its room is free once what it left here was fetched.
    pub(super) fn retire(&self, number: u32) {
        let mut served = self.served.lock();
        if let Some(ledger) = served.ledgers.remove(&number) {
            let most = ledger.lock().most();
            served.held -= most;
            served.retired += most;
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold their queue, so there are none left; every event was
        // acknowledged as it was taken.
        let status = unsafe { (self.open.library().destroy_cq)(self.queue.as_ptr()) };
        if status != 0 {
            tracing::warn!(device = %self.open.name, status, "a completion queue could not be freed");
        }
    }
}

impl Channel {
    fn new(open: &Arc<Open>) -> Result<Self, VerbsError> {
        // SAFETY: the context is open.
        let channel = unsafe { (open.library().create_comp_channel)(open.context.as_ptr()) };
        let channel =
            NonNull::new(channel).ok_or_else(|| open.last_error("ibv_create_comp_channel"))?;
        let channel = Self { channel, open: Arc::clone(open) };
        set_nonblocking(channel.descriptor()).map_err(|source| open.error("fcntl", source))?;
        Ok(channel)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists, and its descriptor is as long.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its queue holds it and is gone first.
        let status = unsafe { (self.open.library().destroy_comp_channel)(self.channel.as_ptr()) };
        if status != 0 {
            tracing::warn!(device = %self.open.name, status, "a completion channel could not be freed");
        }
    }
}

fn told(entry: &ibv_wc) -> Completion {
    let outcome = match entry.status {
        0 if entry.opcode & IBV_WC_RECV == 0 => Outcome::Done,
        0 if entry.wc_flags & IBV_WC_WITH_IMM != 0 => {
            Outcome::Announced { word: u32::from_be(entry.imm_data) }
        }
        // Peers announce with a word; a message of another kind is none of theirs.
        0 => Outcome::Failed { status: Status::NotExpected, vendor: 0 },
        status => Outcome::Failed { status: Status::from_code(status), vendor: entry.vendor_err },
    };
    Completion { id: entry.wr_id, queue_pair: entry.qp_num, outcome }
}

impl Status {
    fn from_code(code: i32) -> Self {
        match code {
            4 => Self::LocalProtection,
            5 => Self::Flushed,
            10 => Self::RemoteAccess,
            11 => Self::RemoteOperation,
            12 => Self::Unanswered,
            13 => Self::NotExpected,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LocalProtection => f.write_str("a local span is not registered"),
            Self::Flushed => f.write_str("the queue pair had failed before"),
            Self::RemoteAccess => f.write_str("the peer's key does not allow it"),
            Self::RemoteOperation => f.write_str("the peer could not carry it out"),
            Self::Unanswered => f.write_str("the peer did not answer"),
            Self::NotExpected => f.write_str("the peer did not expect it"),
            Self::Other(code) => write!(f, "work completion status {code}"),
        }
    }
}
