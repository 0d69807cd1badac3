//! A master that does as it is told: it places objects one behind the other, never evicts, and
//! answers wrongly or not at all where a test wants it to.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kvferry_proto::Incarnation;
use kvferry_proto::pool::{
    Beat, BeatAnswer, Change, Exists, ExistsAnswer, Follow, Held, Join, JoinAnswer, Key, Lent,
    Locate, LocateAnswer, Located, Matching, MountPart, Outcome, Placed, Presence, PutEnd,
    PutEndAnswer, PutRevoke, PutStart, PutStartAnswer, Remove, RemoveAnswer, RemoveMatching,
    RemoveMatchingAnswer, Replica, Reserved, SegmentId, SegmentState, SegmentStatus, Tenant,
    Unmount, Version, What,
};
use kvferry_proto::rpc::pool as rpc;
use kvferry_proto::rpc::pool::heartbeats_server::{Heartbeats, HeartbeatsServer};
use kvferry_proto::rpc::pool::pool_server::{Pool, PoolServer};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

type Answer<T> = Result<Response<T>, Status>;

/// How it behaves.
#[derive(Debug)]
pub(crate) struct Conduct {
    /// How long clients may be silent.
    pub(crate) client_lease: Duration,
    /// How long bytes stay that are read.
    pub(crate) read_lease: Duration,
    /// How long room is reserved.
    pub(crate) reservation: Duration,
    /// What becomes of the next puts that are started, before any is taken.
    pub(crate) refusals: VecDeque<Outcome>,
    /// What becomes of the next puts that are ended.
    pub(crate) ends: VecDeque<Outcome>,
    /// What becomes of the next objects that are looked for.
    pub(crate) losses: VecDeque<Outcome>,
    /// It says of puts that are ended what it likes, and nothing to owners.
    pub(crate) is_silent: bool,
}

impl Default for Conduct {
    fn default() -> Self {
        Self {
            client_lease: Duration::from_secs(10),
            read_lease: Duration::from_secs(10),
            reservation: Duration::from_secs(10),
            refusals: VecDeque::new(),
            ends: VecDeque::new(),
            losses: VecDeque::new(),
            is_silent: false,
        }
    }
}

struct Object {
    version: Version,
    length: u64,
    checksum: Option<u32>,
    places: Vec<(SegmentId, u64)>,
    is_there: bool,
}

struct Mounted {
    placed: Placed,
    next: u64,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) conduct: Conduct,
    clients: HashMap<Incarnation, String>,
    segments: Vec<Mounted>,
    objects: HashMap<(Tenant, Key), Object>,
    followers: HashMap<Incarnation, mpsc::Sender<Result<rpc::Changes, Status>>>,
    changes: HashMap<Incarnation, u64>,
    /// How far owners have said that they have come.
    pub(crate) applied: HashMap<Incarnation, u64>,
    /// What was given back, and whether nothing of it could arrive any more.
    pub(crate) revoked: Vec<(Key, bool)>,
    versions: u64,
    pub(crate) epochs_told: Vec<u32>,
}

/// A master that runs until it is dropped, on a thread of its own.
pub(crate) struct Master {
    pub(crate) address: SocketAddr,
    pub(crate) state: Arc<Mutex<State>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Master {
    pub(crate) async fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), 1, Conduct::default()).await
    }

    /// Starts one at an address, with nothing known.
    pub(crate) async fn start_at(address: SocketAddr, incarnation: u64, conduct: Conduct) -> Self {
        let state = Arc::new(Mutex::new(State { conduct, ..State::default() }));
        let (stop, stopped) = oneshot::channel();
        let (bound, port) = oneshot::channel();
        let serving = serve(address, Incarnation(incarnation), state.clone(), bound);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            // With the runtime all connections end.
            runtime.unwrap().block_on(async {
                tokio::select! {
                    () = serving => {}
                    _ = stopped => {}
                }
            });
        });
        let address = port.await.unwrap();
        Self { address, state, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn conduct(&self, change: impl FnOnce(&mut Conduct)) {
        change(&mut self.state.lock().conduct);
    }

    /// Ends it at once, as a kill does: nobody is told.
    pub(crate) fn kill(self) -> SocketAddr {
        self.address
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A panic in it was shown, and has failed whoever asked it something.
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

async fn serve(
    address: SocketAddr,
    incarnation: Incarnation,
    state: Arc<Mutex<State>>,
    bound: oneshot::Sender<SocketAddr>,
) {
    let listener = bind(address).await;
    let address = listener.local_addr().unwrap();
    bound.send(address).unwrap();
    let service = Service { incarnation, port: address.port(), state };
    tonic::transport::Server::builder()
        .add_service(PoolServer::new(service.clone()))
        .add_service(HeartbeatsServer::new(service))
        .serve_with_incoming(TcpListenerStream::new(listener))
        .await
        .unwrap();
}

async fn bind(address: SocketAddr) -> TcpListener {
    // What held the address is being closed.
    for _ in 0..500 {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
    panic!("{address} cannot be bound");
}

#[derive(Clone)]
struct Service {
    incarnation: Incarnation,
    port: u16,
    state: Arc<Mutex<State>>,
}

fn bad(error: impl std::fmt::Display) -> Status {
    Status::invalid_argument(error.to_string())
}

impl State {
    /// Forgets all clients and what they have, as if their leases were over.
    pub(crate) fn forget_all(&mut self) {
        self.clients.clear();
        self.segments.clear();
        self.objects.clear();
        self.followers.clear();
        self.changes.clear();
    }

    pub(crate) fn has_object(&self, key: &Key) -> bool {
        let object = self.objects.get(&(Tenant::default(), key.clone()));
        object.is_some_and(|object| object.is_there)
    }

    /// Whether room is reserved that nobody has written.
    pub(crate) fn is_reserved(&self, key: &Key) -> bool {
        let object = self.objects.get(&(Tenant::default(), key.clone()));
        object.is_some_and(|object| !object.is_there)
    }

    fn placed(&self, id: SegmentId) -> Option<&Placed> {
        let mounted = self.segments.iter().find(|one| one.placed.lent.segment == id)?;
        Some(&mounted.placed)
    }

    fn replicas(&self, places: &[(SegmentId, u64)]) -> Vec<Replica> {
        let index =
            |id: &SegmentId| self.segments.iter().position(|one| one.placed.lent.segment == *id);
        places
            .iter()
            .filter_map(|(id, offset)| Some(Replica { segment: index(id)?, offset: *offset }))
            .collect()
    }

    fn all_placed(&self) -> Vec<Placed> {
        self.segments.iter().map(|one| one.placed.clone()).collect()
    }

    fn reserve(
        &mut self,
        length: u64,
        replicas: usize,
        preferred: &[String],
    ) -> Vec<(SegmentId, u64)> {
        let mut places = Vec::new();
        self.segments.sort_by_key(|one| {
            let name = &one.placed.lent.name;
            (!preferred.contains(name), one.next)
        });
        for one in &mut self.segments {
            if places.len() < replicas && one.next + length <= one.placed.lent.length {
                places.push((one.placed.lent.segment, one.next));
                one.next += length;
            }
        }
        places
    }

    fn tell(&mut self, segment: SegmentId, what: What) {
        let Some(owner) = self.placed(segment).map(|placed| placed.owner) else { return };
        let number = self.changes.entry(owner).or_default();
        *number += 1;
        let changes = kvferry_proto::pool::Changes {
            number: *number,
            changes: vec![Change { segment, what }],
        };
        if let Some(follower) = self.followers.get(&owner) {
            let _ = follower.try_send(Ok(changes.into()));
        }
    }

    fn drop_object(&mut self, tenant: &Tenant, key: &Key) -> bool {
        let Some(object) = self.objects.remove(&(tenant.clone(), key.clone())) else {
            return false;
        };
        for (segment, _) in object.places {
            self.tell(segment, What::Drop(object.version));
        }
        true
    }
}

#[tonic::async_trait]
impl Pool for Service {
    async fn join(&self, request: Request<rpc::JoinRequest>) -> Answer<rpc::JoinReply> {
        let join = Join::try_from(request.into_inner()).map_err(bad)?;
        let mut state = self.state.lock();
        state.clients.insert(join.client, join.host);
        state.epochs_told.push(join.epoch);
        let answer = JoinAnswer {
            master: self.incarnation,
            epoch: join.epoch + 1,
            lease: state.conduct.client_lease,
            beat_every: state.conduct.client_lease / 10,
            heartbeat_port: self.port,
            is_recovering: false,
        };
        Ok(Response::new((&answer).into()))
    }

    async fn leave(&self, request: Request<rpc::LeaveRequest>) -> Answer<rpc::LeaveReply> {
        let client = Incarnation(request.into_inner().client);
        let mut state = self.state.lock();
        state.clients.remove(&client);
        state.segments.retain(|one| one.placed.owner != client);
        state.followers.remove(&client);
        Ok(Response::new(rpc::LeaveReply {}))
    }

    async fn mount(&self, request: Request<Streaming<rpc::MountPart>>) -> Answer<rpc::MountReply> {
        let mut parts = request.into_inner();
        let mut found: Option<(Incarnation, Lent)> = None;
        let mut all: Vec<Held> = Vec::new();
        while let Some(part) = parts.message().await? {
            match MountPart::try_from(part).map_err(bad)? {
                MountPart::First { client, lent, held, .. } => {
                    found = Some((client, lent));
                    all.extend(held);
                }
                MountPart::More(held) => all.extend(held),
            }
        }
        let (owner, lent) = found.ok_or_else(|| bad("no segment"))?;
        let mut state = self.state.lock();
        let host = state.clients.get(&owner).cloned().ok_or_else(|| bad("not joined"))?;
        let segment = lent.segment;
        state.segments.retain(|one| one.placed.lent.segment != segment);
        let next = all.iter().map(|held| held.offset + held.length).max().unwrap_or(0);
        state.segments.push(Mounted { placed: Placed { owner, lent, host }, next });
        let adopted = all.len() as u64;
        for held in all {
            state.versions = state.versions.max(held.version.0);
            let object = state.objects.entry((held.tenant, held.key)).or_insert(Object {
                version: held.version,
                length: held.length,
                checksum: held.checksum,
                places: Vec::new(),
                is_there: true,
            });
            object.places.retain(|(other, _)| *other != segment);
            object.places.push((segment, held.offset));
        }
        Ok(Response::new(rpc::MountReply { adopted, refused: 0 }))
    }

    async fn unmount(&self, request: Request<rpc::UnmountRequest>) -> Answer<rpc::UnmountReply> {
        let unmount = Unmount::try_from(request.into_inner()).map_err(bad)?;
        let mut state = self.state.lock();
        state.segments.retain(|one| one.placed.lent.segment != unmount.segment);
        Ok(Response::new(rpc::UnmountReply { leased_ms: 0 }))
    }

    type FollowStream = Pin<Box<dyn Stream<Item = Result<rpc::Changes, Status>> + Send>>;

    async fn follow(
        &self,
        request: Request<Streaming<rpc::FollowRequest>>,
    ) -> Answer<Self::FollowStream> {
        let mut said = request.into_inner();
        let first = said.message().await?.ok_or_else(|| bad("nothing was said"))?;
        let first = Follow::try_from(first).map_err(bad)?;
        let (sender, receiver) = mpsc::channel(1024);
        self.state.lock().followers.insert(first.client, sender);
        let state = self.state.clone();
        tokio::spawn(async move {
            while let Ok(Some(follow)) = said.message().await {
                state.lock().applied.insert(first.client, follow.applied);
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn exists(&self, request: Request<rpc::ExistsRequest>) -> Answer<rpc::ExistsReply> {
        let exists = Exists::try_from(request.into_inner()).map_err(bad)?;
        let state = self.state.lock();
        let found = exists.keys.into_iter().map(|key| {
            let object = state.objects.get(&(exists.tenant.clone(), key));
            if object.is_some_and(|object| object.is_there) {
                Presence::There
            } else {
                Presence::Absent
            }
        });
        let answer = ExistsAnswer { found: found.collect(), lease: state.conduct.read_lease };
        Ok(Response::new((&answer).into()))
    }

    async fn locate(&self, request: Request<rpc::LocateRequest>) -> Answer<rpc::LocateReply> {
        let locate = Locate::try_from(request.into_inner()).map_err(bad)?;
        let mut state = self.state.lock();
        let mut objects = Vec::new();
        for key in locate.keys {
            if let Some(loss) = state.conduct.losses.pop_front() {
                objects.push(Err(loss));
                continue;
            }
            let object = state.objects.get(&(locate.tenant.clone(), key));
            let object = object.filter(|object| object.is_there).and_then(|object| {
                let replicas = state.replicas(&object.places);
                let Object { length, version, checksum, .. } = *object;
                (!replicas.is_empty()).then_some(Located { length, version, checksum, replicas })
            });
            objects.push(object.ok_or(Outcome::NotFound));
        }
        let lease = state.conduct.read_lease;
        let answer = LocateAnswer { objects, segments: state.all_placed(), lease };
        Ok(Response::new((&answer).into()))
    }

    async fn put_start(
        &self,
        request: Request<rpc::PutStartRequest>,
    ) -> Answer<rpc::PutStartReply> {
        let start = PutStart::try_from(request.into_inner()).map_err(bad)?;
        let mut state = self.state.lock();
        let mut given: Vec<Result<(Version, Vec<(SegmentId, u64)>), Outcome>> = Vec::new();
        for put in start.puts {
            let name = (start.tenant.clone(), put.key);
            if let Some(refusal) = state.conduct.refusals.pop_front() {
                given.push(Err(refusal));
                continue;
            }
            if let Some(object) = state.objects.get(&name) {
                let there = object.is_there;
                given.push(Err(if there { Outcome::Exists } else { Outcome::BeingWritten }));
                continue;
            }
            let places = state.reserve(put.length, start.replicas, &start.preferred);
            if places.is_empty() {
                given.push(Err(Outcome::NoSpace));
                continue;
            }
            state.versions += 1;
            let version = Version(state.versions);
            given.push(Ok((version, places.clone())));
            let (length, checksum, is_there) = (put.length, None, false);
            state.objects.insert(name, Object { version, length, checksum, places, is_there });
        }
        let reserved = given.into_iter().map(|given| {
            given.map(|(version, places)| Reserved { version, replicas: state.replicas(&places) })
        });
        let reserved = reserved.collect();
        let reservation = state.conduct.reservation;
        let answer = PutStartAnswer { reserved, segments: state.all_placed(), reservation };
        Ok(Response::new((&answer).into()))
    }

    async fn put_end(&self, request: Request<rpc::PutEndRequest>) -> Answer<rpc::PutEndReply> {
        let end = PutEnd::try_from(request.into_inner()).map_err(bad)?;
        let mut state = self.state.lock();
        let mut outcomes = Vec::new();
        for ended in end.puts {
            if let Some(outcome) = state.conduct.ends.pop_front() {
                outcomes.push(outcome);
                continue;
            }
            let name = (end.tenant.clone(), ended.key.clone());
            let Some(object) = state.objects.get_mut(&name) else {
                outcomes.push(Outcome::NotReserved);
                continue;
            };
            object.is_there = true;
            object.checksum = ended.checksum;
            object.places.retain(|(segment, _)| !ended.lost.contains(segment));
            let (places, version, length) = (object.places.clone(), object.version, object.length);
            for (segment, offset) in places {
                let held = Held {
                    tenant: end.tenant.clone(),
                    key: ended.key.clone(),
                    version,
                    offset,
                    length,
                    checksum: ended.checksum,
                    is_pinned: false,
                    group: None,
                };
                if !state.conduct.is_silent {
                    state.tell(segment, What::Keep(held));
                }
            }
            outcomes.push(Outcome::Ok);
        }
        let is_recorded = !state.conduct.is_silent;
        Ok(Response::new((&PutEndAnswer { outcomes, is_recorded }).into()))
    }

    async fn put_revoke(
        &self,
        request: Request<rpc::PutRevokeRequest>,
    ) -> Answer<rpc::PutRevokeReply> {
        let revoke = PutRevoke::try_from(request.into_inner()).map_err(bad)?;
        let mut state = self.state.lock();
        let mut outcomes = Vec::new();
        for revoked in revoke.puts {
            state.objects.remove(&(revoke.tenant.clone(), revoked.key.clone()));
            state.revoked.push((revoked.key, revoked.is_fenced));
            outcomes.push(Outcome::Ok);
        }
        Ok(Response::new(PutRevoke::answer(&outcomes)))
    }

    async fn remove(&self, request: Request<rpc::RemoveRequest>) -> Answer<rpc::RemoveReply> {
        let remove = Remove::try_from(request.into_inner()).map_err(bad)?;
        let mut state = self.state.lock();
        let outcomes = remove.keys.iter().map(|key| {
            if state.drop_object(&remove.tenant, key) { Outcome::Ok } else { Outcome::NotFound }
        });
        let answer = RemoveAnswer { outcomes: outcomes.collect(), is_recorded: true };
        Ok(Response::new((&answer).into()))
    }

    async fn remove_matching(
        &self,
        request: Request<rpc::RemoveMatchingRequest>,
    ) -> Answer<rpc::RemoveMatchingReply> {
        let remove = RemoveMatching::try_from(request.into_inner()).map_err(bad)?;
        let mut state = self.state.lock();
        let matches = |key: &Key| match &remove.matching {
            Matching::Prefix(prefix) => key.as_str().starts_with(prefix),
            Matching::Regex(_) => false,
            Matching::All => true,
        };
        let keys =
            state.objects.keys().filter(|(tenant, key)| *tenant == remove.tenant && matches(key));
        let keys: Vec<Key> = keys.map(|(_, key)| key.clone()).collect();
        let removed = keys.iter().filter(|key| state.drop_object(&remove.tenant, key)).count();
        let answer = RemoveMatchingAnswer { removed: removed as u64, kept: 0, is_recorded: true };
        Ok(Response::new(answer.into()))
    }

    async fn segments(&self, _: Request<rpc::SegmentsRequest>) -> Answer<rpc::SegmentsReply> {
        let state = self.state.lock();
        let status = |one: &Mounted| SegmentStatus {
            placed: one.placed.clone(),
            used: one.next,
            state: SegmentState::Alive,
        };
        let segments = state.segments.iter().map(|one| (&status(one)).into()).collect();
        Ok(Response::new(rpc::SegmentsReply { segments }))
    }
}

#[tonic::async_trait]
impl Heartbeats for Service {
    async fn beat(&self, request: Request<rpc::BeatRequest>) -> Answer<rpc::BeatReply> {
        let beat = Beat::try_from(request.into_inner()).map_err(bad)?;
        let state = self.state.lock();
        let known = state.clients.contains_key(&beat.client);
        let answer = BeatAnswer {
            master: self.incarnation,
            lease: known.then_some(state.conduct.client_lease),
            is_recovering: false,
        };
        Ok(Response::new(answer.into()))
    }
}
