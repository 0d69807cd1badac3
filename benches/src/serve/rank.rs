//! One of many processes that write to each other.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, ensure};
use kvferry_engine::{Peer, RemoteRegion, Request, Transfer};

use crate::control::Cell;
use crate::matrix::MOST_PATTERNS;
use crate::pattern::Mismatch;
use crate::shape::Block;
use crate::side::Side;

/// The others, and what is to be written to them.
#[derive(Debug)]
pub(super) struct Rank {
    peers: Vec<(Peer, RemoteRegion)>,
    prepared: Vec<(usize, Request)>,
}

impl Rank {
    /// Connects to the engines at these ports of the host.
    pub(super) fn meet(side: &Side, ports: &[u16]) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("starting a runtime")?;
        let peers = ports.iter().map(|port| {
            let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), *port).to_string();
            let peer = runtime.block_on(side.engine().connect(address.as_str()))?;
            let region = peer.regions().into_iter().next();
            anyhow::Ok((peer, region.with_context(|| format!("{address} shares no region"))?))
        });
        let peers = peers.collect::<Result<_, _>>().context("meeting the other ranks")?;
        Ok(Self { peers, prepared: Vec::new() })
    }

    /// Fills the sources, and makes the requests, which are not timed.
    pub(super) fn prepare(
        &mut self,
        side: &Side,
        round: u64,
        cells: &[Cell],
    ) -> anyhow::Result<()> {
        side.pattern(round).fill(side.region(), cells.iter().map(|cell| cell.block(cell.from)))?;
        self.prepared.clear();
        for cell in cells {
            let pattern = usize::try_from(cell.pattern)?;
            ensure!(pattern < MOST_PATTERNS, "at most {MOST_PATTERNS} patterns can be");
            let (peer, region) = self
                .peers
                .get(usize::try_from(cell.peer)?)
                .with_context(|| format!("there is no rank {}", cell.peer))?;
            let local = side.region().span(cell.from, cell.bytes)?;
            let request = peer.write(local, region.span(cell.to, cell.bytes)?);
            self.prepared.push((pattern, request));
        }
        Ok(())
    }

    /// Writes what was prepared. The result is how long each pattern took, in nanoseconds: from
    /// its submission to the last end of its transfers, 0 where this rank sends nothing in it.
    pub(super) fn go(&mut self) -> anyhow::Result<Vec<u64>> {
        let open: Vec<(usize, Transfer)> = self
            .prepared
            .drain(..)
            .map(|(pattern, request)| Ok((pattern, request.submit()?)))
            .collect::<anyhow::Result<_>>()
            .context("submitting a pattern")?;
        let mut longest = Vec::new();
        for (pattern, transfer) in open {
            let report = transfer.wait().context("waiting for a pattern")?;
            if longest.len() <= pattern {
                longest.resize(pattern + 1, 0);
            }
            longest[pattern] = longest[pattern].max(u64::try_from(report.elapsed.as_nanos())?);
        }
        Ok(longest)
    }
}

/// Compares the destinations with what was to be written.
pub(super) fn check(side: &Side, round: u64, cells: &[Cell]) -> anyhow::Result<Option<Mismatch>> {
    side.pattern(round).verify(side.region(), cells.iter().map(|cell| cell.block(cell.to)))
}

impl Cell {
    /// Its content at one of the two places.
    fn block(&self, offset: u64) -> Block {
        Block { number: self.number, offset, bytes: self.bytes }
    }
}
