//! The floor's connections, and who drives which.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, ensure};
use kvferry_engine::Region;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Job, MOST_THREADS, Strategy, Worker};
use crate::floor::flow::Flow;
use crate::shape::{Placement, split};

/// How many connections may wait to be accepted: fewer than any listener's queue holds, beyond
/// which the kernel has clients try again for minutes.
const BATCH: u32 = 64;

/// As many as any initiator needs.
const MOST_CONNECTIONS: u32 = MOST_THREADS * Strategy::MOST_CONNECTIONS;

/// How long all connections of a batch may take to come, and each to say whose it is.
const COMING: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
const SAYING: Duration = Duration::from_secs(1);

/// How many connections that are nobody's are looked at before a batch is given up.
const MOST_STRANGERS: u32 = 100;

/// Open connections, in the same order at both ends. Kept from run to run, as lanes are.
#[derive(Debug, Default)]
pub(crate) struct Connections(Vec<TcpStream>);

impl Connections {
    /// Opens as many as any strategy needs for so many threads. Each says `token` and its place.
    /// `accept` is told, a batch at a time, how many have been opened.
    pub(crate) fn open(
        address: SocketAddr,
        token: u64,
        threads: u32,
        mut accept: impl FnMut(u32) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let mut streams = Vec::new();
        let count = threads * Strategy::MOST_CONNECTIONS;
        for batch in split(0..count.into(), count.div_ceil(BATCH).into()) {
            let size = u32::try_from(batch.end - batch.start)?;
            for place in batch {
                let mut stream = TcpStream::connect(address)
                    .with_context(|| format!("opening a connection of the floor to {address}"))?;
                stream.write_all(&greeting(token, place))?;
                streams.push(ready(stream)?);
            }
            accept(size)?;
        }
        Ok(Self(streams))
    }

    /// Accepts so many more that say `token`, behind the ones that were before. Anybody else's are
    /// closed.
    pub(crate) fn accept(
        &mut self,
        listener: &TcpListener,
        token: u64,
        count: u32,
    ) -> anyhow::Result<()> {
        let have = self.0.len() as u64;
        let wanted = have..have + u64::from(count);
        ensure!(
            wanted.end <= u64::from(MOST_CONNECTIONS),
            "the floor has at most {MOST_CONNECTIONS} connections"
        );
        let mut arrived: BTreeMap<u64, TcpStream> = BTreeMap::new();
        let mut strangers = 0;
        while (arrived.len() as u64) < u64::from(count) {
            let ready_in_time = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&COMING))?;
            ensure!(ready_in_time > 0, "the floor's connections did not come");
            let (mut stream, _) = listener.accept().context("accepting the floor's connections")?;
            match place(&mut stream, token).filter(|place| wanted.contains(place)) {
                Some(place) => {
                    arrived.insert(place, ready(stream)?);
                }
                None => strangers += 1,
            }
            ensure!(strangers < MOST_STRANGERS, "others connect to the floor's port without end");
        }
        self.0.extend(arrived.into_values());
        Ok(())
    }

    /// The threads' work in one run: the list of blocks in equal parts, in order.
    pub(crate) fn workers(
        &self,
        job: &Job,
        region: &Region,
        placement: &Placement,
    ) -> anyhow::Result<Vec<Worker>> {
        job.check(placement.shape().count())?;
        let per_thread = job.strategy.connections;
        let needed = usize::try_from(job.threads * per_thread)?;
        let found = self.0.len();
        ensure!(needed <= found, "the floor needs {needed} connections and has {found}");
        let mut streams = self.0.iter();
        let threads = split(0..placement.shape().count(), job.threads.into());
        threads
            .map(|share| {
                let flows = split(share, per_thread.into()).zip(streams.by_ref());
                let flows = flows.map(|(range, stream)| {
                    let blocks = job.transfer_blocks.unwrap_or(range.end - range.start);
                    let transfers =
                        split(range.clone(), (range.end - range.start).div_ceil(blocks));
                    Flow::new(stream, transfers, region, placement)
                });
                Ok(Worker::new(flows.collect::<Result<_, _>>()?, job))
            })
            .collect()
    }
}

/// What a connection says first: whose it is, and its place among them.
fn greeting(token: u64, place: u64) -> [u8; 16] {
    (u128::from(token) << 64 | u128::from(place)).to_be_bytes()
}

/// Its place, if it says the token in time.
fn place(stream: &mut TcpStream, token: u64) -> Option<u64> {
    stream.set_read_timeout(Some(SAYING)).ok()?;
    let mut said = [0; 16];
    stream.read_exact(&mut said).ok()?;
    let [high, low] = [said.first_chunk::<8>()?, said.last_chunk::<8>()?];
    (u64::from_be_bytes(*high) == token).then(|| u64::from_be_bytes(*low))
}

/// Buffers are left to the kernel's tuning, as the engine and iperf3 leave them.
fn ready(stream: TcpStream) -> anyhow::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}
