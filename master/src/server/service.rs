//! The service `Pool`, for clients.

use std::sync::Arc;
use std::time::Duration;

use kvferry_proto::message::MessageError;
use kvferry_proto::pool::{
    Beat, Exists, ExistsAnswer, Follow, Join, JoinAnswer, Locate, LocateAnswer, Matching,
    MountPart, Outcome, Presence, PutEnd, PutEndAnswer, PutRevoke, PutStart, PutStartAnswer,
    Remove, RemoveAnswer, RemoveMatching, RemoveMatchingAnswer, Unmount,
};
use kvferry_proto::rpc::pool as rpc;
use kvferry_proto::{Incarnation, message};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::desk::Desk;
use super::metrics;
use crate::state::{FollowError, Matcher, MountError, Mounting, SHARDS, Told};

/// How long an owner may take for the next part of what it has.
const PART: Duration = Duration::from_secs(30);

/// How many owners may say at once what they have.
const MOUNTING: usize = 64;

/// How many messages may wait for a follower.
const AHEAD: usize = 4;

/// The longest time that is waited for leases when a segment is taken back.
const MOST_GRACE: Duration = Duration::from_secs(3600);

/// The service.
#[derive(Debug)]
pub(super) struct PoolService {
    desk: Arc<Desk>,
    heartbeat_port: u16,
    beat_every: Duration,
    mounting: Semaphore,
}

impl PoolService {
    pub(super) fn new(desk: Arc<Desk>, heartbeat_port: u16, beat_every: Duration) -> Self {
        Self { desk, heartbeat_port, beat_every, mounting: Semaphore::new(MOUNTING) }
    }

    fn open(&self) -> Result<(), Status> {
        if self.desk.is_closing() {
            return Err(Status::unavailable(Outcome::Closing.to_string()));
        }
        Ok(())
    }
}

fn invalid(error: &MessageError) -> Status {
    Status::invalid_argument(error.to_string())
}

fn refused(error: &MountError) -> Status {
    let why = error.to_string();
    match error {
        MountError::NotJoined { .. } => Status::failed_precondition(why),
        MountError::Taken { .. } => Status::already_exists(why),
        MountError::Busy { .. } => Status::aborted(why),
        MountError::TooMany { .. } => Status::resource_exhausted(why),
        MountError::Inventory { .. } => Status::invalid_argument(why),
    }
}

fn not_followed(error: FollowError) -> Status {
    Status::failed_precondition(error.to_string())
}

/// A segment that is given up unless its owner says all that is in it.
struct Half<'a> {
    desk: &'a Desk,
    mounting: Option<Mounting>,
}

impl Drop for Half<'_> {
    fn drop(&mut self) {
        if let Some(mounting) = self.mounting.take() {
            self.desk.pool.give_up(&mounting);
        }
    }
}

#[tonic::async_trait]
impl rpc::pool_server::Pool for PoolService {
    async fn join(
        &self,
        request: Request<rpc::JoinRequest>,
    ) -> Result<Response<rpc::JoinReply>, Status> {
        self.open()?;
        let join = Join::try_from(request.into_inner()).map_err(|error| invalid(&error))?;
        let desk = &self.desk;
        let joined = desk.pool.join(desk.now(), &join);
        let joined = joined.map_err(|why| Status::resource_exhausted(why.to_string()))?;
        tracing::info!(client = %join.client, host = ?join.host, epoch = joined.epoch, "joined");
        let answer = JoinAnswer {
            master: desk.master,
            epoch: joined.epoch,
            lease: joined.lease,
            beat_every: self.beat_every,
            heartbeat_port: self.heartbeat_port,
            is_recovering: joined.is_recovering,
        };
        Ok(Response::new((&answer).into()))
    }

    async fn leave(
        &self,
        request: Request<rpc::LeaveRequest>,
    ) -> Result<Response<rpc::LeaveReply>, Status> {
        let client = request.into_inner().client;
        let client =
            message::incarnation("LeaveRequest", client).map_err(|error| invalid(&error))?;
        let was_known = self.desk.pool.leave(self.desk.now(), client);
        tracing::info!(%client, was_known, "left");
        Ok(Response::new(rpc::LeaveReply {}))
    }

    async fn mount(
        &self,
        request: Request<Streaming<rpc::MountPart>>,
    ) -> Result<Response<rpc::MountReply>, Status> {
        self.open()?;
        let desk = &*self.desk;
        let Ok(_turn) = self.mounting.try_acquire() else {
            return Err(Status::resource_exhausted("many segments are being mounted: try again"));
        };
        let mut parts = request.into_inner();
        let mut half = Half { desk, mounting: None };
        let mut told = Told::default();
        let mut who = None;
        loop {
            let part = timeout(PART, parts.message()).await;
            let part = part.map_err(|_| {
                Status::deadline_exceeded(format!("the next part did not come within {PART:?}"))
            })??;
            let Some(part) = part else { break };
            let held = match MountPart::try_from(part).map_err(|error| invalid(&error))? {
                MountPart::First { client, lent, is_fenced, held } if who.is_none() => {
                    who = Some((client, lent.segment, lent.length));
                    half.mounting = desk
                        .pool
                        .mount(desk.now(), client, lent, is_fenced)
                        .map_err(|error| refused(&error))?;
                    if half.mounting.is_none() {
                        // It is there, and what its owner repeats is known.
                        return Ok(Response::new(rpc::MountReply { adopted: 0, refused: 0 }));
                    }
                    held
                }
                MountPart::More(held) if who.is_some() => held,
                _ => return Err(Status::invalid_argument("the segment comes first, and once")),
            };
            if let Some(mounting) = &mut half.mounting {
                let adopted = desk.pool.adopt(desk.now(), mounting, held, &mut told);
                desk.tell(&told);
                adopted.map_err(|error| refused(&error))?;
            }
        }
        let (Some((client, segment, bytes)), Some(mounting)) = (who, half.mounting.take()) else {
            return Err(Status::invalid_argument("no segment was named"));
        };
        let mounted = desk.pool.mounted(&mounting);
        desk.metrics.count(metrics::Request::Mount, 1, usize::from(mounted.is_err()));
        let mounted = mounted.map_err(|error| refused(&error))?;
        let (adopted, refused) = (mounted.adopted, mounted.refused);
        tracing::info!(%client, %segment, bytes, adopted, refused, "segment mounted");
        Ok(Response::new(rpc::MountReply { adopted, refused }))
    }

    async fn unmount(
        &self,
        request: Request<rpc::UnmountRequest>,
    ) -> Result<Response<rpc::UnmountReply>, Status> {
        let unmount = Unmount::try_from(request.into_inner()).map_err(|error| invalid(&error))?;
        let Unmount { client, segment, grace } = unmount;
        // It goes also when the caller does: the owner asked for it.
        let desk = self.desk.clone();
        let unmounted = tokio::spawn(async move {
            let leaving = desk.pool.unmount(desk.now(), client, segment)?;
            let wait = leaving.free.since(desk.now()).min(grace).min(MOST_GRACE);
            if !wait.is_zero() {
                sleep(wait).await;
            }
            let leased = desk.pool.unmounted(desk.now(), &leaving);
            tracing::info!(%client, %segment, ?leased, "segment unmounted");
            Ok::<_, Outcome>(leased)
        });
        let unmounted = unmounted.await.map_err(|error| Status::internal(error.to_string()))?;
        self.desk.metrics.count(metrics::Request::Unmount, 1, usize::from(unmounted.is_err()));
        let leased = unmounted.map_err(|_| {
            Status::not_found(format!("client {client} has no segment {segment} that is mounted"))
        })?;
        let leased_ms = u64::try_from(leased.as_millis()).unwrap_or(u64::MAX);
        Ok(Response::new(rpc::UnmountReply { leased_ms }))
    }

    type FollowStream = ReceiverStream<Result<rpc::Changes, Status>>;

    async fn follow(
        &self,
        request: Request<Streaming<rpc::FollowRequest>>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let mut said = request.into_inner();
        let first = said.message().await?;
        let first = first.ok_or_else(|| Status::invalid_argument("nobody was named"))?;
        let first = Follow::try_from(first).map_err(|error| invalid(&error))?;
        let (owner, desk) = (first.client, self.desk.clone());
        desk.pool.follow(desk.now(), first).map_err(not_followed)?;
        desk.note_recorded();
        let signal = desk.follower(owner);
        let (sender, receiver) = mpsc::channel(AHEAD);
        tokio::spawn(async move {
            let tell = tell(&desk, owner, first.applied, &signal, &sender);
            let hear = hear(&desk, owner, &mut said);
            let ended = tokio::select! {
                () = tell => Ok(()),
                ended = hear => ended,
                () = sender.closed() => Ok(()),
            };
            desk.stop_following(owner, &signal);
            if let Err(status) = ended {
                // Nobody may be there to hear it.
                let _ = sender.try_send(Err(status));
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn exists(
        &self,
        request: Request<rpc::ExistsRequest>,
    ) -> Result<Response<rpc::ExistsReply>, Status> {
        let exists = Exists::try_from(request.into_inner()).map_err(|error| invalid(&error))?;
        let answer = if self.desk.is_closing() {
            let found = vec![Presence::Recovering; exists.keys.len()];
            ExistsAnswer { found, lease: Duration::ZERO }
        } else {
            self.desk.pool.exists(self.desk.now(), &exists)
        };
        let failed = answer.found.iter().filter(|found| **found != Presence::There).count();
        self.desk.metrics.count(metrics::Request::Exist, answer.found.len(), failed);
        Ok(Response::new((&answer).into()))
    }

    async fn locate(
        &self,
        request: Request<rpc::LocateRequest>,
    ) -> Result<Response<rpc::LocateReply>, Status> {
        let locate = Locate::try_from(request.into_inner()).map_err(|error| invalid(&error))?;
        let answer = match self.desk.refusal() {
            Some(refusal) => LocateAnswer {
                objects: vec![Err(refusal); locate.keys.len()],
                segments: Vec::new(),
                lease: Duration::ZERO,
            },
            None => self.desk.pool.locate(self.desk.now(), &locate),
        };
        let failed = answer.objects.iter().filter(|object| object.is_err()).count();
        self.desk.metrics.count(metrics::Request::Locate, answer.objects.len(), failed);
        Ok(Response::new((&answer).into()))
    }

    async fn put_start(
        &self,
        request: Request<rpc::PutStartRequest>,
    ) -> Result<Response<rpc::PutStartReply>, Status> {
        let start = PutStart::try_from(request.into_inner()).map_err(|error| invalid(&error))?;
        let answer = match self.desk.refusal() {
            Some(refusal) => PutStartAnswer {
                reserved: vec![Err(refusal); start.puts.len()],
                segments: Vec::new(),
                reservation: Duration::ZERO,
            },
            None => self.desk.put_start(&start).await,
        };
        let failed = answer.reserved.iter().filter(|reserved| reserved.is_err()).count();
        self.desk.metrics.count(metrics::Request::PutStart, answer.reserved.len(), failed);
        Ok(Response::new((&answer).into()))
    }

    async fn put_end(
        &self,
        request: Request<rpc::PutEndRequest>,
    ) -> Result<Response<rpc::PutEndReply>, Status> {
        let end = PutEnd::try_from(request.into_inner()).map_err(|error| invalid(&error))?;
        let mut told = Told::default();
        let outcomes = self.desk.pool.put_end(self.desk.now(), &end, &mut told);
        self.desk.metrics.count_outcomes(metrics::Request::PutEnd, &outcomes);
        let is_recorded = self.desk.record(&told).await;
        Ok(Response::new((&PutEndAnswer { outcomes, is_recorded }).into()))
    }

    async fn put_revoke(
        &self,
        request: Request<rpc::PutRevokeRequest>,
    ) -> Result<Response<rpc::PutRevokeReply>, Status> {
        let revoke = PutRevoke::try_from(request.into_inner()).map_err(|error| invalid(&error))?;
        let outcomes = self.desk.pool.put_revoke(self.desk.now(), &revoke);
        self.desk.metrics.count_outcomes(metrics::Request::PutRevoke, &outcomes);
        Ok(Response::new(PutRevoke::answer(&outcomes)))
    }

    async fn remove(
        &self,
        request: Request<rpc::RemoveRequest>,
    ) -> Result<Response<rpc::RemoveReply>, Status> {
        let remove = Remove::try_from(request.into_inner()).map_err(|error| invalid(&error))?;
        let mut told = Told::default();
        let outcomes = self.desk.pool.remove(self.desk.now(), &remove, &mut told);
        self.desk.metrics.count_outcomes(metrics::Request::Remove, &outcomes);
        let is_recorded = self.desk.record(&told).await;
        Ok(Response::new((&RemoveAnswer { outcomes, is_recorded }).into()))
    }

    async fn remove_matching(
        &self,
        request: Request<rpc::RemoveMatchingRequest>,
    ) -> Result<Response<rpc::RemoveMatchingReply>, Status> {
        let remove =
            RemoveMatching::try_from(request.into_inner()).map_err(|error| invalid(&error))?;
        let kind = match remove.matching {
            Matching::All => metrics::Request::RemoveAll,
            Matching::Prefix(_) | Matching::Regex(_) => metrics::Request::RemoveByRegex,
        };
        let answer = remove_matching(&self.desk, remove).await;
        self.desk.metrics.count(kind, 1, usize::from(answer.is_err()));
        Ok(Response::new(answer?.into()))
    }

    async fn segments(
        &self,
        _: Request<rpc::SegmentsRequest>,
    ) -> Result<Response<rpc::SegmentsReply>, Status> {
        let segments = self.desk.pool.segments();
        let segments = segments.iter().map(Into::into).collect();
        Ok(Response::new(rpc::SegmentsReply { segments }))
    }
}

/// Tells an owner what changes, for as long as nobody else follows it.
async fn tell(
    desk: &Desk,
    owner: Incarnation,
    applied: u64,
    signal: &Arc<tokio::sync::Notify>,
    sender: &mpsc::Sender<Result<rpc::Changes, Status>>,
) {
    let mut told = applied;
    while desk.is_follower(owner, signal) {
        while let Some(changes) = desk.pool.changes(owner, told) {
            told = changes.number;
            if sender.send(Ok(changes.into())).await.is_err() {
                return;
            }
        }
        signal.notified().await;
    }
}

/// Hears how far an owner has come.
async fn hear(
    desk: &Desk,
    owner: Incarnation,
    said: &mut Streaming<rpc::FollowRequest>,
) -> Result<(), Status> {
    while let Some(follow) = said.next().await {
        let applied = follow?.applied;
        let follow = Follow { client: owner, applied };
        desk.pool.follow(desk.now(), follow).map_err(not_followed)?;
        desk.note_recorded();
    }
    Ok(())
}

/// Removes what matches, on a thread that may take its time.
pub(super) async fn remove_matching(
    desk: &Arc<Desk>,
    remove: RemoveMatching,
) -> Result<RemoveMatchingAnswer, Status> {
    let RemoveMatching { tenant, matching, force } = remove;
    let is_all = matching == Matching::All;
    let matcher = Matcher::new(matching).map_err(|error| {
        Status::invalid_argument(format!("not a regular expression that can be used: {error}"))
    })?;
    let _turn = desk.looking_through.acquire().await;
    if desk.pool.is_recovering(desk.now()) {
        return Err(Status::unavailable(Outcome::Recovering.to_string()));
    }
    if is_all {
        let closed = desk.pool.close_past(desk.now(), &tenant);
        closed.map_err(|why| Status::unavailable(why.to_string()))?;
    }
    let at = desk.clone();
    let done = tokio::task::spawn_blocking(move || {
        let mut told = Told::default();
        let (mut removed, mut kept) = (0, 0);
        for shard in 0..SHARDS {
            let now = at.now();
            let done = at.pool.remove_matching(now, shard, &tenant, &matcher, force, &mut told);
            removed += done.0;
            kept += done.1;
        }
        tracing::info!(%tenant, ?matcher, force, removed, kept, "removed what matches");
        (removed, kept, told)
    });
    let (removed, kept, told) = done.await.map_err(|error| Status::internal(error.to_string()))?;
    let is_recorded = desk.record(&told).await;
    Ok(RemoveMatchingAnswer { removed, kept, is_recorded })
}

/// The service `Heartbeats`.
#[derive(Debug)]
pub(super) struct HeartbeatService {
    desk: Arc<Desk>,
}

impl HeartbeatService {
    pub(super) fn new(desk: Arc<Desk>) -> Self {
        Self { desk }
    }
}

#[tonic::async_trait]
impl rpc::heartbeats_server::Heartbeats for HeartbeatService {
    async fn beat(
        &self,
        request: Request<rpc::BeatRequest>,
    ) -> Result<Response<rpc::BeatReply>, Status> {
        let beat = Beat::try_from(request.into_inner()).map_err(|error| invalid(&error))?;
        let desk = &self.desk;
        let now = desk.now();
        let is_ours = beat.master == desk.master;
        let lease = is_ours.then(|| desk.pool.beat(now, beat.client)).flatten();
        desk.metrics.count(metrics::Request::Ping, 1, usize::from(lease.is_none()));
        let is_recovering = desk.pool.is_recovering(now);
        let answer = kvferry_proto::pool::BeatAnswer { master: desk.master, lease, is_recovering };
        Ok(Response::new(answer.into()))
    }
}
