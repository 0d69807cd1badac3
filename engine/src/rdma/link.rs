//! Slices under way on one queue pair, and their fence.
//!
//! A slice is posted in pieces, each inside a passage in which its permission is looked at, so none
//! begins after that was withdrawn. What was posted before is over when [`Flight::settle`] returns:
//! it waits for what is not permitted any more, and where that takes longer than a healthy path does
//! tears the queue pair down, after which nothing lands.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvferry_proto::TransferId;
use kvferry_transport::lanes::{Lane, Look, Owed, Reactor, Watch, Watched};
use kvferry_transport::rdma::fetch::{Fetch, Fetched, Fetcher};
use kvferry_transport::rdma::verbs::Status as WorkStatus;
use parking_lot::Mutex;

use super::device::Berth;
use super::keys::BorrowedKeys;
use crate::loan::{Lender, Loans};
use crate::passage::{self, Flight};
use crate::time;

/// How long a fence waits for what is under way, before it tears the queue pair down. A healthy path
/// takes some hundred microseconds for what may be out.
const SETTLE: Duration = Duration::from_millis(50);

/// A slice of a transfer.
pub(crate) type SliceId = (TransferId, u32);

/// What is to be known of a slice that is fetched.
pub(crate) trait Errand: Send {
    /// Whether its destination may be written to now. To be asked inside a passage, or while
    /// something of it is under way.
    fn is_allowed(&self) -> bool;

    /// Nothing of it is under way any more. Called under no lock.
    fn finish(self: Box<Self>, lane: &Lane, end: End);
}

/// How a slice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All of it is in place.
    InPlace,
    /// It was not permitted any more.
    Forbidden,
    /// The other end's adapter does not let it be read: the region is gone there, or the key is wrong.
    NoSource,
    /// This end's adapter does not reach where it is to go.
    NoTarget,
}

/// The queue pair of a lane, with all that is under way on it.
pub(crate) struct Link {
    /// What this end lends.
    pub(crate) loans: Arc<Loans>,
    /// What the other end has lent.
    pub(crate) keys: BorrowedKeys,
    watch: Mutex<Option<Watch>>,
    slices: Mutex<Slices>,
    /// Something has come through by it, here or at the other end.
    has_carried: AtomicBool,
}

struct Slices {
    /// `None` once the lane is closed.
    fetcher: Option<Fetcher>,
    /// The lane, once there is one and until it is closed.
    lane: Option<Lane>,
    under_way: BTreeMap<u64, Slice>,
    ids: HashSet<SliceId>,
    /// Those that are not posted whole, in order.
    to_post: VecDeque<u64>,
    next: u64,
    /// What has ended, and was not told yet.
    ended: Vec<Ended>,
    /// The queue pair is torn down.
    is_over: bool,
    /// Why, until its lane is told.
    broken: Option<Broken>,
    /// Why, where it was lost.
    failure: Option<Arc<str>>,
    /// The reactor looks at it, or is told by the descriptor when to.
    is_attended: bool,
    fetched: Vec<Fetched>,
}

struct Slice {
    id: SliceId,
    fetch: Fetch,
    errand: Box<dyn Errand>,
    owed: Owed,
    /// Pieces that are posted and not over.
    out: u32,
    /// Nothing more of it is posted.
    stopped: Option<End>,
}

struct Ended {
    errand: Box<dyn Errand>,
    owed: Owed,
    end: End,
}

/// Why a queue pair has failed.
enum Broken {
    /// One of its requests was refused, which its slice is told.
    Refused,
    /// The way, the other end or the adapter is gone.
    Lost(String),
}

impl Link {
    pub(crate) fn new(lender: Lender, fetcher: Fetcher, berth: &Berth) -> Arc<Self> {
        let link = Arc::new(Self {
            loans: Loans::by_key(lender, berth.registered().clone()),
            keys: BorrowedKeys::default(),
            watch: Mutex::default(),
            slices: Mutex::new(Slices {
                fetcher: Some(fetcher),
                lane: None,
                under_way: BTreeMap::new(),
                ids: HashSet::new(),
                to_post: VecDeque::new(),
                next: 0,
                ended: Vec::new(),
                is_over: false,
                broken: None,
                failure: None,
                is_attended: false,
                fetched: Vec::new(),
            }),
            has_carried: AtomicBool::new(false),
        });
        let flight: Arc<dyn Flight> = link.clone();
        passage::take_off(&flight);
        berth.take(&link);
        link
    }

    /// The lane that it belongs to.
    pub(crate) fn is_of(&self, lane: &Lane) {
        let mut slices = self.slices.lock();
        if slices.is_over {
            lane.reset();
        } else {
            slices.lane = Some(lane.clone());
        }
    }

    /// The way of its packets is gone: it is torn down, and its lane goes.
    pub(crate) fn lose(&self, why: &str) {
        {
            let mut slices = self.slices.lock();
            if slices.is_over {
                return;
            }
            slices.break_off(Broken::Lost(why.into()));
        }
        self.advance();
    }

    /// Why it was lost, if it was.
    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        self.slices.lock().failure.clone()
    }

    /// Whether anything has come through by it, as far as this end knows.
    pub(crate) fn has_carried(&self) -> bool {
        self.has_carried.load(Ordering::Relaxed)
    }

    /// Something has come through by it.
    pub(crate) fn note_carried(&self) {
        self.has_carried.store(true, Ordering::Relaxed);
    }

    /// Has a reactor look at it until it is closed. To be done before anything is fetched.
    pub(crate) fn attend(self: &Arc<Self>, reactor: &Reactor) -> io::Result<()> {
        let slices = self.slices.lock();
        if let Some(fetcher) = &slices.fetcher {
            let watch = reactor.watch(fetcher.descriptor(), self.clone())?;
            *self.watch.lock() = Some(watch);
        }
        Ok(())
    }

    /// Fetches a slice. False where the same is under way already; where the queue pair is gone it is
    /// dropped, as all of the lane is.
    pub(crate) fn fetch(
        &self,
        id: SliceId,
        fetch: Fetch,
        errand: Box<dyn Errand>,
        lane: &Lane,
    ) -> bool {
        let wake = {
            let mut slices = self.slices.lock();
            if slices.is_over {
                return true;
            }
            if !slices.ids.insert(id) {
                return false;
            }
            let number = slices.next;
            slices.next += 1;
            let slice = Slice { id, fetch, errand, owed: lane.owe(), out: 0, stopped: None };
            slices.under_way.insert(number, slice);
            slices.to_post.push_back(number);
            !std::mem::replace(&mut slices.is_attended, true)
        };
        self.advance();
        if wake {
            self.wake();
        }
        true
    }

    fn wake(&self) {
        if let Some(watch) = &*self.watch.lock() {
            watch.wake();
        }
    }

    /// Finds out what has landed, posts what there is room for, and tells whom it concerns.
    fn advance(&self) -> Look {
        let (mut look, ended, broken, lost, lane) = {
            let mut slices = self.slices.lock();
            let look = slices.advance();
            let broken = slices.broken.take();
            let broken = broken.and_then(|why| Some((slices.lane.clone()?, why)));
            let lost = slices.is_over.then(|| slices.clear());
            (look, std::mem::take(&mut slices.ended), broken, lost, slices.lane.clone())
        };
        let has_ended = !ended.is_empty();
        for Ended { errand, owed, end } in ended {
            if end == End::InPlace {
                self.note_carried();
            }
            errand.finish(owed.lane(), end);
            look = Look::Worked;
        }
        if has_ended && let Some(lane) = &lane {
            // Nothing that comes on the lane may tell when what was held back is to go out.
            lane.idle();
        }
        drop(lost);
        match broken {
            None => {}
            // What was said of the slice that was refused goes out first.
            Some((lane, Broken::Refused)) => lane.close(),
            Some((lane, Broken::Lost(why))) => {
                tracing::info!(%why, "a queue pair has failed: its lane goes");
                lane.reset();
            }
        }
        look
    }

    /// Whether the queue pair has failed, or was torn down.
    pub(crate) fn has_failed(&self) -> bool {
        self.slices.lock().is_over
    }

    /// The lane is closed: when this returns nothing lands by it any more.
    pub(crate) fn close(&self) {
        let (fetcher, lane, lost) = {
            let mut slices = self.slices.lock();
            slices.end();
            (slices.fetcher.take(), slices.lane.take(), slices.clear())
        };
        // Before its descriptor goes.
        drop(self.watch.lock().take());
        drop((fetcher, lane, lost));
        self.keys.clear();
        self.loans.close();
    }
}

impl Slices {
    fn advance(&mut self) -> Look {
        let mut worked = self.collect();
        worked |= self.post();
        match (self.under_way.is_empty(), worked) {
            (true, _) => {
                self.is_attended = false;
                Look::Idle
            }
            (false, true) => Look::Worked,
            (false, false) => Look::Waiting,
        }
    }

    /// Takes what has completed. Whether there was anything.
    fn collect(&mut self) -> bool {
        let Some(fetcher) = self.fetcher.as_mut().filter(|_| !self.is_over) else { return false };
        let mut fetched = std::mem::take(&mut self.fetched);
        let polled = fetcher.poll(&mut fetched);
        let worked = !fetched.is_empty();
        for one in fetched.drain(..) {
            match one {
                Fetched::InPlace { fetch } => self.landed(fetch),
                Fetched::Failed { fetch, status } => self.failed(fetch, status),
            }
        }
        self.fetched = fetched;
        if let Err(error) = polled {
            self.break_off(Broken::Lost(error.to_string()));
        }
        worked
    }

    /// The queue pair does not work any more, or must not: nothing lands after this.
    fn break_off(&mut self, why: Broken) {
        self.end();
        if let Broken::Lost(why) = &why
            && self.broken.is_none()
        {
            self.failure.get_or_insert_with(|| why.as_str().into());
        }
        self.broken.get_or_insert(why);
    }

    fn end(&mut self) {
        self.is_over = true;
        if let Some(Err(error)) = self.fetcher.as_mut().map(Fetcher::end) {
            // An adapter that does not take a queue pair down is gone, as far as is known of any.
            tracing::error!(%error, "a queue pair could not be torn down");
        }
    }

    fn landed(&mut self, number: u64) {
        let Some(slice) = self.under_way.get_mut(&number) else { return };
        slice.out -= 1;
        if slice.out > 0 {
            return;
        }
        match slice.stopped {
            Some(end) => self.finish(number, end),
            None if slice.fetch.left() == 0 => self.finish(number, End::InPlace),
            None => {}
        }
    }

    fn failed(&mut self, number: u64, status: WorkStatus) {
        // Before anybody is told.
        self.end();
        let end = match status {
            WorkStatus::RemoteAccess | WorkStatus::RemoteOperation => End::NoSource,
            WorkStatus::LocalProtection => End::NoTarget,
            status => return self.break_off(Broken::Lost(status.to_string())),
        };
        self.finish(number, end);
        self.break_off(Broken::Refused);
    }

    fn finish(&mut self, number: u64, end: End) {
        if let Some(Slice { id, errand, owed, .. }) = self.under_way.remove(&number) {
            self.ids.remove(&id);
            self.ended.push(Ended { errand, owed, end });
        }
    }

    /// Posts pieces while there is room, in the order in which slices came. Whether there was any.
    fn post(&mut self) -> bool {
        let mut worked = false;
        while let Some(number) = self.to_post.front().copied() {
            let (Some(fetcher), Some(slice)) =
                (self.fetcher.as_mut(), self.under_way.get_mut(&number))
            else {
                self.to_post.pop_front();
                continue;
            };
            if !fetcher.has_room() {
                break;
            }
            worked = true;
            let Slice { errand, fetch, .. } = slice;
            let posted =
                passage::enter(|| errand.is_allowed().then(|| fetcher.post(number, fetch)));
            let stopped = match posted {
                Some(Ok(Ok(()))) => {
                    slice.out += 1;
                    if slice.fetch.left() == 0 {
                        self.to_post.pop_front();
                    }
                    continue;
                }
                Some(Ok(Err(error))) => {
                    self.break_off(Broken::Lost(error.to_string()));
                    break;
                }
                Some(Err(unfetchable)) => {
                    tracing::warn!(%unfetchable, "a slice cannot be fetched");
                    End::NoTarget
                }
                None => End::Forbidden,
            };
            self.to_post.pop_front();
            slice.stopped = Some(stopped);
            if slice.out == 0 {
                self.finish(number, stopped);
            }
        }
        worked
    }

    /// Whether something is under way that is not permitted any more.
    fn is_unsettled(&self) -> bool {
        self.under_way.values().any(|slice| slice.out > 0 && !slice.errand.is_allowed())
    }

    fn clear(&mut self) -> BTreeMap<u64, Slice> {
        self.to_post.clear();
        self.ids.clear();
        std::mem::take(&mut self.under_way)
    }
}

impl Flight for Link {
    fn settle(&self) {
        let mut deadline = None;
        loop {
            let mut slices = self.slices.lock();
            if slices.is_over || !slices.is_unsettled() {
                break;
            }
            slices.collect();
            let now = time::now();
            let deadline = deadline.get_or_insert(now + SETTLE);
            if now >= *deadline && !slices.is_over && slices.is_unsettled() {
                slices.break_off(Broken::Lost("a fence waited for what was under way".into()));
            }
            drop(slices);
            std::thread::yield_now();
        }
        // Whoever waits for what has ended meanwhile is told by the reactor.
        if deadline.is_some() {
            self.wake();
        }
    }
}

impl Watched for Link {
    fn look(&self) -> Look {
        if let Some(fetcher) = &mut self.slices.lock().fetcher
            && let Err(error) = fetcher.take_wakeup()
        {
            tracing::warn!(%error, "a completion channel does not answer");
        }
        self.advance()
    }

    fn rest(&self) -> bool {
        let armed = match &mut self.slices.lock().fetcher {
            Some(fetcher) => fetcher.arm(),
            None => return false,
        };
        if let Err(error) = armed {
            tracing::warn!(%error, "a completion queue cannot be waited for");
        }
        self.advance() == Look::Worked
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let under_way = self.slices.lock().under_way.len();
        f.debug_struct("Link").field("under_way", &under_way).finish_non_exhaustive()
    }
}
