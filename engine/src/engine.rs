//! The engine: a process's end of everything.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvferry_proto::{Access, Incarnation};
use kvferry_transport::rdma::verbs::Counts;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::builder::EngineBuilder;
use crate::core::Core;
use crate::error::Error;
use crate::inbox::Notification;
use crate::metrics::{Carriers, Direction, Sample};
use crate::net::{Endpoint, IntoEndpoint};
use crate::peer::Peer;
use crate::registry::{Grant, Registry, Span};
use crate::time;
use crate::transports::Transport;

/// How often initiators are looked at.
const SWEEP: Duration = Duration::from_secs(1);

/// How long a shutdown waits for transfers to be fenced, unless its caller says otherwise.
const DRAIN: Duration = Duration::from_millis(500);

/// A process's end of everything: it serves peers the memory that was granted to them, and moves
/// blocks to and from theirs. See [`EngineBuilder`] for its settings.
///
/// It runs its control path on a thread of its own, so it depends on no runtime of the caller's,
/// and its futures can be awaited on any. Dropping it shuts it down.
pub struct Engine {
    core: Arc<Core>,
    addresses: Addresses,
    tasks: Tasks,
    stop: watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Where an engine is reached.
pub(crate) struct Addresses {
    pub(crate) control: Endpoint,
    pub(crate) lane_port: u16,
    pub(crate) bootstrap: Option<Endpoint>,
}

impl Engine {
    /// A builder with default settings, for regions of `registry`.
    #[must_use]
    pub fn builder(registry: Registry) -> EngineBuilder {
        EngineBuilder::new(registry)
    }

    pub(crate) fn new(
        core: Arc<Core>,
        runtime: &Handle,
        addresses: Addresses,
        stop: watch::Sender<bool>,
        thread: JoinHandle<()>,
    ) -> Self {
        runtime.spawn(sweep(core.clone()));
        let tasks = Tasks(runtime.clone());
        Self { core, addresses, tasks, stop, thread: Mutex::new(Some(thread)) }
    }

    /// Leaves the control thread to end by itself.
    pub(crate) fn detach_thread(&self) {
        self.core.shut();
        self.core.stop_reactors();
        drop(self.thread.lock().take());
    }

    /// The random number that tells this engine from any before it at the same address.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.core.incarnation
    }

    /// The address to give to peers, with the port that was got.
    #[must_use]
    pub fn address(&self) -> &Endpoint {
        &self.addresses.control
    }

    /// The port on which lanes are accepted.
    #[must_use]
    pub fn lane_port(&self) -> u16 {
        self.addresses.lane_port
    }

    /// The address of the bootstrap server beside it, with the port that was got, where there is
    /// one ([`EngineBuilder::bootstrap`]).
    #[must_use]
    pub fn bootstrap_address(&self) -> Option<&Endpoint> {
        self.addresses.bootstrap.as_ref()
    }

    /// The registry whose regions it serves.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.core.registry
    }

    /// Connects to the engine at an address, and returns when everything that it shared by then is
    /// known here. The same address gives the same peer.
    ///
    /// # Errors
    /// [`Error::Address`], [`Error::Unreachable`] and others that say which step failed.
    pub async fn connect(&self, address: impl IntoEndpoint) -> Result<Peer, Error> {
        let endpoint = address.into_endpoint()?;
        let peer = Peer(self.core.peer(endpoint)?);
        peer.ready().await?;
        Ok(peer)
    }

    /// The engine at an address, without connecting to it: it is known once [`Peer::ready`] has
    /// returned, or a transfer to it was submitted that way before. The same address gives the same
    /// peer.
    ///
    /// # Errors
    /// [`Error::Address`], or [`Error::Shutdown`].
    pub fn peer(&self, address: impl IntoEndpoint) -> Result<Peer, Error> {
        Ok(Peer(self.core.peer(address.into_endpoint()?)?))
    }

    /// Where a program can have something of its own done, beside the engine.
    #[must_use]
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Grants the engine `peer` `access` to `spans` of this process for `ttl`.
    ///
    /// # Errors
    /// As [`Registry::grant`].
    pub fn grant(
        &self,
        spans: impl IntoIterator<Item = Span>,
        peer: Incarnation,
        access: Access,
        ttl: Duration,
    ) -> Result<Grant, Error> {
        self.core.registry.grant(spans, peer, access, ttl)
    }

    /// The bytes that tell a peer's program of a grant: [`crate::RemoteGrant::from_ticket`] reads
    /// them.
    #[must_use]
    pub fn ticket(&self, grant: &Grant) -> Vec<u8> {
        grant.ticket(self.core.incarnation).encode()
    }

    /// The next notification from any peer.
    pub async fn next_notification(&self) -> Notification {
        self.core.inbox.next().await
    }

    /// The next notification, if one waits.
    #[must_use]
    pub fn try_notification(&self) -> Option<Notification> {
        self.core.inbox.pop()
    }

    /// Blocks this thread until a notification arrives, or for `patience`.
    #[must_use]
    pub fn wait_notification(&self, patience: Duration) -> Option<Notification> {
        self.core.inbox.wait(patience)
    }

    /// What is held now.
    #[must_use]
    pub fn status(&self) -> EngineStatus {
        self.core.status()
    }

    /// What it has counted since its start, and what it holds now: every series that there can be, at
    /// zero too. Transfers are counted by the end that asks for them; those that could not begin are
    /// not, see [`Peer::count_unbegun`].
    #[must_use]
    pub fn metrics(&self) -> Vec<Sample> {
        self.core.counts.now(&self.status())
    }

    /// Counts a transfer that a program knows of, and the engine sees as something else: whoever is
    /// written to is told by its peer, and not by the engine, what one write is. `done` says how many
    /// bytes it had, unless it failed.
    pub fn count(&self, direction: Direction, transport: Option<Transport>, done: Option<u64>) {
        let carriers = transport.map(Carriers::of).unwrap_or_default();
        self.core.counts.ended(direction, carriers, done);
    }

    /// The peers that are reached by TCP, though something better is allowed, and why.
    #[must_use]
    pub fn fallbacks(&self) -> Vec<(Endpoint, Arc<str>)> {
        let peers: Vec<_> = self.core.peers.lock().values().cloned().map(Peer).collect();
        let why = |peer: &Peer| Some((peer.endpoint().clone(), peer.fallback()?));
        peers.iter().filter_map(why).collect()
    }

    /// Ends everything: transfers fail with [`Error::Shutdown`], fenced where the peers answer
    /// within `patience`; lanes, sockets and threads are given back. Blocks for at most `patience`
    /// and about a second.
    pub fn shutdown(&self, patience: Duration) {
        let Some(thread) = self.thread.lock().take() else { return };
        if !self.core.is_own_process() {
            // A forked child has none of the threads, and its parent goes on using the sockets.
            std::mem::forget(thread);
            return;
        }
        let peers = self.core.drain();
        let deadline = time::after(Instant::now(), patience);
        while Instant::now() < deadline && !peers.iter().all(|peer| peer.is_drained()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        for peer in &peers {
            peer.close();
        }
        self.core.stop_reactors();
        self.stop.send_replace(true);
        if thread.join().is_err() {
            tracing::error!("the control thread had panicked");
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown(DRAIN);
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("incarnation", &self.incarnation())
            .field("address", &self.addresses.control)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

/// A way to the thread of an engine's control path, for tasks that wait and do not compute: what they
/// do there holds up handshakes. A task ends with the engine, wherever it is then.
#[derive(Clone, Debug)]
pub struct Tasks(Handle);

impl Tasks {
    /// Starts a task. After the engine's end it is dropped at once.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(task);
    }
}

/// What an engine holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineStatus {
    /// Engines that were connected to.
    pub peers: usize,
    /// Transfers that have not ended.
    pub open_transfers: usize,
    /// Lanes to peers.
    pub lanes_opened: usize,
    /// Lanes that peers opened.
    pub lanes_accepted: usize,
    /// Requests of peers that were refused since the start: of unknown, late, cancelled or repeated
    /// ids, under no sufficient grant, or for want of room.
    pub refused_requests: u64,
    /// What its RDMA adapters were asked to do since they were opened, by all engines of the registry: zeros
    /// without any, and after shutdown.
    pub rdma: Counts,
}

impl Core {
    pub(crate) fn status(&self) -> EngineStatus {
        let peers: Vec<_> = self.peers.lock().values().cloned().map(Peer).collect();
        EngineStatus {
            peers: peers.len(),
            open_transfers: peers.iter().map(|peer| peer.status().open_transfers).sum(),
            lanes_opened: peers.iter().map(|peer| peer.status().open_lanes).sum(),
            lanes_accepted: self.initiators.lane_count(),
            refused_requests: self.initiators.refused(),
            rdma: self.adapters().map(|adapters| adapters.counts()).unwrap_or_default(),
        }
    }
}

async fn sweep(core: Arc<Core>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        core.initiators.sweep();
        core.forget_unused_peers();
    }
}
