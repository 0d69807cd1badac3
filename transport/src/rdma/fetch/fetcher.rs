//! Requests on a queue pair: posted, counted, ended.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::cut::{Cut, Fetch, Piece, Pieces, Unfetchable};
use super::registered::Registered;
use crate::rdma::verbs::{
    Capacity, Completion, CompletionQueue, Context, LocalSpan, MemoryRegion, Operation, Outcome,
    QueuePair, RemoteAddress, Status, VerbsError, Work,
};

/// How many bytes may be under way at once. What is revoked meanwhile waits for no more than these:
/// 80 us at 100 Gb/s, which is also more than any path within a data centre holds.
pub const BYTES_OUT: u64 = 1 << 20;

/// How many requests are handed to the adapter with one doorbell, and complete with one completion.
const CHAIN_REQUESTS: usize = 32;

/// How many bytes of them: so that several chains are under way, and one is always being carried out
/// while others complete.
const CHAIN_BYTES: u64 = BYTES_OUT / 4;

/// How many requests a queue pair has room for, where its adapter has.
const REQUESTS: u32 = 128;

/// How many local spans a request has, where its adapter takes as many.
const SPANS: u32 = 16;

/// How many completions are fetched at once.
const COMPLETIONS: usize = 64;

/// Carries fetches out, on one queue pair of its own. Dropping it tears the queue pair down.
#[derive(Debug)]
pub struct Fetcher {
    /// `None` once it has ended.
    pair: Option<QueuePair>,
    queue: CompletionQueue,
    registered: Arc<Registered>,
    capacity: Capacity,
    /// Posted and not over, in order.
    chains: VecDeque<Chain>,
    next_chain: u64,
    requests_out: u32,
    bytes_out: u64,
    is_armed: bool,
    completions: Vec<Completion>,
    /// Room for the local spans of a chain, while it is posted.
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Chain {
    id: u64,
    /// Whose it is.
    fetch: u64,
    requests: u32,
    bytes: u64,
    /// What it lands in, which stays registered until it is over.
    _into: Vec<Arc<MemoryRegion>>,
}

/// What has become of a chain of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// Its bytes are in place.
    InPlace {
        /// The number of its fetch.
        fetch: u64,
    },
    /// It failed, and the queue pair with it: nothing that was posted later is carried out. Told once.
    Failed {
        /// The number of its fetch.
        fetch: u64,
        /// Why.
        status: Status,
    },
}

impl Fetcher {
    /// What its queue pair has to have room for.
    #[must_use]
    pub fn capacity(context: &Context) -> Capacity {
        let limits = context.limits();
        Capacity {
            requests: REQUESTS.min(limits.requests).max(1),
            announcements: 0,
            spans: SPANS.min(limits.spans).max(1),
            inline_bytes: 0,
        }
    }

    /// A completion queue for it.
    ///
    /// # Errors
    /// Where the adapter has none.
    pub fn queue(context: &Context) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::new(context, Self::capacity(context).requests)
    }

    /// On a queue pair with this capacity that completes to this queue and reaches this memory.
    #[must_use]
    pub fn new(
        pair: QueuePair,
        queue: CompletionQueue,
        capacity: Capacity,
        registered: Arc<Registered>,
    ) -> Self {
        Self {
            pair: Some(pair),
            queue,
            registered,
            capacity,
            chains: VecDeque::new(),
            next_chain: 0,
            requests_out: 0,
            bytes_out: 0,
            is_armed: false,
            completions: Vec::with_capacity(COMPLETIONS),
            pieces: Vec::new(),
        }
    }

    /// A descriptor that is readable when something has completed, after [`Self::arm`].
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }

    /// Whether a further piece may be posted.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.pair.is_some()
            && self.bytes_out + CHAIN_BYTES <= BYTES_OUT
            && self.requests_out < self.capacity.requests
    }

    /// Whether anything is under way.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.chains.is_empty()
    }

    /// Whether anything of a fetch is under way.
    #[must_use]
    pub fn is_under_way(&self, fetch: u64) -> bool {
        self.chains.iter().any(|chain| chain.fetch == fetch)
    }

    /// Posts the next piece of a fetch, whose number this is; there has to be room. Its destination is
    /// written to from now on, until it is told to be in place or this has ended.
    ///
    /// # Errors
    /// Where memory here is not registered: nothing of this piece is posted then. The inner one is the
    /// adapter's: what it has refused does not come back, and the queue pair is to be ended.
    pub fn post(
        &mut self,
        number: u64,
        fetch: &mut Fetch,
    ) -> Result<Result<(), VerbsError>, Unfetchable> {
        let Some(pair) = &self.pair else { return Ok(Err(VerbsError::QueuePairFailed)) };
        let free = (self.capacity.requests - self.requests_out) as usize;
        let most_spans = self.capacity.spans as usize;
        let mut into = Pieces { parts: Vec::new(), pieces: std::mem::take(&mut self.pieces) };
        into.pieces.clear();
        let most = free.min(CHAIN_REQUESTS);
        let (mut cuts, mut bytes) = (Vec::<Cut>::with_capacity(most), 0);
        while cuts.len() < most && bytes < CHAIN_BYTES {
            let Some(cut) = fetch.next(&self.registered, most_spans, &mut into)? else { break };
            bytes += cut.bytes;
            cuts.push(cut);
        }
        if cuts.is_empty() {
            self.pieces = into.pieces;
            return Ok(Ok(()));
        }
        let Pieces { parts, pieces } = into;
        let span = |&Piece { part, offset, bytes }: &Piece| LocalSpan {
            region: &parts[part],
            offset,
            bytes,
        };
        let spans: Vec<LocalSpan<'_>> = pieces.iter().map(span).collect();
        let (last, id, mut rest) = (cuts.len() - 1, self.next_chain, &spans[..]);
        let mut work: Vec<Work<'_>> = Vec::with_capacity(cuts.len());
        for (index, cut) in cuts.iter().enumerate() {
            let (into, others) = rest.split_at(cut.spans);
            rest = others;
            let operation = Operation::Read { from: cut.from, into };
            work.push(Work { id, signaled: index == last, operation });
        }
        let posted = pair.post(&work);
        drop(work);
        drop(spans);
        self.pieces = pieces;
        // Counted also where it was refused in part: those before are under way.
        let requests = u32::try_from(cuts.len()).unwrap_or(u32::MAX);
        self.chains.push_back(Chain { id, fetch: number, requests, bytes, _into: parts });
        self.next_chain += 1;
        self.requests_out += requests;
        self.bytes_out += bytes;
        Ok(posted)
    }

    /// Asks the peer's adapter for no bytes: what comes of it is found like the end of a fetch, whose
    /// number is the largest there is. Until then nothing else is to be posted.
    ///
    /// # Errors
    /// The adapter's.
    pub fn probe(&mut self) -> Result<(), VerbsError> {
        let pair = self.pair.as_ref().ok_or(VerbsError::QueuePairFailed)?;
        let id = self.next_chain;
        // A read of no bytes names no memory (InfiniBand Architecture Specification volume 1, C9-88),
        // and is answered all the same.
        let from = RemoteAddress { address: 0, key: 0 };
        let operation = Operation::Read { from, into: &[] };
        pair.post(&[Work { id, signaled: true, operation }])?;
        let (fetch, requests, bytes, into) = (u64::MAX, 1, 0, Vec::new());
        self.chains.push_back(Chain { id, fetch, requests, bytes, _into: into });
        self.next_chain += 1;
        self.requests_out += requests;
        Ok(())
    }

    /// Finds out what has completed since.
    ///
    /// # Errors
    /// Where the adapter is gone.
    pub fn poll(&mut self, ended: &mut Vec<Fetched>) -> Result<(), VerbsError> {
        if self.chains.is_empty() {
            return Ok(());
        }
        let mut completions = std::mem::take(&mut self.completions);
        let polled = self.poll_into(&mut completions, ended);
        completions.clear();
        self.completions = completions;
        polled
    }

    fn poll_into(
        &mut self,
        completions: &mut Vec<Completion>,
        ended: &mut Vec<Fetched>,
    ) -> Result<(), VerbsError> {
        loop {
            completions.clear();
            let fetched = self.queue.poll(completions, COMPLETIONS)?;
            for completion in completions.iter() {
                match completion.outcome {
                    Outcome::Done | Outcome::Announced { .. } => {
                        self.complete(completion.id, ended);
                    }
                    // The first that failed is the one that says why: what follows was flushed.
                    Outcome::Failed { status, .. } => {
                        if let Some(chain) = self.chains.iter().find(|c| c.id == completion.id) {
                            ended.push(Fetched::Failed { fetch: chain.fetch, status });
                        }
                        return Ok(());
                    }
                }
            }
            if fetched < COMPLETIONS {
                return Ok(());
            }
        }
    }

    fn complete(&mut self, id: u64, ended: &mut Vec<Fetched>) {
        while let Some(chain) = self.chains.pop_front_if(|chain| chain.id <= id) {
            self.requests_out -= chain.requests;
            self.bytes_out -= chain.bytes;
            ended.push(Fetched::InPlace { fetch: chain.fetch });
        }
    }

    /// Has the descriptor become readable with what completes from now on. What has completed
    /// already does not count: poll once more.
    ///
    /// # Errors
    /// Where the adapter is gone.
    pub fn arm(&mut self) -> Result<(), VerbsError> {
        if !self.is_armed {
            self.queue.arm()?;
            self.is_armed = true;
        }
        Ok(())
    }

    /// Takes the word that something has completed.
    ///
    /// # Errors
    /// Where the adapter is gone.
    pub fn take_wakeup(&mut self) -> Result<(), VerbsError> {
        while self.queue.take_wakeup()? {
            self.is_armed = false;
        }
        Ok(())
    }

    /// Tears the queue pair down. When this returns nothing that was posted reads or writes memory of
    /// this process any more, and nothing can be posted.
    ///
    /// # Errors
    /// Where the adapter refuses, as when it is gone: it is left behind then.
    pub fn end(&mut self) -> Result<(), VerbsError> {
        let ended = self.pair.take().map_or(Ok(()), QueuePair::destroy);
        self.chains.clear();
        (self.requests_out, self.bytes_out) = (0, 0);
        ended
    }
}
