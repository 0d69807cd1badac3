//! Calls to the master, each bounded in time.

use std::error::Error as _;
use std::fmt::Write as _;
use std::future::Future;
use std::time::Duration;

use kvferry_engine::{Endpoint, Incarnation};
use kvferry_proto::message::MessageError;
use kvferry_proto::pool::{
    Beat, BeatAnswer, Changes, Exists, ExistsAnswer, Follow, Join, JoinAnswer, Locate,
    LocateAnswer, MESSAGE_BYTES, MountPart, PutEnd, PutEndAnswer, PutRevoke, PutStart,
    PutStartAnswer, Remove, RemoveAnswer, RemoveMatching, RemoveMatchingAnswer, SegmentStatus,
    Unmount,
};
use kvferry_proto::rpc::pool as rpc;
use kvferry_proto::rpc::pool::heartbeats_client::HeartbeatsClient;
use kvferry_proto::rpc::pool::pool_client::PoolClient;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint as Address};
use tonic::{Code, Response, Status, Streaming};

use super::gather::{Gather, SMALL};
use super::together::{Recording, fill_in, short};
use crate::error::Error;

/// How long a call may take, beyond what it was told to wait for.
const CALL: Duration = Duration::from_secs(5);

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(2);

/// A master, as one client calls it, over one connection, which is made, and made again, by the calls.
#[derive(Debug)]
pub(crate) struct Master {
    line: Line,
    exists: Gather<Exists>,
    locates: Gather<Locate>,
    starts: Gather<PutStart>,
    ends: Gather<Recording>,
}

/// What a call needs. Clones share the connection.
#[derive(Clone, Debug)]
struct Line {
    endpoint: Endpoint,
    pool: PoolClient<Channel>,
}

/// The service for signs of life of a master.
#[derive(Debug)]
pub(crate) struct Heartbeats {
    endpoint: Endpoint,
    service: HeartbeatsClient<Channel>,
}

fn channel(endpoint: &Endpoint) -> Result<Channel, Error> {
    let address = Address::from_shared(format!("http://{endpoint}"))
        .map_err(|error| failed(endpoint, error))?;
    Ok(address.connect_timeout(CONNECT).tcp_nodelay(true).connect_lazy())
}

fn failed(master: &Endpoint, reason: impl std::fmt::Display) -> Error {
    Error::Master { master: master.clone(), reason: reason.to_string().into() }
}

/// What a status says, and what it says it comes from.
fn describe(status: &Status) -> String {
    let mut text = format!("{:?}: {}", status.code(), status.message());
    let mut source = status.source();
    while let Some(error) = source {
        // Writing to a string does not fail.
        let _ = write!(text, ": {error}");
        source = error.source();
    }
    text
}

async fn bounded<Reply>(
    master: &Endpoint,
    limit: Duration,
    call: impl Future<Output = Result<Response<Reply>, Status>>,
) -> Result<Reply, Error> {
    match timeout(limit, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) if status.code() == Code::InvalidArgument => {
            let reason = status.message().into();
            Err(Error::Refused { master: master.clone(), reason })
        }
        Ok(Err(status)) => Err(failed(master, describe(&status))),
        Err(_) => Err(failed(master, format_args!("no answer within {limit:?}"))),
    }
}

impl Master {
    /// The master at an address. To be called within a runtime; nothing is sent yet.
    pub(crate) fn new(endpoint: &Endpoint) -> Result<Self, Error> {
        let pool = PoolClient::new(channel(endpoint)?)
            .max_decoding_message_size(MESSAGE_BYTES)
            .max_encoding_message_size(MESSAGE_BYTES);
        let line = Line { endpoint: endpoint.clone(), pool };
        let lines = || line.clone();
        let (exists, locates, starts, ends) = (lines(), lines(), lines(), lines());
        Ok(Self {
            exists: Gather::new(move |asked| exists.clone().exists(asked)),
            locates: Gather::new(move |asked| locates.clone().locate(asked)),
            starts: Gather::new(move |asked| starts.clone().put_start(asked)),
            ends: Gather::new(move |asked: Recording| ends.clone().put_end(asked.end)),
            line,
        })
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.line.endpoint
    }

    /// A client of its service for signs of life, over a connection of its own.
    pub(crate) fn heartbeats(endpoint: &Endpoint, port: u16) -> Result<Heartbeats, Error> {
        let endpoint = Endpoint::new(endpoint.host(), port);
        Ok(Heartbeats { service: HeartbeatsClient::new(channel(&endpoint)?), endpoint })
    }

    pub(crate) async fn join(&self, join: &Join) -> Result<JoinAnswer, Error> {
        let mut pool = self.line.pool.clone();
        let call = pool.join(rpc::JoinRequest::from(join));
        let reply = bounded(&self.line.endpoint, CALL, call).await?;
        self.line.read(reply.try_into())
    }

    pub(crate) async fn leave(&self, client: u64, limit: Duration) -> Result<(), Error> {
        let mut pool = self.line.pool.clone();
        bounded(&self.line.endpoint, limit, pool.leave(rpc::LeaveRequest { client })).await?;
        Ok(())
    }

    /// How many objects it has taken, and how many it has not.
    pub(crate) async fn mount(&self, parts: Vec<MountPart>) -> Result<(u64, u64), Error> {
        let mut pool = self.line.pool.clone();
        // Large inventories take their time: a second for each part is far more than they need.
        let parts_count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        let limit = CALL + Duration::from_secs(1).saturating_mul(parts_count);
        let parts = tokio_stream::iter(parts.into_iter().map(rpc::MountPart::from));
        let reply = bounded(&self.line.endpoint, limit, pool.mount(parts)).await?;
        Ok((reply.adopted, reply.refused))
    }

    /// How long leases on what was in it would have run on.
    pub(crate) async fn unmount(&self, unmount: Unmount) -> Result<Duration, Error> {
        let mut pool = self.line.pool.clone();
        let limit = CALL.saturating_add(unmount.grace);
        let call = pool.unmount(rpc::UnmountRequest::from(unmount));
        let reply = bounded(&self.line.endpoint, limit, call).await?;
        Ok(Duration::from_millis(reply.leased_ms))
    }

    /// Follows what changes in the client's segments; what has been applied is said to the sender.
    pub(crate) async fn follow(
        &self,
        first: Follow,
    ) -> Result<(mpsc::Sender<rpc::FollowRequest>, Streaming<rpc::Changes>), Error> {
        let (sender, receiver) = mpsc::channel(16);
        // The channel is fresh, and has room.
        let _ = sender.try_send(rpc::FollowRequest::from(first));
        let mut pool = self.line.pool.clone();
        let call = pool.follow(ReceiverStream::new(receiver));
        let changes = bounded(&self.line.endpoint, CALL, call).await?;
        Ok((sender, changes))
    }

    /// What a message of [`Master::follow`] says.
    pub(crate) fn changes(
        &self,
        message: Result<Option<rpc::Changes>, Status>,
    ) -> Result<Changes, Error> {
        match message {
            Ok(Some(changes)) => self.line.read(changes.try_into()),
            Ok(None) => Err(failed(&self.line.endpoint, "it closed the connection")),
            Err(status) => Err(failed(&self.line.endpoint, describe(&status))),
        }
    }

    pub(crate) async fn exists(&self, exists: Exists) -> Result<ExistsAnswer, Error> {
        self.exists.ask(exists).await
    }

    pub(crate) async fn locate(&self, locate: Locate) -> Result<LocateAnswer, Error> {
        self.locates.ask(locate).await
    }

    /// Those of a few for which there is no room at once are asked for again, with the wait for it: so
    /// none waits for room that it does not need.
    pub(crate) async fn put_start(&self, start: PutStart) -> Result<PutStartAnswer, Error> {
        if start.puts.len() > SMALL {
            return self.line.clone().put_start(start).await;
        }
        let mut answer = self.starts.ask(PutStart { at_once: true, ..start.clone() }).await?;
        let short = short(&answer);
        if !short.is_empty() {
            let puts = short.iter().map(|index| start.puts[*index].clone()).collect();
            let again = self.line.clone().put_start(PutStart { puts, ..start }).await;
            // What is reserved already is used also where this fails.
            if let Ok(again) = again {
                fill_in(&mut answer, &short, again);
            }
        }
        Ok(answer)
    }

    /// `owners` are those that are to record them, in order.
    pub(crate) async fn put_end(
        &self,
        end: PutEnd,
        owners: Vec<Incarnation>,
    ) -> Result<PutEndAnswer, Error> {
        self.ends.ask(Recording { end, owners }).await
    }

    pub(crate) async fn put_revoke(&self, revoke: PutRevoke) -> Result<(), Error> {
        let mut pool = self.line.pool.clone();
        let call = pool.put_revoke(rpc::PutRevokeRequest::from(revoke));
        bounded(&self.line.endpoint, CALL, call).await?;
        Ok(())
    }

    pub(crate) async fn remove(&self, remove: Remove) -> Result<RemoveAnswer, Error> {
        let mut pool = self.line.pool.clone();
        let expected = remove.keys.len();
        let call = pool.remove(rpc::RemoveRequest::from(remove));
        let reply = bounded(&self.line.endpoint, CALL, call).await?;
        self.line.read(RemoveAnswer::from_wire(&reply, expected))
    }

    pub(crate) async fn remove_matching(
        &self,
        remove: RemoveMatching,
    ) -> Result<RemoveMatchingAnswer, Error> {
        let mut pool = self.line.pool.clone();
        let call = pool.remove_matching(rpc::RemoveMatchingRequest::from(remove));
        let reply = bounded(&self.line.endpoint, CALL, call).await?;
        Ok(reply.into())
    }

    pub(crate) async fn segments(&self) -> Result<Vec<SegmentStatus>, Error> {
        let mut pool = self.line.pool.clone();
        let call = pool.segments(rpc::SegmentsRequest {});
        let reply = bounded(&self.line.endpoint, CALL, call).await?;
        self.line.read(reply.segments.into_iter().map(TryInto::try_into).collect())
    }
}

impl Line {
    fn read<Value>(&self, value: Result<Value, MessageError>) -> Result<Value, Error> {
        value.map_err(|error| Error::Foreign { master: self.endpoint.clone(), error })
    }

    async fn exists(mut self, exists: Exists) -> Result<ExistsAnswer, Error> {
        let expected = exists.keys.len();
        let call = self.pool.exists(rpc::ExistsRequest::from(exists));
        let reply = bounded(&self.endpoint, CALL, call).await?;
        self.read(ExistsAnswer::from_wire(&reply, expected))
    }

    async fn locate(mut self, locate: Locate) -> Result<LocateAnswer, Error> {
        let expected = locate.keys.len();
        let call = self.pool.locate(rpc::LocateRequest::from(locate));
        let reply = bounded(&self.endpoint, CALL, call).await?;
        self.read(LocateAnswer::from_wire(reply, expected))
    }

    async fn put_start(mut self, start: PutStart) -> Result<PutStartAnswer, Error> {
        let lengths: Vec<u64> = start.puts.iter().map(|put| put.length).collect();
        let call = self.pool.put_start(rpc::PutStartRequest::from(start));
        let reply = bounded(&self.endpoint, CALL, call).await?;
        self.read(PutStartAnswer::from_wire(reply, &lengths))
    }

    async fn put_end(mut self, end: PutEnd) -> Result<PutEndAnswer, Error> {
        let expected = end.puts.len();
        let call = self.pool.put_end(rpc::PutEndRequest::from(end));
        let reply = bounded(&self.endpoint, CALL, call).await?;
        self.read(PutEndAnswer::from_wire(&reply, expected))
    }
}

impl Heartbeats {
    pub(crate) async fn beat(&mut self, beat: Beat, limit: Duration) -> Result<BeatAnswer, Error> {
        let call = self.service.beat(rpc::BeatRequest::from(beat));
        let reply = bounded(&self.endpoint, limit, call).await?;
        let master = self.endpoint.clone();
        reply.try_into().map_err(|error| Error::Foreign { master, error })
    }
}
