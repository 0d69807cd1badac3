//! Lanes with a queue pair: whether a peer can be reached so, and how such a lane is opened and
//! accepted.

use std::io;
use std::sync::Arc;

use kvferry_proto::LaneId;
use kvferry_proto::frame::{Hello, PairAddress, Refusal, Welcome};
use kvferry_proto::rpc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::client::dial;
use super::lane::{add, is_welcome};
use super::offer::{Offer, Offers};
use crate::core::Core;
use crate::error::Error;
use crate::lanes::Bond;
use crate::net::Endpoint;
use crate::peer::PeerInner;
use crate::rdma::{self, Adapters, PairChoice, PortPair};
use crate::topology::Pairing;

/// What an engine says of its ports.
pub(super) fn ports(adapters: &Adapters) -> Vec<rpc::RdmaPort> {
    adapters.endpoints().iter().map(rdma::to_wire).collect()
}

/// How lanes with a queue pair are opened to a peer, on the pairs of ports that reach each other as far
/// as tables tell.
pub(super) fn choose(core: &Core, endpoint: &Endpoint, offers: Offers) -> Result<Offer, Error> {
    let adapters = core.adapters().ok_or(Error::Shutdown)?;
    let not_rdma =
        |reason: String| Error::NotRdma { peer: endpoint.clone(), reason: reason.into() };
    let Some(ports) = offers.rdma_ports() else {
        return Err(not_rdma("it offers no RDMA".into()));
    };
    if ports.len() > Pairing::PORTS {
        let (found, limit) = (ports.len(), Pairing::PORTS);
        return Err(not_rdma(format!("it offers {found} ports, at most {limit} are looked at")));
    }
    let theirs = ports.iter().cloned().map(rdma::from_wire).collect::<Result<Vec<_>, _>>();
    let theirs = theirs.map_err(|error| not_rdma(error.to_string()))?;
    let names: Vec<_> = theirs.iter().map(|port| port.name.clone()).collect();
    let paired = Pairing::new(adapters.endpoints(), theirs).and_then(|pairing| pairing.pairs());
    let paired = paired.map_err(|error| not_rdma(error.to_string()))?;
    let mut pairs = Vec::new();
    for pair in paired {
        let local = adapters.position(&pair.local);
        let remote = names.iter().position(|name| *name == pair.remote);
        let remote = remote.and_then(|at| u16::try_from(at).ok());
        if let (Some(local), Some(remote)) = (local, remote) {
            tracing::info!(peer = %endpoint, here = %pair.local, there = %pair.remote, "a pair of ports");
            pairs.push(PortPair { local, remote });
        }
    }
    offers.by_rdma(endpoint, Arc::new(PairChoice::new(pairs)))
}

/// A pair that a lane is on, given back when the lane is gone or was not opened.
struct Taken {
    pairs: Arc<PairChoice>,
    at: usize,
    /// The lane is open, and gives it back by itself.
    is_open: bool,
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.is_open {
            self.pairs.give_back(self.at, true);
        }
    }
}

/// Opens a lane with a queue pair.
pub(super) async fn open(
    peer: &Arc<PeerInner>,
    lane: LaneId,
    offer: &Offer,
    lanes: &Endpoint,
    pairs: &Arc<PairChoice>,
    hello: Hello,
) -> Result<(), Error> {
    let adapters = peer.core().adapters().ok_or(Error::Shutdown)?;
    let failed = |error: &dyn std::fmt::Display| offer.unreachable(peer, error);
    let (at, pair) = pairs.take().ok_or_else(|| failed(&"no pair of ports is left"))?;
    let mut taken = Taken { pairs: pairs.clone(), at, is_open: false };
    let half = adapters.half(pair.local).ok_or_else(|| failed(&"its port here is gone"))?;
    let half = half.map_err(|error| failed(&error))?;

    let mut stream = dial(lanes, peer.core().settings.connect_timeout).await?;
    let mut first = hello.encode().to_vec();
    first.extend_from_slice(&half.address(pair.remote).encode());
    let exchange = async {
        stream.write_all(&first).await?;
        let mut welcome = [0; Welcome::BYTES];
        stream.read_exact(&mut welcome).await?;
        Ok::<_, io::Error>(welcome)
    };
    let welcome = exchange.await.map_err(|error| failed(&error))?;
    is_welcome(peer, &welcome)?;
    let mut theirs = [0; PairAddress::BYTES];
    stream.read_exact(&mut theirs).await.map_err(|error| failed(&error))?;
    let theirs = PairAddress::decode(&theirs)
        .map_err(|error| Error::Protocol { peer: peer.endpoint().clone(), error })?;
    let (fetcher, registered) = half.connect(&theirs).map_err(|error| failed(&error))?;
    let into_std = |stream: tokio::net::TcpStream| {
        stream.set_nodelay(true)?;
        stream.into_std()
    };
    let stream = into_std(stream).map_err(|error| failed(&error))?;
    let bond = Bond::Pair(Box::new(fetcher), registered);
    let pairs = pairs.clone();
    let on_gone = Box::new(move |has_failed| pairs.give_back(at, has_failed));
    let added = add(peer, lane, offer, stream.into(), bond, Some(on_gone));
    // From here on the lane gives it back, when it is gone.
    taken.is_open = added.is_ok();
    added
}

/// Answers the queue pair of a lane that is admitted with one of this end's.
///
/// # Errors
/// What the initiator is told; the log says why.
pub(super) fn answer(core: &Core, theirs: &PairAddress) -> Result<(PairAddress, Bond), Refusal> {
    let refused = |why: &dyn std::fmt::Display| {
        tracing::warn!(port = theirs.port, %why, "no queue pair for a lane");
        Refusal::NoPair
    };
    let adapters = core.adapters().ok_or(Refusal::ShuttingDown)?;
    let half = adapters.half(theirs.port.into());
    let half = half.ok_or_else(|| refused(&"there is no such port"))?;
    let half = half.map_err(|error| refused(&error))?;
    let ours = half.address(theirs.port);
    let (fetcher, registered) = half.connect(theirs).map_err(|error| refused(&error))?;
    Ok((ours, Bond::Pair(Box::new(fetcher), registered)))
}
