//! Lanes with a queue pair: whether a peer can be reached so, and how such a lane is opened and
//! accepted.

use std::io;
use std::sync::Arc;

use kvferry_proto::LaneId;
use kvferry_proto::frame::{Hello, PairAddress, Refusal, Welcome};
use kvferry_proto::rpc;
use kvferry_transport::rdma::fetch::{Fetched, Fetcher};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::client::dial;
use super::lane::{add, is_welcome};
use super::offer::{Offer, Offers};
use crate::core::Core;
use crate::error::Error;
use crate::lanes::Bond;
use crate::net::Endpoint;
use crate::peer::PeerInner;
use crate::rdma::{self, Adapters, LaneEnd, PairChoice, PortPair};
use crate::topology::Pairing;

/// Which share of the time for a lane its adapters may take to show that packets come through: so that the
/// error says who has let it pass.
const SHARE_OF_PROOF: u32 = 2;

/// What an engine says of its ports.
pub(super) fn ports(adapters: &Adapters) -> Vec<rpc::RdmaPort> {
    adapters.endpoints().iter().map(rdma::to_wire).collect()
}

/// The pairs of ports by which lanes with a queue pair are opened to a peer, those that reach each other
/// as far as tables tell; or why there are none.
pub(super) fn find(
    core: &Core,
    endpoint: &Endpoint,
    offers: &Offers,
) -> Result<Arc<PairChoice>, Arc<str>> {
    let adapters = core.adapters()?;
    let ports = offers.rdma_ports().ok_or("it offers no RDMA")?;
    if ports.len() > Pairing::PORTS {
        let (found, limit) = (ports.len(), Pairing::PORTS);
        return Err(format!("it offers {found} ports, at most {limit} are looked at").into());
    }
    let theirs = ports.iter().cloned().map(rdma::from_wire).collect::<Result<Vec<_>, _>>();
    let theirs = theirs.map_err(|error| error.to_string())?;
    let names: Vec<_> = theirs.iter().map(|port| port.name.clone()).collect();
    let paired = Pairing::new(adapters.endpoints(), theirs).and_then(|pairing| pairing.pairs());
    let paired = paired.map_err(|error| error.to_string())?;
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
    Ok(Arc::new(PairChoice::new(pairs)))
}

/// A pair that a lane is on, given back when the lane is gone or was not opened.
struct Taken {
    pairs: Arc<PairChoice>,
    at: usize,
    lane: LaneId,
    /// The lane is open, and gives it back by itself.
    is_open: bool,
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.is_open {
            let end = LaneEnd { has_failed: true, has_carried: false };
            self.pairs.give_back(self.at, self.lane, end);
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
    // What concerns the connection is no failure of RDMA.
    let lost = |error: &dyn std::fmt::Display| offer.unreachable(peer, error);
    let failed = |error: &dyn std::fmt::Display| {
        let (peer, reason) = (peer.endpoint().clone(), error.to_string().into());
        Error::RdmaFailed { peer, reason }
    };
    let limit = peer.core().settings.connect_timeout;
    let adapters = peer.core().adapters().map_err(|why| failed(&why))?;
    let (mut taken, pair, half) = take(&adapters, pairs, lane).map_err(|why| failed(&why))?;

    let mut stream = dial(lanes, limit).await?;
    let mut first = hello.encode().to_vec();
    first.extend_from_slice(&half.address(pair.remote).encode());
    let exchange = async {
        stream.write_all(&first).await?;
        let mut welcome = [0; Welcome::BYTES];
        stream.read_exact(&mut welcome).await?;
        Ok::<_, io::Error>(welcome)
    };
    let welcome = exchange.await.map_err(|error| lost(&error))?;
    is_welcome(peer, &welcome).map_err(|error| match error {
        Error::LaneRefused { refusal, .. } if is_of_rdma(refusal) => {
            failed(&format_args!("it refused a lane: {refusal}"))
        }
        error => error,
    })?;
    let mut theirs = [0; PairAddress::BYTES];
    stream.read_exact(&mut theirs).await.map_err(|error| lost(&error))?;
    let theirs = PairAddress::decode(&theirs)
        .map_err(|error| Error::Protocol { peer: peer.endpoint().clone(), error })?;
    let (mut fetcher, berth) = half.connect(&theirs).map_err(|error| failed(&error))?;
    // That it is connected says nothing of the way between: a lane is up once that has been gone.
    let limit = limit / SHARE_OF_PROOF;
    match timeout(limit, prove(&mut fetcher)).await {
        Ok(proved) => proved.map_err(|error| failed(&error))?,
        Err(_) => return Err(failed(&format_args!("no packet came through within {limit:?}"))),
    }
    let stream = stream.into_std().map_err(|error| lost(&error))?;
    let bond = Bond::Pair(Box::new(fetcher), berth);
    let (pairs, at) = (pairs.clone(), taken.at);
    let on_gone = Box::new(move |end| pairs.give_back(at, lane, end));
    let added = add(peer, lane, offer, stream.into(), bond, Some(on_gone));
    // From here on the lane gives it back, when it is gone.
    taken.is_open = added.is_ok();
    added
}

/// Whether a lane was refused for what belongs to it beside the connection, or in place of it.
fn is_of_rdma(refusal: Refusal) -> bool {
    matches!(refusal, Refusal::NoPair | Refusal::Transport)
}

/// A pair of ports, and a queue pair on the one that is here. One that has none is no reason not to try
/// the others.
fn take(
    adapters: &Adapters,
    pairs: &Arc<PairChoice>,
    lane: LaneId,
) -> Result<(Taken, PortPair, rdma::Half), String> {
    let mut why = "no pair of ports is left".into();
    for _ in 0..pairs.count() {
        let Some((at, pair)) = pairs.take(lane) else { break };
        let taken = Taken { pairs: pairs.clone(), at, lane, is_open: false };
        match adapters.half(pair.local) {
            Some(Ok(half)) => return Ok((taken, pair, half)),
            Some(Err(error)) => why = error.to_string(),
            None => why = "its port here is gone".into(),
        }
    }
    Err(why)
}

/// Has the other end's adapter answer a request that touches no memory.
async fn prove(fetcher: &mut Fetcher) -> io::Result<()> {
    let descriptor = fetcher.descriptor().try_clone_to_owned()?;
    let told = rdma::readiness_of(descriptor)?;
    fetcher.probe().map_err(io::Error::other)?;
    let mut ended = Vec::new();
    loop {
        fetcher.arm().map_err(io::Error::other)?;
        fetcher.poll(&mut ended).map_err(io::Error::other)?;
        match ended.first() {
            Some(Fetched::InPlace { .. }) => return Ok(()),
            Some(Fetched::Failed { status, .. }) => {
                return Err(io::Error::other(format!("no packet comes through: {status}")));
            }
            None => {}
        }
        let mut ready = told.readable().await?;
        ready.clear_ready();
        fetcher.take_wakeup().map_err(io::Error::other)?;
    }
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
    let adapters = core.adapters().map_err(|why| refused(&why))?;
    let half = adapters.half(theirs.port.into());
    let half = half.ok_or_else(|| refused(&"there is no such port"))?;
    let half = half.map_err(|error| refused(&error))?;
    let ours = half.address(theirs.port);
    let (fetcher, berth) = half.connect(theirs).map_err(|error| refused(&error))?;
    Ok((ours, Bond::Pair(Box::new(fetcher), berth)))
}
