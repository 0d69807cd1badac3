//! Lanes to a peer: how one is opened.

use std::fmt::Display;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use kvferry_proto::LaneId;
use kvferry_proto::frame::{Hello, Welcome};
use kvferry_proto::message::VERSION_MAJOR;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::client::dial;
use super::local;
use super::offer::{Offer, Way};
use super::pair;
use crate::core::Core;
use crate::error::Error;
use crate::lanes::{Bond, Tie};
use crate::loan::Lender;
use crate::peer::{OnGone, PeerInner, ReplyHandler};
use crate::session::Means;

/// Opens a lane, and tells the session how that went.
pub(super) async fn open(peer: Weak<PeerInner>, lane: LaneId, means: Means) {
    let Some(strong) = peer.upgrade() else { return };
    let limit = strong.core().settings.connect_timeout;
    let opened = match timeout(limit, try_open(&strong, lane, means)).await {
        Ok(opened) => opened,
        Err(_) => {
            let why = format_args!("it did not take a lane within {limit:?}");
            Err(Error::unreachable(strong.endpoint(), why))
        }
    };
    report(&strong, lane, opened);
}

/// Tells the session whether a lane is open.
pub(crate) fn report(peer: &Arc<PeerInner>, lane: LaneId, opened: Result<(), Error>) {
    match opened {
        Ok(()) => peer.event(|session, now| session.on_lane_up(now, lane)),
        Err(error) => {
            tracing::warn!(peer = %peer.endpoint(), %lane, %error, "no lane");
            // That it is somebody else is no failure of the lane: a handshake tells who.
            let cause = match &error {
                Error::LaneRefused { refusal, .. } if refusal.is_other_incarnation() => None,
                _ => Some(error),
            };
            peer.event(|session, now| session.on_lane_down(now, lane, cause));
        }
    }
}

async fn try_open(peer: &Arc<PeerInner>, lane: LaneId, means: Means) -> Result<(), Error> {
    let (offer, hello) = hello(peer, lane, means)?;
    let unreachable = |error: &dyn Display| offer.unreachable(peer, error);
    let (welcome, stream, bond) = match &offer.way {
        Way::Rdma { lanes, pairs } => {
            return pair::open(peer, lane, &offer, lanes, pairs, hello).await;
        }
        Way::Tcp(endpoint) => {
            let mut stream = dial(endpoint, peer.core().settings.connect_timeout).await?;
            let welcome = exchange(&hello, &mut stream).await.map_err(|e| unreachable(&e))?;
            let stream = stream.into_std().map_err(|error| unreachable(&error))?;
            (welcome, stream.into(), Bond::Nothing)
        }
        Way::Local(path) => {
            let met = local::meet(path).await;
            let (mut stream, reach, ring) = met.map_err(|error| unreachable(&error))?;
            let welcome = exchange(&hello, &mut stream).await.map_err(|e| unreachable(&e))?;
            let stream = stream.into_std().map_err(|error| unreachable(&error))?;
            (welcome, stream.into(), Bond::Host(reach, ring))
        }
    };
    take_up(peer, lane, &offer, &welcome, stream, bond)
}

/// Says hello, and hears the answer.
async fn exchange(
    hello: &Hello,
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> io::Result<[u8; Welcome::BYTES]> {
    stream.write_all(&hello.encode()).await?;
    let mut welcome = [0; Welcome::BYTES];
    stream.read_exact(&mut welcome).await?;
    Ok(welcome)
}

impl Offer {
    pub(super) fn unreachable(&self, peer: &PeerInner, error: &dyn Display) -> Error {
        match &self.way {
            Way::Tcp(endpoint) | Way::Rdma { lanes: endpoint, .. } => {
                Error::unreachable(endpoint, error)
            }
            Way::Local(path) => {
                Error::unreachable(peer.endpoint(), format_args!("{}: {error}", path.display()))
            }
        }
    }
}

/// Where a lane is opened, and what is said first on it.
pub(crate) fn hello(peer: &PeerInner, lane: LaneId, means: Means) -> Result<(Offer, Hello), Error> {
    let Some(offer) = peer.offer().and_then(|offer| offer.by(means)) else {
        return Err(Error::NoTransport { peer: peer.endpoint().clone(), wanted: "tcp" });
    };
    let ping = peer.core().settings.session.ping_interval;
    let hello = Hello {
        version: VERSION_MAJOR,
        initiator: peer.core().incarnation,
        target: offer.incarnation,
        session: peer.number(),
        lane,
        ping_ms: u32::try_from(ping.as_millis()).unwrap_or(u32::MAX),
        with_pair: matches!(offer.way, Way::Rdma { .. }),
    };
    Ok((offer, hello))
}

/// Takes a connection up as a lane, if its other end welcomes it.
pub(crate) fn take_up(
    peer: &Arc<PeerInner>,
    lane: LaneId,
    offer: &Offer,
    welcome: &[u8; Welcome::BYTES],
    stream: OwnedFd,
    bond: Bond,
) -> Result<(), Error> {
    is_welcome(peer, welcome)?;
    add(peer, lane, offer, stream, bond, None)
}

/// Whether the other end welcomes a lane.
pub(super) fn is_welcome(peer: &PeerInner, welcome: &[u8; Welcome::BYTES]) -> Result<(), Error> {
    let welcome = Welcome::decode(welcome)
        .map_err(|error| Error::Protocol { peer: peer.endpoint().clone(), error })?;
    match welcome.refusal {
        Some(refusal) => Err(Error::LaneRefused { peer: peer.endpoint().clone(), refusal }),
        None => Ok(()),
    }
}

/// Takes a connection up as a lane, which was welcomed.
pub(super) fn add(
    peer: &Arc<PeerInner>,
    lane: LaneId,
    offer: &Offer,
    stream: OwnedFd,
    bond: Bond,
    on_gone: Option<OnGone>,
) -> Result<(), Error> {
    let reactor = peer.core().reactor(peer.number(), lane).ok_or(Error::Shutdown)?;
    let (tie, ring) = Tie::new(Lender::Initiator, bond);
    let handler = Arc::new(ReplyHandler::new(Arc::downgrade(peer), lane, tie.clone(), on_gone));
    peer.lanes()
        .add(lane, tie, &reactor, (stream, ring), Core::opened_lane(), handler)
        .map_err(|error| offer.unreachable(peer, &error))
}
