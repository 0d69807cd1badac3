//! The handshake with a peer, and its table.

use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kvferry_proto::message::TableUpdate;
use kvferry_proto::rpc;
use kvferry_proto::rpc::peer_client::PeerClient;
use kvferry_proto::{Incarnation, LaneId};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint as GrpcEndpoint};

use super::offer::{Offer, Offers, hello};
use super::{choice, lane};
use crate::core::Core;
use crate::error::Error;
use crate::net::Endpoint;
use crate::outreach::{Connection, Outreach};
use crate::peer::PeerInner;
use crate::remote::RemoteTable;
use crate::session::Means;

/// The engine's control runtime, on which all of this is done.
pub(crate) struct ControlRuntime(pub(crate) Handle);

/// The task that holds a control connection, which ends with this.
struct Holding(AbortHandle);

impl Drop for Holding {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Outreach for ControlRuntime {
    fn shake_hands(&self, peer: &Arc<PeerInner>) -> Connection {
        Box::new(Holding(self.0.spawn(hold(Arc::downgrade(peer))).abort_handle()))
    }

    fn open_lane(&self, peer: &Arc<PeerInner>, lane: LaneId, means: Means) {
        self.0.spawn(lane::open(Arc::downgrade(peer), lane, means));
    }

    fn keep_time(&self, peer: &Arc<PeerInner>) {
        self.0.spawn(peer.keep_time());
    }

    fn catch_up(
        &self,
        peer: &Arc<PeerInner>,
    ) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
        let (peer, endpoint) = (peer.clone(), peer.endpoint().clone());
        let caught_up = self.0.spawn(catch_up(peer));
        let shut_down = move |_| Err(Error::unreachable(&endpoint, "shut down meanwhile"));
        Box::pin(async move { caught_up.await.unwrap_or_else(shut_down) })
    }
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
        .hello(hello(core))
        .await
        .map_err(|status| unreachable(&describe(&status)))?
        .into_inner();
    let offers = Offers::read(endpoint, reply)?;
    let incarnation = offers.incarnation;
    let offer = choice::choose(core, endpoint, offers).await?;
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

pub(crate) fn apply(
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
async fn catch_up(peer: Arc<PeerInner>) -> Result<(), Error> {
    let limit = peer.core().settings.connect_timeout;
    timeout(limit, follow(&peer)).await.unwrap_or_else(|_| {
        let why = format_args!("its table did not arrive within {limit:?}");
        Err(Error::unreachable(peer.endpoint(), why))
    })
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

/// A connection that sends what it is given at once: of two small messages the second would wait until the
/// first is acknowledged, which the other end puts off for 40 ms.
pub(super) async fn dial(endpoint: &Endpoint, limit: Duration) -> Result<TcpStream, Error> {
    match timeout(limit, TcpStream::connect((endpoint.host(), endpoint.port()))).await {
        Ok(Ok(stream)) => {
            stream.set_nodelay(true).map_err(|error| Error::unreachable(endpoint, error))?;
            Ok(stream)
        }
        Ok(Err(error)) => Err(Error::unreachable(endpoint, error)),
        Err(_) => Err(Error::unreachable(endpoint, format_args!("no answer within {limit:?}"))),
    }
}

fn describe(status: &tonic::Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::IntoEndpoint;

    #[test]
    fn what_is_said_to_a_peer_is_sent_at_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string().into_endpoint().unwrap();
            let stream = dial(&address, Duration::from_secs(10)).await.unwrap();
            assert!(stream.nodelay().unwrap());
        });
    }
}
