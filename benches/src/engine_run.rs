//! The engine's run: the list of blocks as one or more transfers, submitted from one or more
//! threads, together or one after another.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use kvferry_engine::{
    BlockList, LayoutView, LocalSpans, Peer, RemoteBlocks, RemoteLayout, RemoteSpans, Report,
    Request,
};

use crate::cli::Op;
use crate::pair::Load;
use crate::shape::{Placement, split};

/// What the engine said of a run.
#[derive(Clone, Debug)]
pub(crate) struct EngineFacts {
    pub(crate) transport: &'static str,
    /// From submission to the caller's knowing of the end, of each transfer.
    pub(crate) latencies: Vec<Duration>,
    /// Of that, the time until the call that submits had returned.
    pub(crate) posts: Vec<Duration>,
    /// What part of a transfer's time it took to plan it and to write its requests: of the transfer
    /// of which that was the largest.
    pub(crate) planning_share: f64,
    /// After coalescing, of all transfers together.
    pub(crate) descriptors: u64,
    /// Frames that carried them.
    pub(crate) slices: u64,
    /// Lanes to the peer that were open at the end.
    pub(crate) lanes: usize,
}

/// A transfer that has ended.
#[derive(Debug)]
pub(crate) struct Carried {
    pub(crate) latency: Duration,
    post: Duration,
    report: Report,
}

impl Carried {
    /// What carried it.
    pub(crate) fn transport(&self) -> &'static str {
        self.report.transport
    }

    fn planning_share(&self) -> f64 {
        let Report { planning, encoding, elapsed, .. } = self.report;
        (planning + encoding).as_secs_f64() / elapsed.as_secs_f64()
    }
}

impl EngineFacts {
    pub(crate) fn sum(threads: Vec<Vec<Carried>>, lanes: usize) -> anyhow::Result<Self> {
        let carried: Vec<Carried> = threads.into_iter().flatten().collect();
        let transport = carried.first().context("no transfer was submitted")?.report.transport;
        ensure!(
            carried.iter().all(|carried| carried.report.transport == transport),
            "transfers of one run went by different transports: ask for one with --transport"
        );
        Ok(Self {
            transport,
            latencies: carried.iter().map(|carried| carried.latency).collect(),
            posts: carried.iter().map(|carried| carried.post).collect(),
            planning_share: carried.iter().map(Carried::planning_share).fold(0.0, f64::max),
            descriptors: carried.iter().map(|carried| carried.report.descriptors).sum(),
            slices: carried.iter().map(|carried| carried.report.slices).sum(),
            lanes,
        })
    }
}

/// What both sides of the transfers are made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks<'a> {
    pub(crate) here: &'a Placement,
    pub(crate) there: &'a Placement,
    /// A layout for each layer.
    pub(crate) locals: &'a [LayoutView],
    pub(crate) remotes: &'a [RemoteLayout],
}

impl Blocks<'_> {
    /// A transfer of the blocks `range` of the list.
    pub(crate) fn request(
        &self,
        peer: &Peer,
        op: Op,
        range: Range<u64>,
    ) -> anyhow::Result<Request> {
        let mut local: Vec<BlockList> = Vec::new();
        for part in self.here.parts(range.clone()) {
            let layout = self.locals.get(usize::try_from(part.layer)?).context("no such layer")?;
            local.push(layout.blocks(part.blocks.iter().copied()));
        }
        let mut remote: Vec<RemoteBlocks> = Vec::new();
        for part in self.there.parts(range) {
            let layout = self.remotes.get(usize::try_from(part.layer)?).context("no such layer")?;
            remote.push(layout.blocks(part.blocks.iter().copied()));
        }
        let (local, remote) = (LocalSpans::from(local), RemoteSpans::from(remote));
        Ok(match op {
            Op::Write => peer.write(local, remote),
            Op::Read => peer.read(remote, local),
        })
    }
}

/// The threads' work: each submits its transfers at once, then waits for them, or one after
/// another. The lists of blocks are made here, before the clock starts; resolving and planning
/// them is the engine's work.
pub(crate) fn workers(
    load: &Load,
    peer: &Peer,
    blocks: &Blocks<'_>,
) -> anyhow::Result<Vec<impl FnOnce() -> anyhow::Result<Vec<Carried>> + Send + use<>>> {
    let threads = split(0..blocks.here.shape().count(), load.threads.into());
    threads
        .map(|share| {
            let length = share.end - share.start;
            let transfers = match load.transfer_blocks {
                Some(blocks) => length.div_ceil(blocks.max(1)),
                None => load.in_flight.into(),
            };
            let requests: Vec<Request> = split(share, transfers)
                .map(|range| blocks.request(peer, load.op, range))
                .collect::<Result<_, _>>()?;
            let pause = load.pace.pause();
            Ok(move || match pause {
                None => together(requests),
                Some(pause) => one_by_one(requests, pause),
            })
        })
        .collect()
}

fn together(requests: Vec<Request>) -> anyhow::Result<Vec<Carried>> {
    let mut open = Vec::with_capacity(requests.len());
    for request in requests {
        let begun = Instant::now();
        let transfer = request.submit().context("submitting a transfer")?;
        open.push((begun, begun.elapsed(), transfer));
    }
    open.into_iter()
        .map(|(begun, post, transfer)| {
            let report = transfer.wait().context("waiting for a transfer")?;
            Ok(Carried { latency: begun.elapsed(), post, report })
        })
        .collect()
}

/// Moves one after another, with a pause before each.
pub(crate) fn one_by_one(requests: Vec<Request>, pause: Duration) -> anyhow::Result<Vec<Carried>> {
    let carry = |request: Request| {
        if !pause.is_zero() {
            thread::sleep(pause);
        }
        let begun = Instant::now();
        let transfer = request.submit().context("submitting a transfer")?;
        let post = begun.elapsed();
        let report = transfer.wait().context("waiting for a transfer")?;
        Ok(Carried { latency: begun.elapsed(), post, report })
    };
    requests.into_iter().map(carry).collect()
}
