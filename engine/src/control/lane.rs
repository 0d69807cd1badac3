//! Lanes to a peer: how one is opened.

use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use kvferry_proto::LaneId;
use kvferry_proto::frame::{Hello, Welcome};
use kvferry_proto::message::VERSION_MAJOR;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::client::dial;
use super::offer::Offer;
use crate::core::Core;
use crate::error::Error;
use crate::peer::{PeerInner, ReplyHandler};

/// Opens a lane, and tells the session how that went.
pub(super) async fn open(peer: Weak<PeerInner>, lane: LaneId) {
    let Some(strong) = peer.upgrade() else { return };
    let limit = strong.core().settings.connect_timeout;
    let opened = match timeout(limit, try_open(&strong, lane)).await {
        Ok(opened) => opened,
        Err(_) => {
            let why = format_args!("its lane port did not answer within {limit:?}");
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

async fn try_open(peer: &Arc<PeerInner>, lane: LaneId) -> Result<(), Error> {
    let (offer, hello) = hello(peer, lane)?;
    let mut stream = dial(&offer.endpoint, peer.core().settings.connect_timeout).await?;
    let unreachable = |error: &dyn Display| Error::unreachable(&offer.endpoint, error);
    stream.write_all(&hello.encode()).await.map_err(|error| unreachable(&error))?;
    let mut welcome = [0; Welcome::BYTES];
    stream.read_exact(&mut welcome).await.map_err(|error| unreachable(&error))?;
    stream.set_nodelay(true).map_err(|error| unreachable(&error))?;
    let stream = stream.into_std().map_err(|error| unreachable(&error))?;
    take_up(peer, lane, &offer, &welcome, stream.into())
}

/// Where a lane is opened, and what is said first on it.
pub(crate) fn hello(peer: &PeerInner, lane: LaneId) -> Result<(Offer, Hello), Error> {
    let Some(offer) = peer.offer() else {
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
) -> Result<(), Error> {
    let welcome = Welcome::decode(welcome)
        .map_err(|error| Error::Protocol { peer: offer.endpoint.clone(), error })?;
    if let Some(refusal) = welcome.refusal {
        return Err(Error::LaneRefused { peer: peer.endpoint().clone(), refusal });
    }
    let reactor = peer.core().reactor().ok_or(Error::Shutdown)?;
    let handler = Arc::new(ReplyHandler::new(Arc::downgrade(peer), lane));
    peer.lanes()
        .add(lane, || reactor.add(stream, Core::opened_lane(), handler))
        .map_err(|error| Error::unreachable(&offer.endpoint, error))
}
