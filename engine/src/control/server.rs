//! The service `Peer`, for engines that want to reach this one.

use std::sync::Arc;
use std::time::Duration;

use kvferry_proto::Incarnation;
use kvferry_proto::message;
use kvferry_proto::rpc;
use kvferry_proto::rpc::peer_server::{Peer, PeerServer};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::admit::admit_all;
use super::offer::hello_reply;
use crate::core::Core;
use crate::registry::Cursor;

/// How many engines may follow the table at once.
const MOST_WATCHERS: usize = 4096;

/// How many requests one connection may have under way.
const REQUESTS_PER_CONNECTION: usize = 64;

/// How many updates may wait for one watcher: it gets the rest when it has taken these.
const UPDATES_AHEAD: usize = 4;

/// How many connections may wait to be served.
const ACCEPTED_AHEAD: usize = 16;

/// How long a connection may be silent before its other end is asked whether it is there, and how
/// long the answer may take: what follows the table from a host that is gone is given back.
const KEEPALIVE: Duration = Duration::from_secs(20);

struct PeerService {
    core: Arc<Core>,
    lane_port: u16,
    watchers: Arc<Semaphore>,
}

/// Serves for as long as the engine's runtime lives.
pub(crate) async fn serve(core: Arc<Core>, listener: TcpListener, lane_port: u16) {
    let (accepting, accepted) = mpsc::channel(ACCEPTED_AHEAD);
    tokio::spawn(admit_all(listener, accepting));
    let watchers = Arc::new(Semaphore::new(MOST_WATCHERS));
    let service = PeerServer::new(PeerService { core, lane_port, watchers });
    let served = tonic::transport::Server::builder()
        .concurrency_limit_per_connection(REQUESTS_PER_CONNECTION)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .add_service(service)
        .serve_with_incoming(ReceiverStream::new(accepted))
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "the control server failed: no peer can connect any more");
    }
}

impl PeerService {
    fn check(&self, expected: u64) -> Result<(), Status> {
        if self.core.is_shut() {
            return Err(Status::unavailable("the engine is shutting down"));
        }
        let ours = self.core.incarnation;
        if expected == ours.0 {
            return Ok(());
        }
        let expected = Incarnation(expected);
        let why = format!("incarnation {expected} was expected, this is {ours}: say hello again");
        Err(Status::failed_precondition(why))
    }
}

fn invalid(error: &message::MessageError) -> Status {
    Status::invalid_argument(error.to_string())
}

#[tonic::async_trait]
impl Peer for PeerService {
    async fn hello(
        &self,
        request: Request<rpc::HelloRequest>,
    ) -> Result<Response<rpc::HelloReply>, Status> {
        let core = &self.core;
        if core.is_shut() {
            return Err(Status::unavailable("the engine is shutting down"));
        }
        let hello = request.into_inner();
        let from = message::incarnation("HelloRequest", hello.incarnation)
            .map_err(|error| invalid(&error))?;
        let theirs = hello.version.map_or(0, |version| version.major);
        tracing::debug!(%from, theirs, "hello");
        Ok(Response::new(hello_reply(core, self.lane_port)))
    }

    type WatchStream = ReceiverStream<Result<rpc::TableUpdate, Status>>;

    async fn watch(
        &self,
        request: Request<rpc::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let watch = request.into_inner();
        self.check(watch.incarnation)?;
        message::incarnation("WatchRequest", watch.watcher).map_err(|error| invalid(&error))?;
        let permit = self
            .watchers
            .clone()
            .try_acquire_owned()
            .map_err(|_| Status::resource_exhausted("too many engines follow this table"))?;
        let (sender, receiver) = mpsc::channel(UPDATES_AHEAD);
        let registry = self.core.registry.clone();
        tokio::spawn(async move {
            let _permit = permit;
            let table = registry.table();
            let mut changes = table.subscribe();
            let mut cursor = Cursor::default();
            loop {
                changes.borrow_and_update();
                while let Some(update) = table.next_update(&registry, &mut cursor) {
                    if sender.send(Ok((&update).into())).await.is_err() {
                        return;
                    }
                }
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() { return },
                    () = sender.closed() => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn table_version(
        &self,
        request: Request<rpc::TableVersionRequest>,
    ) -> Result<Response<rpc::TableVersionReply>, Status> {
        self.check(request.into_inner().incarnation)?;
        let version = self.core.registry.table().version();
        Ok(Response::new(rpc::TableVersionReply { version }))
    }
}
