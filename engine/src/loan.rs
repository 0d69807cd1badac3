//! Memory that two engines of one host lend each other, lane by lane: what went out, and what came.
//!
//! A region is lent when the first slice that it is needed for goes out on a lane, before it and on
//! the same lane, so whoever reads the slice has the region. It is recalled when it is unregistered.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use kvferry_proto::RegionId;
use kvferry_proto::frame::{Loan, Reply, Request};
use kvferry_transport::lanes::Lane;
use kvferry_transport::local::PeerMemory;
use kvferry_transport::memory::MemoryError;
use parking_lot::Mutex;

use crate::registry::{Borrower, RegionInner};

/// How many regions one end lends on one lane. What is above it is sent as a payload.
const MOST_LOANS: usize = 4096;

/// How many bytes are copied from lent memory while permission is held: about what a passage may
/// take, some tens of microseconds where no page is touched for the first time.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

/// How a loan breaks the protocol on a lane over TCP.
pub(crate) const NOT_LENT_HERE: &str = "memory is not lent on this lane";

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
    /// A forked child has the lane too, and what it drops is its own affair.
    process: u32,
    out: Mutex<Out>,
}

impl Loans {
    pub(crate) fn new(lender: Lender) -> Arc<Self> {
        Arc::new(Self { lender, process: std::process::id(), out: Mutex::default() })
    }

    /// Whether the other end can read all of these regions, once it has read what is queued on the
    /// lane. Whatever is sent after this goes behind the loans.
    pub(crate) fn lend_all<'a>(
        self: &Arc<Self>,
        lane: &Lane,
        regions: impl IntoIterator<Item = &'a Arc<RegionInner>>,
    ) -> bool {
        let mut out = self.out.lock();
        regions.into_iter().all(|region| self.lend(&mut out, lane, region))
    }

    fn lend(self: &Arc<Self>, out: &mut Out, lane: &Lane, region: &Arc<RegionInner>) -> bool {
        if out.closed || out.lent.contains(&region.id) {
            return !out.closed;
        }
        if out.lent.len() >= MOST_LOANS {
            return false;
        }
        let borrower: Arc<dyn Borrower> = self.clone();
        let Some(descriptor) = region.lend(Arc::downgrade(&borrower)) else { return false };
        let loan = Loan { region: region.id, length: region.length() };
        let mut frame = Vec::new();
        match self.lender {
            Lender::Initiator => Request::encode_lend(&mut frame, loan),
            Lender::Owner => Reply::Lent(loan).encode_plain(&mut frame),
        }
        // Queued under the lock that a recall takes, which so comes behind it; not sent under it,
        // because whoever sends carries out what others have queued.
        lane.send_later_with(&frame, descriptor);
        out.lane.get_or_insert_with(|| lane.clone());
        out.lent.insert(region.id);
        true
    }

    fn close(&self) {
        let mut out = self.out.lock();
        out.closed = true;
        out.lent.clear();
        out.lane = None;
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
    Mapped(PeerMemory),
    /// This process has no room to map it.
    Unmapped,
}

/// What the other end has lent on one lane. All of it is given back with the lane.
#[derive(Debug, Default)]
pub(crate) struct Borrowings(Mutex<HashMap<RegionId, Borrowed>>);

impl Borrowings {
    /// The other end lends a region. Its descriptor came with the frame.
    ///
    /// # Errors
    /// How that breaks the protocol.
    pub(crate) fn take(&self, lane: &Lane, loan: Loan) -> Result<(), String> {
        let descriptor = lane.take_descriptor().ok_or("a region was lent without a descriptor")?;
        let mut borrowed = self.0.lock();
        if borrowed.len() >= MOST_LOANS {
            return Err(format!("more than {MOST_LOANS} regions were lent on one lane"));
        }
        let region = match PeerMemory::map(descriptor, loan.length) {
            Ok(memory) => Borrowed::Mapped(memory),
            Err(error @ MemoryError::NotLent { .. }) => return Err(error.to_string()),
            Err(error) => {
                tracing::warn!(region = %loan.region, %error, "a lent region cannot be mapped");
                Borrowed::Unmapped
            }
        };
        borrowed.insert(loan.region, region);
        Ok(())
    }

    /// The other end wants a region back. Copies that are under way keep it mapped until they end.
    pub(crate) fn give_back(&self, region: RegionId) {
        let given_back = self.0.lock().remove(&region);
        // Unmapped outside the lock: that takes a while for a large one.
        drop(given_back);
    }

    fn clear(&self) {
        let given_back = std::mem::take(&mut *self.0.lock());
        drop(given_back);
    }

    pub(crate) fn get(&self, region: RegionId) -> Option<Borrowed> {
        self.0.lock().get(&region).cloned()
    }
}

/// Both ends' loans on one lane.
#[derive(Clone, Debug)]
pub(crate) struct Lending {
    pub(crate) loans: Arc<Loans>,
    pub(crate) borrowings: Arc<Borrowings>,
}

impl Lending {
    pub(crate) fn new(lender: Lender) -> Self {
        Self { loans: Loans::new(lender), borrowings: Arc::default() }
    }

    /// The lane is closed: nothing is lent on it any more, either way.
    pub(crate) fn close(&self) {
        self.loans.close();
        self.borrowings.clear();
    }
}
