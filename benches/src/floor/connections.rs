//! The floor's connections, and who drives which.

use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use anyhow::{Context, ensure};
use kvferry_engine::Region;

use super::{Job, Strategy, Worker};
use crate::floor::flow::Flow;
use crate::shape::{Placement, split};

/// How many connections may wait to be accepted: fewer than any listener's queue holds, beyond
/// which the kernel has clients try again for minutes.
const BATCH: u32 = 64;

/// Open connections, in the same order at both ends. Kept from run to run, as lanes are.
#[derive(Debug, Default)]
pub(crate) struct Connections(Vec<TcpStream>);

impl Connections {
    /// Opens as many as any strategy needs for so many threads. `accept` is told, a batch at a
    /// time, the ports by which the other end knows them.
    pub(crate) fn open(
        port: u16,
        threads: u32,
        mut accept: impl FnMut(Vec<u16>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let mut streams = Vec::new();
        let count = threads * Strategy::MOST_CONNECTIONS;
        for batch in split(0..count.into(), count.div_ceil(BATCH).into()) {
            let mut ports = Vec::new();
            for _ in batch {
                let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
                    .context("opening a connection of the floor")?;
                ports.push(stream.local_addr()?.port());
                streams.push(ready(stream)?);
            }
            accept(ports)?;
        }
        Ok(Self(streams))
    }

    /// Accepts those that come from `ports`, behind the ones that were before. Anybody else's are
    /// closed.
    pub(crate) fn accept(&mut self, listener: &TcpListener, ports: &[u16]) -> anyhow::Result<()> {
        let mut waiting: HashMap<u16, TcpStream> = HashMap::new();
        while waiting.len() < ports.len() {
            let (stream, from) = listener.accept().context("accepting the floor's connections")?;
            if ports.contains(&from.port()) {
                waiting.insert(from.port(), ready(stream)?);
            }
        }
        for port in ports {
            self.0.push(waiting.remove(port).context("a port came twice")?);
        }
        Ok(())
    }

    /// The threads' work in one run: the list of blocks in equal parts, in order.
    pub(crate) fn workers(
        &self,
        job: &Job,
        region: &Region,
        placement: &Placement,
    ) -> anyhow::Result<Vec<Worker>> {
        let per_thread = job.strategy.connections;
        let needed = usize::try_from(job.threads * per_thread)?;
        let found = self.0.len();
        ensure!(needed <= found, "the floor needs {needed} connections and has {found}");
        let mut streams = self.0.iter();
        let threads = split(0..placement.shape().count(), job.threads.into());
        threads
            .map(|share| {
                let flows = split(share, per_thread.into()).zip(streams.by_ref());
                let flows =
                    flows.map(|(range, stream)| Flow::new(stream, range, region, placement));
                Ok(Worker::new(flows.collect::<Result<_, _>>()?, job.strategy.spin()))
            })
            .collect()
    }
}

/// Buffers are left to the kernel's tuning, as the engine and iperf3 leave them.
fn ready(stream: TcpStream) -> anyhow::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}
