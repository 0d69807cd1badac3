//! A client and owner that does what it should, and no bytes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kv_master::server::{Listen, Master};
use kv_master::state::{LeaseTimes, Settings};
use kvferry_proto::pool::{
    Beat, BeatAnswer, Changes, Ended, Exists, ExistsAnswer, Follow, Held, Join, JoinAnswer, Key,
    Lent, Locate, LocateAnswer, MountPart, Outcome, Presence, Put, PutEnd, PutEndAnswer, PutStart,
    PutStartAnswer, SegmentId, Tenant, Version, What,
};
use kvferry_proto::rpc::pool as rpc;
use kvferry_proto::rpc::pool::heartbeats_client::HeartbeatsClient;
use kvferry_proto::rpc::pool::pool_client::PoolClient;
use kvferry_proto::{Incarnation, RegionId};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::Channel;

/// Anything that is promised to happen happens within this.
pub(crate) const SOON: Duration = Duration::from_secs(10);

pub(crate) fn settings() -> Settings {
    let ms = Duration::from_millis;
    Settings {
        recovery: Duration::ZERO,
        clients: LeaseTimes {
            suspect: ms(500),
            expire: ms(1000),
            forget: ms(60_000),
            look_every: ms(25),
        },
        ..Settings::default()
    }
}

pub(crate) fn listen() -> Listen {
    let any = || ("127.0.0.1".to_owned(), 0);
    Listen { clients: any(), heartbeat_port: 0, metrics: any(), metadata: Some(any()) }
}

/// Starts a master, which blocks, from a test that must not.
pub(crate) async fn start(settings: Settings, listen: Listen) -> Master {
    let started = tokio::task::spawn_blocking(move || Master::start(settings, &listen, 2));
    started.await.unwrap().unwrap()
}

/// Ends a master, which blocks.
pub(crate) async fn stop(master: Master) {
    tokio::task::spawn_blocking(move || drop(master)).await.unwrap();
}

/// A connection to a service.
pub(crate) async fn connect(at: SocketAddr) -> Channel {
    Channel::from_shared(format!("http://{at}")).unwrap().connect().await.unwrap()
}

pub(crate) fn key(text: &str) -> Key {
    Key::try_from(text).unwrap()
}

/// What an owner has.
pub(crate) type Inventory = Arc<Mutex<BTreeMap<Version, Held>>>;

pub(crate) struct Client {
    pub(crate) incarnation: Incarnation,
    pub(crate) segment: SegmentId,
    pub(crate) joined: JoinAnswer,
    pub(crate) inventory: Inventory,
    pub(crate) pool: PoolClient<Channel>,
    beats: HeartbeatsClient<Channel>,
    following: Vec<tokio::task::JoinHandle<()>>,
}

impl Drop for Client {
    fn drop(&mut self) {
        for task in &self.following {
            task.abort();
        }
    }
}

impl Client {
    pub(crate) async fn join(master: &Master, number: u64) -> Self {
        Self::join_with(master, number, 0).await.unwrap()
    }

    pub(crate) async fn join_with(
        master: &Master,
        number: u64,
        epoch: u32,
    ) -> Result<Self, Status> {
        let at = master.addresses();
        let mut pool = PoolClient::new(connect(at.clients).await);
        let incarnation = Incarnation(number);
        let join = Join { client: incarnation, host: "test".to_owned(), epoch };
        let joined = pool.join(rpc::JoinRequest::from(&join)).await?.into_inner();
        let joined = JoinAnswer::try_from(joined).unwrap();
        assert_eq!(joined.heartbeat_port, at.heartbeats.port());
        let beats = HeartbeatsClient::new(connect(at.heartbeats).await);
        Ok(Self {
            incarnation,
            segment: SegmentId(number),
            joined,
            inventory: Inventory::default(),
            pool,
            beats,
            following: Vec::new(),
        })
    }

    pub(crate) fn lent(&self, length: u64) -> Lent {
        Lent {
            segment: self.segment,
            name: format!("segment-{}", self.segment.0),
            address: "127.0.0.1:1".to_owned(),
            region: RegionId { slot: 0, generation: 1 },
            offset: 0,
            length,
        }
    }

    pub(crate) async fn mount(&mut self, length: u64) -> Result<rpc::MountReply, Status> {
        let held: Vec<Held> = self.inventory.lock().values().cloned().collect();
        let lent = self.lent(length);
        let first =
            MountPart::First { client: self.incarnation, lent, is_fenced: true, held: Vec::new() };
        let parts = std::iter::once(first)
            .chain(held.into_iter().map(|held| MountPart::More(vec![held])))
            .map(Into::into)
            .collect::<Vec<rpc::MountPart>>();
        Ok(self.pool.mount(tokio_stream::iter(parts)).await?.into_inner())
    }

    /// Keeps the inventory as the master says, from now on.
    pub(crate) async fn follow(&mut self) {
        let (say, said) = mpsc::channel(16);
        let client = self.incarnation;
        say.send(Follow { client, applied: 0 }.into()).await.unwrap();
        let told = self.pool.follow(ReceiverStream::new(said)).await.unwrap();
        let mut told = told.into_inner();
        let inventory = self.inventory.clone();
        self.following.push(tokio::spawn(async move {
            while let Ok(Some(changes)) = told.message().await {
                let Changes { number, changes } = changes.try_into().unwrap();
                for change in changes {
                    match change.what {
                        What::Keep(held) => {
                            inventory.lock().insert(held.version, held);
                        }
                        What::Drop(version) => {
                            inventory.lock().remove(&version);
                        }
                    }
                }
                if say.send(Follow { client, applied: number }.into()).await.is_err() {
                    return;
                }
            }
        }));
    }

    /// Gives signs of life from now on.
    pub(crate) fn live(&mut self) {
        let (mut beats, beat) = (self.beats.clone(), self.beat_now());
        let every = self.joined.beat_every;
        self.following.push(tokio::spawn(async move {
            while beats.beat(rpc::BeatRequest::from(beat)).await.is_ok() {
                tokio::time::sleep(every).await;
            }
        }));
    }

    fn beat_now(&self) -> Beat {
        Beat { client: self.incarnation, master: self.joined.master }
    }

    pub(crate) async fn beat(&mut self) -> BeatAnswer {
        let beat = rpc::BeatRequest::from(self.beat_now());
        self.beats.beat(beat).await.unwrap().into_inner().try_into().unwrap()
    }

    /// Lends, follows and lives.
    pub(crate) async fn lend(master: &Master, number: u64, length: u64) -> Self {
        let mut client = Self::join(master, number).await;
        client.mount(length).await.unwrap();
        client.follow().await;
        client.live();
        client
    }

    pub(crate) fn put(&self, names: &[&str], length: u64) -> PutStart {
        let put = |name: &&str| Put { key: key(name), length, group: None };
        PutStart {
            client: self.incarnation,
            tenant: Tenant::default(),
            puts: names.iter().map(put).collect(),
            replicas: 1,
            preferred: Vec::new(),
            is_pinned: false,
            soft_pin: Duration::ZERO,
            at_once: false,
        }
    }

    pub(crate) async fn start(&mut self, start: PutStart) -> PutStartAnswer {
        let lengths: Vec<u64> = start.puts.iter().map(|put| put.length).collect();
        let reply = self.pool.put_start(rpc::PutStartRequest::from(start)).await.unwrap();
        PutStartAnswer::from_wire(reply.into_inner(), &lengths).unwrap()
    }

    pub(crate) async fn end(&mut self, names: &[&str], answer: &PutStartAnswer) -> PutEndAnswer {
        let reserved = answer.reserved.iter().map(|reserved| reserved.as_ref().unwrap().version);
        let ended = |(name, version): (&&str, Version)| Ended {
            key: key(name),
            version,
            checksum: Some(7),
            lost: Vec::new(),
        };
        let puts: Vec<Ended> = names.iter().zip(reserved).map(ended).collect();
        let count = puts.len();
        let end = PutEnd { client: self.incarnation, tenant: Tenant::default(), puts };
        let reply = self.pool.put_end(rpc::PutEndRequest::from(end)).await.unwrap();
        PutEndAnswer::from_wire(&reply.into_inner(), count).unwrap()
    }

    /// Puts whole objects.
    pub(crate) async fn put_whole(&mut self, names: &[&str], length: u64) -> PutStartAnswer {
        let answer = self.start(self.put(names, length)).await;
        let ended = self.end(names, &answer).await;
        assert_eq!(ended.outcomes, vec![Outcome::Ok; names.len()]);
        assert!(ended.is_recorded);
        answer
    }

    pub(crate) async fn locate(&mut self, names: &[&str]) -> LocateAnswer {
        let keys = names.iter().map(|name| key(name)).collect();
        let locate = Locate { tenant: Tenant::default(), keys };
        let reply = self.pool.locate(rpc::LocateRequest::from(locate)).await.unwrap();
        LocateAnswer::from_wire(reply.into_inner(), names.len()).unwrap()
    }

    pub(crate) async fn exists(&mut self, names: &[&str]) -> Vec<Presence> {
        let keys = names.iter().map(|name| key(name)).collect();
        let exists = Exists { tenant: Tenant::default(), keys, lease: false };
        let reply = self.pool.exists(rpc::ExistsRequest::from(exists)).await.unwrap();
        ExistsAnswer::from_wire(&reply.into_inner(), names.len()).unwrap().found
    }

    /// Waits until a key is there, or is not.
    pub(crate) async fn wait_for(&mut self, name: &str, presence: Presence) {
        let deadline = Instant::now() + SOON;
        while self.exists(&[name]).await != [presence] {
            assert!(Instant::now() < deadline, "{name} never was {presence:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
