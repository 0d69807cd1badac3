//! The store: a process's part in the pool.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kvferry_engine::{Engine, IntoEndpoint, Span};
use kvferry_proto::pool::{
    BATCH, Exists, Key, Locate, Matching, Outcome, Presence, Remove, RemoveMatching,
    RemoveMatchingAnswer, SegmentId, SegmentStatus, Tenant,
};
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

use crate::builder::StoreBuilder;
use crate::decide::put::Stored;
use crate::drive::lend::{self, SegmentState};
use crate::drive::shared::Shared;
use crate::drive::threads::Driver;
use crate::drive::{get, put};
use crate::error::Error;
use crate::object::{Get, GetOptions, Put, PutOptions, Removed};

/// How long the master may take to be told that a store is dropped.
const LEAVE: Duration = Duration::from_millis(500);

/// A process's part in the pool: it puts and gets objects, and lends memory for those of everybody.
///
/// It runs on two threads of its own, so its futures can be awaited on any runtime, and
/// [`Store::block_on`] waits for one on a plain thread. Clones are handles to the same store; when
/// the last is dropped it leaves the pool, at once. [`Store::close`] takes the time that others
/// need.
///
/// A call that is dropped before its end is given up: what a put has reserved is given back, and
/// what a get reads may still be written to until its transfers have ended, a moment later.
#[derive(Clone)]
pub struct Store {
    running: Arc<Running>,
    tenant: Tenant,
}

struct Running {
    shared: Arc<Shared>,
    calls: Driver,
    signs: Driver,
}

impl Store {
    /// A builder of a store of the pool whose master is at `master` (`HOST:PORT`), for memory of
    /// `engine`'s registry.
    #[must_use]
    pub fn builder(engine: Arc<Engine>, master: impl IntoEndpoint) -> StoreBuilder {
        StoreBuilder::new(engine, master)
    }

    pub(crate) fn new(shared: Arc<Shared>, tenant: Tenant, calls: Driver, signs: Driver) -> Self {
        Self { running: Arc::new(Running { shared, calls, signs }), tenant }
    }

    /// Starts what runs for as long as the store does.
    pub(crate) fn keep_joined<Session, Beats>(
        &self,
        session: impl FnOnce(Arc<Shared>) -> Session,
        beats: impl FnOnce(Arc<Shared>) -> Beats,
    ) where
        Session: Future<Output = ()> + Send + 'static,
        Beats: Future<Output = ()> + Send + 'static,
    {
        let Running { shared, calls, signs } = &*self.running;
        calls.handle.spawn(session(shared.clone()));
        signs.handle.spawn(beats(shared.clone()));
    }

    /// Ready when the master counts this client in.
    pub(crate) fn joined(&self) -> impl Future<Output = ()> + Send + use<> {
        let shared = self.running.shared.clone();
        async move {
            loop {
                let joined = shared.joined.notified();
                if shared.membership.lock().joined(Instant::now()).is_some() {
                    return;
                }
                joined.await;
            }
        }
    }

    pub(crate) async fn run<Output: Send + 'static>(
        &self,
        future: impl Future<Output = Output> + Send + 'static,
    ) -> Result<Output, Error> {
        self.shared().check_open()?;
        if !self.running.calls.is_own_process() {
            // A forked child has none of the threads.
            return Err(Error::Closed);
        }
        self.running.calls.run(future).await
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.running.shared
    }

    /// Waits for a future of this store on a plain thread: not to be called within a runtime, which
    /// would panic.
    pub fn block_on<Output>(&self, future: impl Future<Output = Output>) -> Output {
        self.running.calls.handle.block_on(future)
    }

    /// The engine whose memory it moves.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.shared().engine
    }

    /// What this host is called.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.shared().reader.host
    }

    /// The same store, as another tenant uses it.
    #[must_use]
    pub fn for_tenant(&self, tenant: Tenant) -> Self {
        Self { running: self.running.clone(), tenant }
    }

    /// How it stands with the master.
    #[must_use]
    pub fn status(&self) -> StoreStatus {
        let shared = self.shared();
        let joined = shared.membership.lock().joined(Instant::now());
        let inventory = shared.inventory.lock();
        let segments = shared.segments();
        let used = segments.iter().map(|segment| inventory.used(segment.id));
        let (objects, used_bytes) =
            used.fold((0, 0), |sum, (objects, bytes)| (sum.0 + objects, sum.1 + bytes));
        StoreStatus {
            is_joined: joined.is_some(),
            is_recovering: joined.is_some_and(|joined| joined.is_recovering),
            lent_bytes: segments.iter().map(|segment| segment.length).sum(),
            objects,
            used_bytes,
        }
    }

    // --- lending ---

    /// Lends `bytes` of memory to the pool, as a segment of this name, which [`PutOptions::preferred`]
    /// names. It is allocated here, registered, and mounted once it is populated; all of that
    /// happens in the background, and also again when a new master has to be told. It stays lent
    /// until it is unmounted or the store ends, also without the handle.
    ///
    /// # Errors
    /// [`Error::NoRoom`] where the host or a control group has not so much left. Others may take
    /// memory while it is populated: then [`Lent::state`] tells.
    pub fn lend(&self, bytes: u64, name: impl Into<String>) -> Result<Lent, Error> {
        let (id, state) = lend::lend(self.shared(), bytes, name.into())?;
        Ok(Lent { store: self.clone(), id, state })
    }

    /// The segments of the pool: everybody's.
    ///
    /// # Errors
    /// [`Error::Master`] and [`Error::Foreign`].
    pub async fn segments(&self) -> Result<Vec<SegmentStatus>, Error> {
        let shared = self.shared().clone();
        self.run(async move { shared.master.segments().await }).await?
    }

    // --- objects ---

    /// Puts the bytes of these spans, one behind the other, under a key. An object that is there, or
    /// that somebody else is writing, is left as it is, and that is no error.
    ///
    /// # Errors
    /// [`Error::is_backpressure`] says that the pool is full, after a short wait.
    pub async fn put(&self, key: Key, spans: impl Into<Vec<Span>>) -> Result<Stored, Error> {
        let puts = vec![Put::new(key, spans)];
        one(self.put_all(puts, &PutOptions::default()).await)
    }

    /// Puts a batch. Each ends by itself, in this order: a key that fails fails alone. A batch waits
    /// for room once, for less than 200 ms.
    pub async fn put_all(
        &self,
        puts: Vec<Put>,
        options: &PutOptions,
    ) -> Vec<Result<Stored, Error>> {
        let mut results = Vec::with_capacity(puts.len());
        if let Err(error) = options.check() {
            return each(Err(error), puts.len());
        }
        for puts in chunks(puts) {
            let count = puts.len();
            let (shared, tenant) = (self.shared().clone(), self.tenant.clone());
            let put = put::put(shared, tenant, puts, options.clone());
            results.extend(each(self.run(put).await, count));
        }
        results
    }

    /// Gets an object into these spans, one behind the other, and says how many bytes it has. The
    /// bytes are those that were put, or there is an error, and then what is in the spans is
    /// undefined. The nearest replica is read; one that fails is no error where another does not.
    ///
    /// # Errors
    /// [`Outcome::NotFound`] in [`Error::Outcome`] where there is none, [`Error::TooSmall`] where the
    /// spans are.
    pub async fn get(&self, key: Key, spans: impl Into<Vec<Span>>) -> Result<u64, Error> {
        let gets = vec![Get::new(key, spans)];
        one(self.get_all(gets, GetOptions::default()).await)
    }

    /// Gets a batch. Each ends by itself, in this order; a key may come twice.
    pub async fn get_all(&self, gets: Vec<Get>, options: GetOptions) -> Vec<Result<u64, Error>> {
        let mut results = Vec::with_capacity(gets.len());
        for gets in chunks(gets) {
            let count = gets.len();
            let (shared, tenant) = (self.shared().clone(), self.tenant.clone());
            let get = get::get(shared, tenant, gets, options);
            results.extend(each(self.run(get).await, count));
        }
        results
    }

    /// Whether there is such an object. What is found is kept for a while, so that it can be got.
    ///
    /// # Errors
    /// As of [`Store::exist`].
    pub async fn exists(&self, key: Key) -> Result<bool, Error> {
        one(self.exist(vec![key]).await)
    }

    /// Which of these objects are there. What is found is kept for a while, so that it can be got; to
    /// ask again does not keep it longer.
    pub async fn exist(&self, keys: Vec<Key>) -> Vec<Result<bool, Error>> {
        let mut results = Vec::with_capacity(keys.len());
        for keys in chunks(keys) {
            let count = keys.len();
            let exists = Exists { tenant: self.tenant.clone(), keys, lease: true };
            let shared = self.shared().clone();
            let answer = self.run(async move { shared.master.exists(exists).await }).await;
            let found = answer.and_then(|answer| answer).map(|answer| {
                let found = answer.found.into_iter().map(|presence| match presence {
                    Presence::There => Ok(true),
                    Presence::Absent => Ok(false),
                    Presence::Recovering => Err(Error::Outcome(Outcome::Recovering)),
                });
                found.collect()
            });
            results.extend(each(found, count));
        }
        results
    }

    /// How long an object is, in bytes.
    ///
    /// # Errors
    /// As of [`Store::get`].
    pub async fn size(&self, key: Key) -> Result<u64, Error> {
        let locate = Locate { tenant: self.tenant.clone(), keys: vec![key] };
        let shared = self.shared().clone();
        let answer = self.run(async move { shared.master.locate(locate).await }).await??;
        let located = answer.objects.into_iter().map(|object| match object {
            Ok(located) => Ok(located.length),
            Err(outcome) => Err(Error::Outcome(outcome)),
        });
        one(located.collect())
    }

    /// Removes objects by name. Without `force` those stay that somebody is reading, or that are
    /// pinned.
    pub async fn remove(&self, keys: Vec<Key>, force: bool) -> Vec<Result<Removed, Error>> {
        let mut results = Vec::with_capacity(keys.len());
        for keys in chunks(keys) {
            let count = keys.len();
            let remove = Remove { tenant: self.tenant.clone(), keys, force };
            let shared = self.shared().clone();
            let answer = self.run(async move { shared.master.remove(remove).await }).await;
            let removed = answer.and_then(|answer| answer).map(|answer| {
                let removed = Removed { is_recorded: answer.is_recorded };
                let outcomes = answer.outcomes.into_iter().map(|outcome| match outcome {
                    Outcome::Ok => Ok(removed),
                    outcome => Err(Error::Outcome(outcome)),
                });
                outcomes.collect()
            });
            results.extend(each(removed, count));
        }
        results
    }

    /// Removes all objects of this tenant that match: by prefix, by regular expression, or all.
    /// Without `force` those stay that somebody is reading, or that are pinned.
    ///
    /// # Errors
    /// [`Error::Master`] where it cannot be reached, or refuses the expression; and then it is not
    /// known what was removed.
    pub async fn remove_matching(
        &self,
        matching: Matching,
        force: bool,
    ) -> Result<RemoveMatchingAnswer, Error> {
        let remove = RemoveMatching { tenant: self.tenant.clone(), matching, force };
        let shared = self.shared().clone();
        self.run(async move { shared.master.remove_matching(remove).await }).await?
    }

    // --- ending ---

    /// Leaves the pool: nothing new is placed in what this process lends, what reads it may go on
    /// for `grace`, and then nobody touches it any more. Nothing can be put or got after it. Other
    /// handles are of no use then. Returns what was left of leases on what it lent: zero where all
    /// readers were done.
    ///
    /// # Errors
    /// [`Error::Master`] where the master was not told of all of it: it finds out when its lease for
    /// this client is over.
    pub async fn close(self, grace: Duration) -> Result<Duration, Error> {
        let shared = self.shared().clone();
        let left = self.run(async move { leave(&shared, grace).await }).await;
        let running = &self.running;
        running.signs.stop();
        running.calls.stop();
        left?
    }
}

/// Unmounts all segments at the same time, and leaves.
async fn leave(shared: &Arc<Shared>, grace: Duration) -> Result<Duration, Error> {
    let closing = shared.clone();
    let closed = spawn_blocking(move || shut(&closing)).await;
    closed.map_err(|error| Error::system("waiting for threads", error))?;
    let mut unmounting = JoinSet::new();
    for segment in shared.segments() {
        let (shared, id) = (shared.clone(), segment.id);
        unmounting.spawn(async move { lend::unmount(&shared, id, grace).await });
    }
    let mut result = Ok(Duration::ZERO);
    while let Some(unmounted) = unmounting.join_next().await {
        match unmounted {
            Ok(Ok(leased)) => result = result.map(|longest: Duration| longest.max(leased)),
            Ok(Err(error)) => result = Err(error),
            Err(error) => result = Err(Error::system("unmounting a segment", error)),
        }
    }
    shared.has_left.store(true, Ordering::Release);
    shared.master.leave(shared.engine.incarnation().0, LEAVE).await?;
    result
}

/// Has populating threads end, and lets nothing new begin.
fn shut(shared: &Shared) {
    {
        let _segments = shared.segments.lock();
        shared.is_closed.store(true, Ordering::Release);
    }
    let threads = std::mem::take(&mut *shared.populating.lock());
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("a thread that populates memory had panicked");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.calls.is_own_process() {
            return;
        }
        shut(&self.shared);
        if !self.shared.has_left.swap(true, Ordering::AcqRel) {
            let shared = self.shared.clone();
            let (done, over) = std::sync::mpsc::channel();
            self.calls.handle.spawn(async move {
                let client = shared.engine.incarnation().0;
                let _ = timeout(LEAVE, shared.master.leave(client, LEAVE)).await;
                let _ = done.send(());
            });
            // It is bounded: if the master does not answer, it finds out by itself.
            let _ = over.recv_timeout(LEAVE * 2);
        }
        self.signs.stop();
        self.calls.stop();
        self.shared.segments.lock().clear();
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("master", self.shared().master.endpoint())
            .field("tenant", &self.tenant)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

/// What a store holds, and how it stands with the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreStatus {
    /// The master counts this client in.
    pub is_joined: bool,
    /// The master is still being told what there is.
    pub is_recovering: bool,
    /// How much memory is lent, in bytes.
    pub lent_bytes: u64,
    /// How many copies of objects are in it.
    pub objects: usize,
    /// How many bytes they have.
    pub used_bytes: u64,
}

/// Memory that is lent. It is a handle to its store, too.
#[derive(Clone, Debug)]
pub struct Lent {
    store: Store,
    id: SegmentId,
    state: watch::Receiver<SegmentState>,
}

impl Lent {
    /// The segment.
    #[must_use]
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// How it stands.
    #[must_use]
    pub fn state(&self) -> SegmentState {
        self.state.borrow().clone()
    }

    /// How it stands once that has changed since this, or [`Lent::mounted`], was called last.
    pub async fn changed(&mut self) -> SegmentState {
        // An error means that it changes no more.
        let _ = self.state.changed().await;
        self.state.borrow_and_update().clone()
    }

    /// Waits until it is in the pool.
    ///
    /// # Errors
    /// What keeps it from it. It may be tried again all the same.
    pub async fn mounted(&mut self) -> Result<(), Error> {
        loop {
            match self.state.borrow_and_update().clone() {
                SegmentState::Mounted => return Ok(()),
                SegmentState::NotMounted(error) => return Err(error),
                SegmentState::Unmounted => return Err(Error::TakenBack),
                SegmentState::Populating(_) | SegmentState::Mounting => {}
            }
            if self.state.changed().await.is_err() {
                return Err(Error::Closed);
            }
        }
    }

    /// Takes it back: nothing new is placed in it, what reads it may go on for `grace`, and when
    /// this is done nobody touches its memory any more. Returns what was left of leases on its
    /// objects then: zero where all readers were done.
    ///
    /// # Errors
    /// [`Error::Master`] where the master could not be told; it is taken back all the same.
    pub async fn unmount(self, grace: Duration) -> Result<Duration, Error> {
        let (shared, id) = (self.store.shared().clone(), self.id);
        self.store.run(async move { lend::unmount(&shared, id, grace).await }).await?
    }
}

/// Parts of a list that fit a message.
fn chunks<T>(mut list: Vec<T>) -> Vec<Vec<T>> {
    let mut chunks = Vec::with_capacity(list.len() / BATCH + 1);
    while list.len() > BATCH {
        let rest = list.split_off(BATCH);
        chunks.push(std::mem::replace(&mut list, rest));
    }
    chunks.push(list);
    chunks.retain(|chunk| !chunk.is_empty());
    chunks
}

/// The results of each of so many; where all failed together, the same for each.
fn each<T>(results: Result<Vec<Result<T, Error>>, Error>, count: usize) -> Vec<Result<T, Error>> {
    results.unwrap_or_else(|error| (0..count).map(|_| Err(error.clone())).collect())
}

/// The result of the only one.
fn one<T>(results: Vec<Result<T, Error>>) -> Result<T, Error> {
    results.into_iter().next().unwrap_or(Err(Error::Closed))
}
