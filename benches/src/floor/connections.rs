//! The floor's connections, and who drives which.

use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use anyhow::{Context, ensure};
use kvferry_engine::Region;

use super::{Job, Strategy, Worker};
use crate::floor::flow::Flow;
use crate::shape::{Placement, split};

/// Open connections, in the same order at both ends. Kept from run to run, as lanes are.
#[derive(Debug, Default)]
pub(crate) struct Connections(Vec<TcpStream>);

impl Connections {
    /// Opens as many as any strategy needs. Returns them with the ports by which the other end
    /// knows them.
    pub(crate) fn open(port: u16, threads: u32) -> anyhow::Result<(Self, Vec<u16>)> {
        let (mut streams, mut ports) = (Vec::new(), Vec::new());
        for _ in 0..threads * Strategy::MOST_CONNECTIONS {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
                .context("opening a connection of the floor")?;
            ports.push(stream.local_addr()?.port());
            streams.push(ready(stream)?);
        }
        Ok((Self(streams), ports))
    }

    /// Accepts those that come from `ports`. Anybody else's are closed.
    pub(crate) fn accept(listener: &TcpListener, ports: &[u16]) -> anyhow::Result<Self> {
        let mut waiting: HashMap<u16, TcpStream> = HashMap::new();
        while waiting.len() < ports.len() {
            let (stream, from) = listener.accept().context("accepting the floor's connections")?;
            if ports.contains(&from.port()) {
                waiting.insert(from.port(), ready(stream)?);
            }
        }
        let in_order = ports.iter().map(|port| waiting.remove(port).context("a port came twice"));
        Ok(Self(in_order.collect::<Result<_, _>>()?))
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
