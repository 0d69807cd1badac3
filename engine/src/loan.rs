//! Memory that two engines lend each other, lane by lane: what went out, and what came. Between
//! processes of one host it is lent by descriptor or address, on lanes with a queue pair by key.
//!
//! A region is lent when the first slice that it is needed for goes out on a lane, before it and on
//! the same lane, so whoever reads the slice has the region. It is recalled when it is unregistered.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Weak};

use kvferry_proto::RegionId;
use kvferry_proto::frame::{KeyLoan, Loan, Reply, Request};
use kvferry_transport::lanes::Lane;
use kvferry_transport::local::{Beacon, Obstacle, PeerMemory, PeerProcess};
use kvferry_transport::memory::MemoryError;
use kvferry_transport::rdma::fetch::Registered;
use parking_lot::Mutex;

use crate::registry::{Borrower, Lent, RegionInner};

/// How many regions one end lends on one lane. What is above it is sent as a payload.
const MOST_LOANS: usize = 4096;

/// How many bytes are copied from lent memory while permission is held: about what a passage may
/// take, some tens of microseconds where no page is touched for the first time.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

/// While this much is to be copied on a lane, nothing comes of it within the time that a thread looks for
/// more before it sleeps: so it need not look, which takes from the copy where both share cores.
pub(crate) const BUSY_BYTES: u64 = 1 << 20;

/// From this many bytes a span on, foreign memory is read where it lies, not sent as a payload.
///
/// `kvbench ways`, 64 MiB on two cores of an AMD EPYC (Genoa class): read in place by one thread at
/// 0.6 of a copying socket's rate in spans of 2 KiB, at 1.2 of it in spans of 4 KiB, with less
/// processor time from there on. It is so in pages of 4 KiB and of 2 MiB, so a region's pages need
/// not be known, which to ask for takes a walk over all mappings of the process.
const LEAST_IN_PLACE_BYTES: u32 = 4096;

/// How a loan breaks the protocol on a lane over TCP.
pub(crate) const NOT_LENT_HERE: &str = "memory is not lent on this lane";

/// What the two ends of a lane between processes of one host found out about each other when they met:
/// whether each can read the other's memory where it lies.
#[derive(Debug)]
pub(crate) struct Reach {
    /// The other end's process, or why this one cannot read its memory.
    theirs: Result<Arc<PeerProcess>, Obstacle>,
    /// Why the other end cannot read this process's, if so.
    ours: Result<(), Obstacle>,
    /// By what it knows this process, for as long as the lane is open.
    beacon: Option<Beacon>,
}

impl Reach {
    pub(crate) fn new(
        theirs: Result<PeerProcess, Obstacle>,
        ours: Result<(), Obstacle>,
        beacon: Option<Beacon>,
    ) -> Self {
        Self { theirs: theirs.map(Arc::new), ours, beacon }
    }

    /// What stands in the way of reading foreign memory where it lies, for those who want to know.
    pub(crate) fn obstacle(&self) -> Option<String> {
        let theirs = self.theirs.as_ref().err().map(|why| format!("this process cannot: {why}"));
        let ours = self.ours.err().map(|why| format!("the peer cannot: {why}"));
        match (theirs, ours) {
            (Some(theirs), Some(ours)) => Some(format!("{theirs}; {ours}")),
            (theirs, ours) => theirs.or(ours),
        }
    }
}

/// Which end of the lane lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lender {
    /// The engine that opened it.
    Initiator,
    /// The engine that accepted it.
    Owner,
}

#[derive(Default)]
struct Out {
    /// The lane, once something was lent on it and until it closes.
    lane: Option<Lane>,
    lent: HashSet<RegionId>,
    closed: bool,
}

/// What this end has lent on one lane.
pub(crate) struct Loans {
    lender: Lender,
    means: Means,
    /// A forked child has the lane too, and what it drops is its own affair.
    process: u32,
    out: Mutex<Out>,
}

/// How the other end reads what it was lent.
enum Means {
    /// By mapping it, or where it lies, if that process can read this one's memory.
    Process { is_in_reach: bool },
    /// By keys of this adapter's; `None` once the lane is closed. Whoever looks at a lane that is closed, as
    /// any fence of the process does, keeps no adapter open by it.
    Adapter(Mutex<Option<Arc<Registered>>>),
}

impl Loans {
    fn new(lender: Lender, means: Means) -> Arc<Self> {
        let (process, out) = (std::process::id(), Mutex::default());
        Arc::new(Self { lender, means, process, out })
    }

    /// What is lent by keys of an adapter's.
    pub(crate) fn by_key(lender: Lender, registered: Arc<Registered>) -> Arc<Self> {
        Self::new(lender, Means::Adapter(Mutex::new(Some(registered))))
    }

    /// Whether the other end can read all of these regions, and is the better for it, in spans of
    /// about so many bytes, once it has read what is queued on the lane. Whatever is sent after this
    /// goes behind the loans.
    pub(crate) fn lend_all<'a>(
        self: &Arc<Self>,
        lane: &Lane,
        regions: impl IntoIterator<Item = &'a Arc<RegionInner>>,
        span_bytes: u32,
    ) -> bool {
        let mut out = self.out.lock();
        regions.into_iter().all(|region| {
            let is_worth_it = match &self.means {
                Means::Process { is_in_reach } => {
                    !region.is_foreign() || *is_in_reach && span_bytes >= LEAST_IN_PLACE_BYTES
                }
                Means::Adapter(_) => true,
            };
            is_worth_it && self.lend(&mut out, lane, region)
        })
    }

    fn lend(self: &Arc<Self>, out: &mut Out, lane: &Lane, region: &Arc<RegionInner>) -> bool {
        if out.closed || out.lent.contains(&region.id) {
            return !out.closed;
        }
        if out.lent.len() >= MOST_LOANS {
            return false;
        }
        let borrower: Arc<dyn Borrower> = self.clone();
        let borrower = Arc::downgrade(&borrower);
        let is_lent = match &self.means {
            Means::Process { .. } => self.lend_to_process(lane, region, borrower),
            Means::Adapter(registered) => {
                let registered = registered.lock().clone();
                registered.is_some_and(|keys| self.lend_keys(lane, region, &keys, borrower))
            }
        };
        if is_lent {
            out.lane.get_or_insert_with(|| lane.clone());
            out.lent.insert(region.id);
        }
        is_lent
    }

    /// Queued under the lock that a recall takes, which so comes behind it; not sent under it, because
    /// whoever sends carries out what others have queued.
    fn lend_to_process(
        &self,
        lane: &Lane,
        region: &RegionInner,
        borrower: Weak<dyn Borrower>,
    ) -> bool {
        let Some(lent) = region.lend(borrower) else { return false };
        let (base, descriptor) = match lent {
            Lent::Descriptor(descriptor) => (None, Some(descriptor)),
            Lent::InPlace { base } => (Some(base), None),
        };
        let loan = Loan { region: region.id, length: region.length(), base };
        let mut frame = Vec::new();
        match self.lender {
            Lender::Initiator => Request::encode_lend(&mut frame, loan),
            Lender::Owner => Reply::Lent(loan).encode_plain(&mut frame),
        }
        match descriptor {
            Some(descriptor) => lane.send_later_with(&frame, descriptor),
            None => lane.send_later(&frame),
        }
        true
    }

    /// As above, part by part. A region that is not registered with the adapter is not lent.
    fn lend_keys(
        &self,
        lane: &Lane,
        region: &RegionInner,
        registered: &Registered,
        borrower: Weak<dyn Borrower>,
    ) -> bool {
        let parts = registered.parts(region.base(), region.length());
        if parts.is_empty() || !region.tell(borrower) {
            return false;
        }
        let mut frames = Vec::new();
        for part in parts {
            let loan = KeyLoan {
                region: region.id,
                offset: part.offset,
                bytes: part.bytes,
                address: part.remote.address,
                key: part.remote.key,
            };
            match self.lender {
                Lender::Initiator => Request::encode_lend_key(&mut frames, loan),
                Lender::Owner => Reply::LentKey(loan).encode_plain(&mut frames),
            }
        }
        lane.send_later(&frames);
        true
    }

    pub(crate) fn close(&self) {
        let mut out = self.out.lock();
        out.closed = true;
        out.lent.clear();
        out.lane = None;
        if let Means::Adapter(registered) = &self.means {
            // The last of them closes the adapter.
            let _closed = registered.lock().take();
        }
    }
}

impl Borrower for Loans {
    fn recall(&self, region: RegionId) {
        if self.process != std::process::id() {
            return;
        }
        let lane = {
            let mut out = self.out.lock();
            if !out.lent.remove(&region) {
                return;
            }
            let Some(lane) = out.lane.clone() else { return };
            let mut frame = Vec::new();
            match self.lender {
                Lender::Initiator => Request::encode_recall(&mut frame, region),
                Lender::Owner => Reply::Recalled(region).encode_plain(&mut frame),
            }
            lane.send_later(&frame);
            lane
        };
        lane.send_queued();
    }
}

impl fmt::Debug for Loans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lent = self.out.lock().lent.len();
        f.debug_struct("Loans").field("lender", &self.lender).field("lent", &lent).finish()
    }
}

/// A region that the other end has lent.
#[derive(Clone, Debug)]
pub(crate) enum Borrowed {
    Readable(PeerMemory),
    /// This process has no room to map it.
    Unreadable,
}

/// What became of a piece that could not be copied from what the other end has lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Uncopied {
    /// Memory of this process cannot be touched: the slice has failed.
    Fault,
    /// The other end's is not there: the slice has failed.
    PeerFault,
    /// The other end's process is not to be read any more: the lane goes, and the next one finds
    /// out what is possible now.
    OutOfReach,
}

impl From<MemoryError> for Uncopied {
    fn from(error: MemoryError) -> Self {
        tracing::warn!(%error, "lent memory cannot be copied");
        match error {
            // That the system has nothing left would be met again on the next lane.
            MemoryError::OutOfReach { obstacle } if obstacle != Obstacle::Exhausted => {
                Self::OutOfReach
            }
            MemoryError::PeerFault => Self::PeerFault,
            _ => Self::Fault,
        }
    }
}

/// What the other end has lent on one lane. All of it is given back with the lane.
#[derive(Debug)]
pub(crate) struct Borrowings {
    /// The other end's process, where its memory can be read.
    process: Option<Arc<PeerProcess>>,
    borrowed: Mutex<HashMap<RegionId, Borrowed>>,
}

impl Borrowings {
    /// The other end lends a region. Where it is not to be read in place, its descriptor came with
    /// the frame.
    ///
    /// # Errors
    /// How that breaks the protocol.
    pub(crate) fn take(&self, lane: &Lane, loan: Loan) -> Result<(), String> {
        let mut borrowed = self.borrowed.lock();
        if borrowed.len() >= MOST_LOANS {
            return Err(format!("more than {MOST_LOANS} regions were lent on one lane"));
        }
        let memory = match (loan.base, &self.process) {
            (None, _) => {
                let descriptor = lane.take_descriptor();
                let descriptor = descriptor.ok_or("a region was lent without a descriptor")?;
                PeerMemory::map(descriptor, loan.length)
            }
            (Some(base), Some(process)) => PeerMemory::in_place(process, base, loan.length),
            (Some(_), None) => return Err("a region was lent in place that is out of reach".into()),
        };
        let region = match memory {
            Ok(memory) => Borrowed::Readable(memory),
            Err(error @ MemoryError::NotLent { .. }) => return Err(error.to_string()),
            Err(error) => {
                tracing::warn!(region = %loan.region, %error, "a lent region cannot be mapped");
                Borrowed::Unreadable
            }
        };
        borrowed.insert(loan.region, region);
        Ok(())
    }

    /// The other end wants a region back. Copies that are under way keep it mapped until they end.
    pub(crate) fn give_back(&self, region: RegionId) {
        let given_back = self.borrowed.lock().remove(&region);
        // Unmapped outside the lock: that takes a while for a large one.
        drop(given_back);
    }

    fn clear(&self) {
        let given_back = std::mem::take(&mut *self.borrowed.lock());
        drop(given_back);
    }

    pub(crate) fn get(&self, region: RegionId) -> Option<Borrowed> {
        self.borrowed.lock().get(&region).cloned()
    }
}

/// Both ends' loans on one lane.
#[derive(Clone, Debug)]
pub(crate) struct Lending {
    pub(crate) loans: Arc<Loans>,
    pub(crate) borrowings: Arc<Borrowings>,
    /// By what the other end knows this process.
    _beacon: Option<Arc<Beacon>>,
}

impl Lending {
    pub(crate) fn new(lender: Lender, reach: Reach) -> Self {
        let loans = Loans::new(lender, Means::Process { is_in_reach: reach.ours.is_ok() });
        let borrowings = Borrowings { process: reach.theirs.ok(), borrowed: Mutex::default() };
        Self { loans, borrowings: Arc::new(borrowings), _beacon: reach.beacon.map(Arc::new) }
    }

    /// The lane is closed: nothing is lent on it any more, either way.
    pub(crate) fn close(&self) {
        self.loans.close();
        self.borrowings.clear();
    }
}
