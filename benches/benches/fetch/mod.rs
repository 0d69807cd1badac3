//! What becomes of slices at the end whose adapter reads them: lists of spans are cut into requests, those
//! posted in chains, and their completions fetched.
//!
//! The adapter is the library of `tests/standin`, which does all of it at once. It has to be found as
//! `libibverbs.so.1`, as `.ci/instructions` sees to, and what its own functions take is not counted there.

use std::sync::Arc;

use kvferry_transport::memory::{Memory, SpanList};
use kvferry_transport::rdma::device::{DeviceName, GidIndex, PKeyIndex, PortNumber};
use kvferry_transport::rdma::fetch::{Fetch, Fetched, Fetcher, Registered, RemoteSpan};
use kvferry_transport::rdma::verbs::{
    CompletionQueue, Context, RemoteAddress, Route, Unconnected, Verbs,
};

use crate::cases::{BLOCK_BYTES, shuffled};

/// How many blocks are fetched.
pub(crate) const BLOCKS: u32 = SLICES * SLICE_BLOCKS;

const SLICES: u32 = 400;

/// 1 MiB of them.
const SLICE_BLOCKS: u32 = 256;

/// The memory at either end, whose blocks are fetched again and again.
const CACHE_BLOCKS: u32 = 4096;

/// As many blocks lie side by side where they do.
const RUN_BLOCKS: u32 = 16;

const ROUTE: Route = Route { port: PortNumber(1), gid: GidIndex(0), pkey: PKeyIndex(0) };

/// How blocks lie.
#[derive(Clone, Copy)]
pub(crate) enum Blocks {
    /// Apart at both ends: each is a request.
    Apart,
    /// In runs at the end that they are read from, apart here: a run is a request with many spans.
    Gathered,
    /// In runs at both ends: the plan has made one span of each.
    Merged,
}

/// Two queue pairs that are connected to each other, and memory that both reach.
pub(crate) struct Ends {
    here: Memory,
    there: Memory,
    named: RemoteAddress,
    fetcher: Fetcher,
    _peer: Fetcher,
}

/// The spans of a slice, at either end.
pub(crate) struct Slice {
    there: Vec<RemoteSpan>,
    here: SpanList,
}

impl Ends {
    pub(crate) fn connect() -> Self {
        let verbs = Verbs::load().expect("the stand-in as libibverbs.so.1");
        let context = verbs.open(&DeviceName::new("standin0")).expect("an adapter of the stand-in");
        let registered = Arc::new(Registered::new(&context).expect("a domain"));
        let memory = || {
            let bytes = u64::from(CACHE_BLOCKS) * u64::from(BLOCK_BYTES);
            let bytes = usize::try_from(bytes).expect("addresses of 64 bits");
            let memory = Memory::allocate(bytes).expect("memory for the blocks");
            registered.register(&memory).expect("a registration");
            memory
        };
        let (here, there) = (memory(), memory());
        let parts = registered.parts(there.base(), there.length());
        let named = parts.first().expect("it is one part").remote;
        for (block, at) in (0_u64..).step_by(BLOCK_BYTES as usize).zip(0..CACHE_BLOCKS) {
            there.copy_in(block, &at.to_ne_bytes()).expect("inside");
        }
        let ((pair, queue), (peer, peer_queue)) =
            (half(&context, &registered), half(&context, &registered));
        let (address, peer_address) = (pair.address(), peer.address());
        let fetcher = |pair: Unconnected, queue, to| {
            let pair = pair.connect(to).expect("a connection");
            Fetcher::new(pair, queue, Fetcher::capacity(&context), registered.clone())
        };
        let fetcher_here = fetcher(pair, queue, &peer_address);
        let fetcher_there = fetcher(peer, peer_queue, &address);
        Self { here, there, named, fetcher: fetcher_here, _peer: fetcher_there }
    }

    /// As many blocks as are fetched, in an order without a pattern.
    pub(crate) fn slices(&self, blocks: Blocks) -> Vec<Slice> {
        let (run_here, run_there) = match blocks {
            Blocks::Apart => (1, 1),
            Blocks::Gathered => (1, RUN_BLOCKS),
            Blocks::Merged => (RUN_BLOCKS, RUN_BLOCKS),
        };
        let bytes = |run: u32| run * BLOCK_BYTES;
        // A span is what both ends have in one.
        let (spans, span_bytes) = (SLICE_BLOCKS / run_here, bytes(run_here));
        let mut froms = places(1, run_there, run_here);
        let mut tos = places(2, run_here, run_here);
        let slice = |_| {
            let mut slice = Slice { there: Vec::new(), here: SpanList::new() };
            slice.here.attach(&self.here);
            for _ in 0..spans {
                let (from, to) = (froms.next(), tos.next());
                let (from, to) = (from.expect("10^6 places"), to.expect("10^6 places"));
                let address = self.named.address + from;
                let at = RemoteAddress { address, ..self.named };
                slice.there.push(RemoteSpan { at, bytes: span_bytes });
                slice.here.push(to, span_bytes).expect("inside");
            }
            slice
        };
        (0..SLICES).map(slice).collect()
    }

    /// Fetches slices, one after another. How many chains of requests that took.
    pub(crate) fn fetch(&mut self, slices: Vec<Slice>) -> usize {
        let (fetcher, mut ended, mut chains) = (&mut self.fetcher, Vec::new(), 0);
        for (number, Slice { there, here }) in (0_u64..).zip(slices) {
            let mut fetch = Fetch::new(there, &here).expect("as many bytes there as here");
            while fetch.left() > 0 {
                while fetch.left() > 0 && fetcher.has_room() {
                    let posted = fetcher.post(number, &mut fetch);
                    posted.expect("memory that is registered").expect("an adapter that works");
                }
                chains += take(fetcher, &mut ended);
            }
        }
        while fetcher.is_busy() {
            chains += take(fetcher, &mut ended);
        }
        chains
    }

    /// That what was fetched last is there: each block says where it lies, of runs the first one does.
    pub(crate) fn assert_fetched(&self, last: (u64, u64)) {
        let (from, to) = last;
        let (mut read, mut landed) = ([0; 4], [1; 4]);
        self.there.copy_out(from, &mut read).expect("inside");
        self.here.copy_out(to, &mut landed).expect("inside");
        assert_eq!(read, landed);
    }
}

impl Slice {
    /// Where its last span comes from and goes to, from the start of the memory at either end.
    pub(crate) fn last(&self, ends: &Ends) -> (u64, u64) {
        let from = self.there.last().map_or(0, |span| span.at.address - ends.named.address);
        let to = self.here.ranges().last().map_or(0, |(address, _)| address - ends.here.base());
        (from, to)
    }
}

/// A queue pair that has no peer yet, and where it completes.
fn half(context: &Context, registered: &Registered) -> (Unconnected, CompletionQueue) {
    let queue = Fetcher::queue(context).expect("a completion queue");
    let capacity = Fetcher::capacity(context);
    let pair = Unconnected::new(registered.domain(), &queue, ROUTE, capacity, 1);
    (pair.expect("a queue pair"), queue)
}

/// Where spans of `of` blocks start, in bytes: one after another within runs, which lie anywhere.
fn places(seed: u64, run: u32, of: u32) -> impl Iterator<Item = u64> {
    let runs = u64::from(CACHE_BLOCKS / run);
    let starts = shuffled(seed).into_iter().map(move |drawn| drawn % runs * u64::from(run));
    let within = move |start| (0..run / of).map(move |at| start + u64::from(at * of));
    starts.flat_map(within).map(|block| block * u64::from(BLOCK_BYTES))
}

fn take(fetcher: &mut Fetcher, ended: &mut Vec<Fetched>) -> usize {
    fetcher.poll(ended).expect("an adapter that works");
    assert!(ended.iter().all(|end| matches!(end, Fetched::InPlace { .. })), "{ended:?}");
    ended.drain(..).count()
}
