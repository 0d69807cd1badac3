//! The handshake with a peer, its table, and lanes to it.

use std::fmt::Display;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kvferry_proto::frame::{Hello, Welcome};
use kvferry_proto::message::{self, TableUpdate, VERSION_MAJOR, VERSION_MINOR};
use kvferry_proto::rpc::peer_client::PeerClient;
use kvferry_proto::rpc::{self, offer};
use kvferry_proto::{Incarnation, LaneId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint as GrpcEndpoint};

use crate::core::Core;
use crate::error::Error;
use crate::net::Endpoint;
use crate::peer::{PeerInner, ReplyHandler};
use crate::remote::RemoteTable;

/// A peer that takes less at once makes us cut transfers into more pieces than is reasonable.
const LEAST_SLICE_BYTES: u32 = 64 << 10;

/// Where a peer accepts lanes, and what it takes.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    endpoint: Endpoint,
    incarnation: Incarnation,
    pub(crate) max_slice_bytes: u32,
}

/// Shakes hands with a peer, learns its table, and follows it for as long as the connection lasts.
pub(crate) async fn hold(peer: Weak<PeerInner>) {
    let Some((core, endpoint)) = peer.upgrade().map(|p| (p.core().clone(), p.endpoint().clone()))
    else {
        return;
    };
    let limit = core.settings.connect_timeout;
    let watching = match timeout(limit, shake_hands(&core, &endpoint)).await {
        Ok(watching) => watching,
        Err(_) => Err(Error::unreachable(&endpoint, format_args!("no answer within {limit:?}"))),
    };
    drop(core);
    let (mut updates, answer) = match watching {
        Ok((updates, shaken)) => (Some(updates), Ok(shaken)),
        Err(error) => (None, Err(error)),
    };
    if let Some(peer) = peer.upgrade() {
        peer.shaken(answer);
    }
    while let Some(stream) = &mut updates {
        let update = stream.message().await;
        let Some(peer) = peer.upgrade() else { return };
        let followed = match update {
            Ok(Some(update)) => {
                let applied = apply(&endpoint, &mut peer.table().write(), update);
                peer.table_changed();
                applied
            }
            Ok(None) => Err(Error::unreachable(&endpoint, "it closed the control connection")),
            Err(status) => Err(Error::unreachable(&endpoint, describe(&status))),
        };
        if let Err(error) = followed {
            tracing::info!(peer = %endpoint, %error, "the control connection is lost");
            peer.event(|session, now| session.on_control_lost(now));
            return;
        }
    }
}

/// What a handshake brings.
pub(crate) struct Shaken {
    pub(crate) incarnation: Incarnation,
    pub(crate) offer: Offer,
    pub(crate) table: RemoteTable,
}

async fn shake_hands(
    core: &Core,
    endpoint: &Endpoint,
) -> Result<(Streaming<rpc::TableUpdate>, Shaken), Error> {
    let unreachable = |error: &dyn Display| Error::unreachable(endpoint, error);
    let mut client = connect(endpoint, core.settings.connect_timeout).await?;
    let reply = client
        .hello(rpc::HelloRequest {
            version: Some(version()),
            incarnation: core.incarnation.0,
            transports: vec!["tcp".into()],
        })
        .await
        .map_err(|status| unreachable(&describe(&status)))?
        .into_inner();
    let theirs = reply.version.map_or(0, |version| version.major);
    if theirs != u32::from(VERSION_MAJOR) {
        let (peer, ours) = (endpoint.clone(), VERSION_MAJOR.into());
        return Err(Error::Version { peer, theirs, ours });
    }
    let incarnation =
        message::incarnation("HelloReply", reply.incarnation).map_err(|e| unreachable(&e))?;
    let offer = reply
        .offers
        .into_iter()
        .find_map(|offer| offer.transport.map(|offer::Transport::Tcp(tcp)| tcp))
        .ok_or_else(|| Error::NoTransport { peer: endpoint.clone(), wanted: "tcp" })?;
    let offer = Offer {
        endpoint: Endpoint::new(
            if offer.host.is_empty() { endpoint.host() } else { &offer.host },
            u16::try_from(offer.port).map_err(|_| unreachable(&"its lane port is no port"))?,
        ),
        incarnation,
        max_slice_bytes: offer.max_slice_bytes,
    };
    if offer.max_slice_bytes < LEAST_SLICE_BYTES {
        let why = format_args!("it takes slices of {} bytes at most", offer.max_slice_bytes);
        return Err(unreachable(&why));
    }
    let mut updates = client
        .watch(rpc::WatchRequest { incarnation: incarnation.0, watcher: core.incarnation.0 })
        .await
        .map_err(|status| unreachable(&describe(&status)))?
        .into_inner();
    let mut table = RemoteTable::of(incarnation);
    loop {
        let update = updates.message().await.map_err(|status| unreachable(&describe(&status)))?;
        let update = update.ok_or_else(|| unreachable(&"it closed the control connection"))?;
        let complete = update.complete;
        apply(endpoint, &mut table, update)?;
        if complete {
            return Ok((updates, Shaken { incarnation, offer, table }));
        }
    }
}

fn apply(
    endpoint: &Endpoint,
    table: &mut RemoteTable,
    update: rpc::TableUpdate,
) -> Result<(), Error> {
    let update =
        TableUpdate::try_from(update).map_err(|error| Error::unreachable(endpoint, error))?;
    if !table.apply(update) {
        return Err(Error::unreachable(endpoint, "its table is larger than any real one"));
    }
    Ok(())
}

/// Returns when the copy of the peer's table is at least as new as the table was when this began.
pub(crate) async fn catch_up(peer: &Arc<PeerInner>) -> Result<(), Error> {
    let peer = peer.clone();
    let runtime = peer.core().runtime.clone();
    let endpoint = peer.endpoint().clone();
    let caught_up = runtime.spawn(async move {
        let limit = peer.core().settings.connect_timeout;
        timeout(limit, follow(&peer)).await.unwrap_or_else(|_| {
            let why = format_args!("its table did not arrive within {limit:?}");
            Err(Error::unreachable(peer.endpoint(), why))
        })
    });
    caught_up.await.unwrap_or_else(|_| Err(Error::unreachable(&endpoint, "shut down meanwhile")))
}

async fn follow(peer: &Arc<PeerInner>) -> Result<(), Error> {
    let endpoint = peer.endpoint();
    let incarnation = peer.incarnation_of(&peer.table().read())?;
    let mut client = connect(endpoint, peer.core().settings.connect_timeout).await?;
    let version = client
        .table_version(rpc::TableVersionRequest { incarnation: incarnation.0 })
        .await
        .map_err(|status| Error::unreachable(endpoint, describe(&status)))?
        .into_inner()
        .version;
    loop {
        let changed = peer.table_changes();
        let (found, known) = {
            let table = peer.table().read();
            (table.incarnation(), table.version())
        };
        if found != Some(incarnation) {
            return Err(Error::unreachable(endpoint, "the connection was lost meanwhile"));
        }
        if known >= version {
            return Ok(());
        }
        changed.await;
    }
}

async fn connect(endpoint: &Endpoint, limit: Duration) -> Result<PeerClient<Channel>, Error> {
    let unreachable = |error: &dyn Display| Error::unreachable(endpoint, error);
    // tonic says only "transport error" of what went wrong; a plain connection says all of it.
    let stream = dial(endpoint, limit).await?;
    let mut stream = Some(hyper_util::rt::TokioIo::new(stream));
    let channel = GrpcEndpoint::from_shared(format!("http://{endpoint}"))
        .map_err(|error| unreachable(&error))?
        .connect_with_connector(tower::service_fn(move |_| {
            let stream = stream.take();
            async move { stream.ok_or_else(|| std::io::Error::other("the connection is gone")) }
        }))
        .await
        .map_err(|error| unreachable(&error))?;
    Ok(PeerClient::new(channel))
}

async fn dial(endpoint: &Endpoint, limit: Duration) -> Result<TcpStream, Error> {
    match timeout(limit, TcpStream::connect((endpoint.host(), endpoint.port()))).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(Error::unreachable(endpoint, error)),
        Err(_) => Err(Error::unreachable(endpoint, format_args!("no answer within {limit:?}"))),
    }
}

fn describe(status: &tonic::Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

pub(crate) fn version() -> rpc::Version {
    rpc::Version { major: VERSION_MAJOR.into(), minor: VERSION_MINOR.into() }
}

/// Opens a lane, and tells the session how that went.
pub(crate) async fn open_lane(peer: Weak<PeerInner>, lane: LaneId) {
    let Some(strong) = peer.upgrade() else { return };
    let limit = strong.core().settings.connect_timeout;
    let opened = match timeout(limit, try_open_lane(&strong, lane)).await {
        Ok(opened) => opened,
        Err(_) => {
            let why = format_args!("its lane port did not answer within {limit:?}");
            Err(Error::unreachable(strong.endpoint(), why))
        }
    };
    match opened {
        Ok(()) => strong.event(|session, now| session.on_lane_up(now, lane)),
        Err(error) => {
            tracing::warn!(peer = %strong.endpoint(), %lane, %error, "no lane");
            // That it is somebody else is no failure of the lane: a handshake tells who.
            let cause = match &error {
                Error::LaneRefused { refusal, .. } if refusal.is_other_incarnation() => None,
                _ => Some(error),
            };
            strong.event(|session, now| session.on_lane_down(now, lane, cause));
        }
    }
}

async fn try_open_lane(peer: &Arc<PeerInner>, lane: LaneId) -> Result<(), Error> {
    let endpoint = peer.endpoint();
    let core = peer.core();
    let Some(offer) = peer.offer() else {
        return Err(Error::NoTransport { peer: endpoint.clone(), wanted: "tcp" });
    };
    let mut stream = dial(&offer.endpoint, core.settings.connect_timeout).await?;
    let unreachable = |error: &dyn Display| Error::unreachable(&offer.endpoint, error);
    let hello = Hello {
        version: VERSION_MAJOR,
        initiator: core.incarnation,
        target: offer.incarnation,
        session: peer.number(),
        lane,
        ping_ms: u32::try_from(core.settings.session.ping_interval.as_millis()).unwrap_or(u32::MAX),
    };
    stream.write_all(&hello.encode()).await.map_err(|error| unreachable(&error))?;
    let mut welcome = [0; Welcome::BYTES];
    stream.read_exact(&mut welcome).await.map_err(|error| unreachable(&error))?;
    let welcome = Welcome::decode(&welcome)
        .map_err(|error| Error::Protocol { peer: offer.endpoint.clone(), error })?;
    if let Some(refusal) = welcome.refusal {
        return Err(Error::LaneRefused { peer: endpoint.clone(), refusal });
    }
    let stream = stream.into_std().map_err(|error| unreachable(&error))?;
    let reactor = core.reactor().ok_or(Error::Shutdown)?;
    let handler = Arc::new(ReplyHandler::new(Arc::downgrade(peer), lane));
    peer.lanes()
        .add(lane, || reactor.add(stream, Core::opened_lane(), handler))
        .map_err(|error| unreachable(&error))
}
