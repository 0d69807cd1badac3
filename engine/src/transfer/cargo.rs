//! What a transfer carries, shared by everybody who works on it: the plan, the memory, the permit
//! to touch it, and the end.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kvferry_proto::frame::{Kind, Prefix, SectionWriter, SliceHead, Status};
use kvferry_proto::{GrantId, RegionId, TransferId};
use kvferry_transport::local::PeerSpans;
use kvferry_transport::memory::{Memory, MemoryError, SpanList};
use kvferry_transport::rdma::fetch::RemoteSpan;
use parking_lot::{Mutex, RwLock};

use super::{Op, Outcome};
use crate::completion::{Completion, Report};
use crate::error::{Error, Remote, TransferError};
use crate::loan::{Borrowed, Borrowings};
use crate::metrics::Carriers;
use crate::net::Endpoint;
use crate::passage;
use crate::plan::{Plan, Slice};
use crate::rdma::{BorrowedKeys, LentRegion};
use crate::registry::{Holder, RegionInner, RegionUse};
use crate::time;
use crate::transports::Transport;

/// Who can end a transfer: the peer's driver.
pub(crate) trait Driver: Send + Sync {
    /// As [`crate::Transfer::cancel`].
    fn cancel(&self, transfer: TransferId);
    /// A region of this process goes: the transfer ends now.
    fn cut(&self, transfer: TransferId);
    /// The transfer fails, for this cause.
    fn fail(&self, transfer: TransferId, cause: Error);
    /// Looks for answers to a transfer, on this thread and the lanes that they are to come on, until it
    /// `is_over`; not at all while there is no such lane.
    fn look(&self, transfer: TransferId, is_over: &dyn Fn() -> bool);
    /// A transfer has ended, as [`Counts::ended`](crate::metrics::Counts::ended).
    fn count(&self, op: Op, carriers: Carriers, done: Option<u64>);
    /// How long a thread that waits looks before it sleeps.
    fn spin(&self) -> Duration;
}

/// What a transfer needs beside its plan.
pub(crate) struct Terms {
    pub(crate) op: Op,
    pub(crate) peer: Endpoint,
    pub(crate) checksum: bool,
    pub(crate) notification: Option<Arc<[u8]>>,
    /// Whether its slices may go by reference, on lanes where that is possible.
    pub(crate) by_reference: bool,
    /// It names memory of a device: adapters carry all of it, or it fails.
    pub(crate) rdma_only: bool,
    pub(crate) begun: Instant,
    /// How long it took to resolve, check and plan it.
    pub(crate) planning: Duration,
    pub(crate) deadline: Instant,
}

/// How a slice goes out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Post {
    pub(crate) slice: u32,
    /// Its answer must not be held back.
    pub(crate) answer_now: bool,
    /// The oldest transfer that has not ended.
    pub(crate) floor: TransferId,
    /// The peer can read, or lends, what is moved.
    pub(crate) by_reference: bool,
}

/// Spans of a process's own need no grant.
const NO_GRANT: GrantId = GrantId(0);

/// Memory may be touched.
const OPEN: u8 = 0;
/// It may not, and the target drops what it still gets.
const FENCED: u8 = 1;
/// It may not, and the target may still store what it gets.
const UNFENCED: u8 = 2;

/// Whether a transfer's memory may be touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permit {
    Open,
    Fenced,
    Unfenced,
}

pub(crate) struct Cargo {
    terms: Terms,
    plan: Plan,
    /// Emptied at the end, so that a handle which is kept keeps no memory.
    locals: RwLock<Vec<Memory>>,
    /// The regions of these.
    regions: Vec<Arc<RegionInner>>,
    remotes: Vec<(GrantId, RegionId)>,
    driver: Box<dyn Driver>,
    id: OnceLock<TransferId>,
    permit: AtomicU8,
    /// What has carried any of it, and whether by reference: a bit each.
    carried_by: AtomicU8,
    /// How long it took to write its requests so far.
    encoding_ns: AtomicU64,
    completion: Completion,
    uses: Mutex<Vec<RegionUse>>,
}

impl Cargo {
    pub(crate) fn new(
        terms: Terms,
        plan: Plan,
        locals: Vec<Memory>,
        regions: Vec<Arc<RegionInner>>,
        remotes: Vec<(GrantId, RegionId)>,
        driver: Box<dyn Driver>,
    ) -> Self {
        Self {
            terms,
            plan,
            locals: RwLock::new(locals),
            regions,
            remotes,
            driver,
            id: OnceLock::new(),
            permit: AtomicU8::new(OPEN),
            carried_by: AtomicU8::new(0),
            encoding_ns: AtomicU64::new(0),
            completion: Completion::default(),
            uses: Mutex::default(),
        }
    }

    /// Keeps the local regions until the end.
    pub(crate) fn hold(&self, uses: Vec<RegionUse>) {
        *self.uses.lock() = uses;
    }

    /// Its number; 0 until it has one.
    pub(crate) fn id(&self) -> TransferId {
        self.id.get().copied().unwrap_or(TransferId(0))
    }

    pub(crate) fn numbered(&self, id: TransferId) {
        // It is numbered once, by whoever submits it.
        let _ = self.id.set(id);
    }

    pub(crate) fn completion(&self) -> &Completion {
        &self.completion
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The regions of this process that it uses.
    pub(crate) fn regions(&self) -> &[Arc<RegionInner>] {
        &self.regions
    }

    /// Something of it goes out by `transport`.
    pub(crate) fn carried_by(&self, transport: Transport) {
        self.carried_by.fetch_or(Carriers::of(transport).0, Ordering::Relaxed);
    }

    /// Some of it is copied by its receiver from where it is.
    pub(crate) fn referred_to(&self) {
        self.carried_by.fetch_or(BY_REFERENCE, Ordering::Relaxed);
    }

    /// Whether something of it went out by `transport`.
    pub(crate) fn went_by(&self, transport: Transport) -> bool {
        self.carried_by.load(Ordering::Relaxed) & Carriers::of(transport).0 != 0
    }

    fn carriers(&self) -> Carriers {
        Carriers(self.carried_by.load(Ordering::Relaxed) & !BY_REFERENCE)
    }

    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    pub(crate) fn cancel(&self) {
        self.driver.cancel(self.id());
    }

    /// Memory of this process cannot be read.
    pub(crate) fn fault(&self) {
        self.fail(Error::MemoryFault);
    }

    /// It fails, for this cause.
    pub(crate) fn fail(&self, cause: Error) {
        self.driver.fail(self.id(), cause);
    }

    /// Whether memory may be touched: to be looked at inside a passage.
    pub(crate) fn permit(&self) -> Permit {
        match self.permit.load(Ordering::Acquire) {
            OPEN => Permit::Open,
            FENCED => Permit::Fenced,
            _ => Permit::Unfenced,
        }
    }

    /// Returns when nothing touches the memory any more.
    fn forbid(&self, how: u8) {
        let _ = self.permit.compare_exchange(OPEN, how, Ordering::AcqRel, Ordering::Acquire);
        passage::quiesce();
    }

    /// Ends a transfer whose permit is gone already.
    pub(crate) fn end_if_cut(&self) {
        if self.permit() == Permit::Unfenced {
            self.driver.cut(self.id());
        }
    }

    /// The local spans of a slice, in payload order.
    pub(crate) fn local_spans(&self, slice: &Slice) -> Result<SpanList, MemoryError> {
        let mut spans = SpanList::new();
        spans.reserve(slice.spans as usize);
        let locals = self.locals.read();
        for run in self.plan.runs(slice) {
            // Without the memory the push below says that it is out of bounds.
            if let Some(memory) = locals.get(usize::from(run.local)) {
                spans.attach(memory);
            }
            for offset in run.local_offsets() {
                spans.push(offset, run.bytes)?;
            }
        }
        Ok(spans)
    }

    /// The spans of a read slice in what the peer has lent, in payload order; `None` where it has
    /// not lent all of it, or it could not be mapped.
    pub(crate) fn lent_spans(
        &self,
        slice: &Slice,
        borrowings: &Borrowings,
    ) -> Result<Option<PeerSpans>, MemoryError> {
        let mut spans = PeerSpans::new();
        spans.reserve(slice.spans as usize);
        let mut attached = None;
        for run in self.plan.runs(slice) {
            let (_, region) = self.remotes[usize::from(run.remote)];
            if attached != Some(region) {
                let Some(Borrowed::Readable(memory)) = borrowings.get(region) else {
                    return Ok(None);
                };
                spans.attach(&memory);
                attached = Some(region);
            }
            for offset in run.remote_offsets() {
                spans.push(offset, run.bytes)?;
            }
        }
        Ok(Some(spans))
    }

    /// The spans of a read slice in what the peer has lent by key, in payload order.
    pub(crate) fn keyed_spans(
        &self,
        slice: &Slice,
        keys: &BorrowedKeys,
    ) -> Result<Vec<RemoteSpan>, Status> {
        let mut spans = Vec::with_capacity(slice.spans as usize);
        let mut current: Option<(RegionId, LentRegion)> = None;
        for run in self.plan.runs(slice) {
            let (_, id) = self.remotes[usize::from(run.remote)];
            let region = match &current {
                Some((known, region)) if *known == id => region,
                _ => {
                    let region = keys.region(id).ok_or(Status::RegionGone)?;
                    &current.insert((id, region)).1
                }
            };
            for offset in run.remote_offsets() {
                region.push_span(offset, run.bytes, &mut spans)?;
            }
        }
        Ok(spans)
    }

    /// Whether pages of a write may be sent themselves, and not a copy of them: until the target has
    /// said that it has them, what it gets is what they hold when it takes them. So nothing may
    /// stand on them before: no notification in the same frame, and no checksum.
    pub(crate) fn may_lend_pages(&self) -> bool {
        self.terms.op == Op::Write && !self.terms.checksum && self.plan.slices().len() > 1
    }

    /// Appends the request for a slice to `out`: prefix, head and the remote spans.
    pub(crate) fn encode_slice(&self, out: &mut Vec<u8>, post: &Post, crc32c: Option<u32>) {
        let Some(slice) = self.plan.slices().get(post.slice as usize) else { return };
        let begun = time::now();
        let remaining = self.terms.deadline.saturating_duration_since(begun);
        let head = SliceHead {
            transfer: self.id(),
            floor: post.floor,
            slice: post.slice,
            remaining_us: u64::try_from(remaining.as_micros()).unwrap_or(u64::MAX),
            crc32c: crc32c.unwrap_or(0),
        };
        let targets = |writer: &mut SectionWriter<'_>| {
            writer.reserve(slice.runs());
            for run in self.plan.runs(slice) {
                let (grant, region) = self.remotes[usize::from(run.remote)];
                writer.push(grant, region, run.descriptor());
            }
        };
        let answer_now = post.answer_now;
        if self.terms.op == Op::Write && post.by_reference {
            head.encode_by_reference(out, answer_now, targets, |writer| {
                writer.reserve(slice.runs());
                for run in self.plan.runs(slice) {
                    let region = self.regions[usize::from(run.local)].id;
                    writer.push(NO_GRANT, region, run.local_descriptor());
                }
            });
            return self.encoded_since(begun);
        }
        let (kind, payload_bytes) = match self.terms.op {
            Op::Write => (Kind::Write, slice.bytes),
            Op::Read => (Kind::Read, 0),
        };
        let (checksum, by_reference) = (self.terms.checksum, post.by_reference);
        let prefix =
            Prefix { answer_now, checksum, by_reference, payload_bytes, ..Prefix::new(kind) };
        let rides =
            self.terms.op == Op::Write && self.plan.slices().len() == 1 && !self.terms.by_reference;
        let notification = self.terms.notification.as_deref().filter(|_| rides);
        head.encode(out, prefix, notification, targets);
        self.encoded_since(begun);
    }

    fn encoded_since(&self, begun: Instant) {
        let took = time::now().saturating_duration_since(begun);
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.encoding_ns.fetch_add(took_ns, Ordering::Relaxed);
    }

    /// It is over: fences its memory here, then tells its caller.
    pub(crate) fn end(&self, outcome: Outcome, repeated: u32) {
        let ended = match outcome {
            // Everything was acknowledged or has landed, so no call is under way.
            Outcome::Done => {
                self.permit.store(FENCED, Ordering::Release);
                Ok(Report {
                    transfer: self.id(),
                    bytes: self.plan.bytes(),
                    pairs: self.plan.pairs(),
                    descriptors: self.plan.descriptors() as u64,
                    slices: self.plan.slices().len() as u64,
                    repeated_slices: repeated,
                    transport: self.carriers().name(),
                    by_reference: self.carried_by.load(Ordering::Relaxed) & BY_REFERENCE != 0,
                    elapsed: time::now().saturating_duration_since(self.terms.begun),
                    planning: self.terms.planning,
                    encoding: Duration::from_nanos(self.encoding_ns.load(Ordering::Relaxed)),
                })
            }
            Outcome::Failed(cause, remote) => {
                self.forbid(if remote == Remote::Unknown { UNFENCED } else { FENCED });
                let peer = self.terms.peer.clone();
                Err(TransferError { transfer: Some(self.id()), peer, cause, remote })
            }
        };
        self.locals.write().clear();
        self.uses.lock().clear();
        // A notification that belongs to no data is no transfer of any.
        if self.plan.pairs() > 0 {
            let done = ended.as_ref().ok().map(|report| report.bytes);
            self.driver.count(self.terms.op, self.carriers(), done);
        }
        self.completion.end(ended);
    }
}

/// Beside the bits of transports.
const BY_REFERENCE: u8 = 128;

impl Holder for Cargo {
    fn transfer(&self) -> TransferId {
        self.id()
    }

    fn cut(&self) {
        self.driver.cut(self.id());
        // Whoever carries the end out may not have come to it yet.
        self.forbid(UNFENCED);
    }
}

impl fmt::Debug for Cargo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cargo")
            .field("id", &self.id())
            .field("op", &self.terms.op)
            .field("peer", &self.terms.peer)
            .field("bytes", &self.plan.bytes())
            .finish_non_exhaustive()
    }
}
