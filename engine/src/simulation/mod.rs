//! Engines in virtual time, driven by hand.
//!
//! A [`Node`] is an engine without its surroundings: the same registry, plan, transfers, sessions,
//! owner's side, frames and lanes, but no thread, no clock and no network. Whoever drives it says
//! what time it is ([`set_time`]), lets its lanes go on ([`Node::run_lanes`]), calls it when a timer
//! is due ([`Node::next_timeout`]), and carries out its [`Errand`]s: what would take its time on a
//! network. Lanes are socket pairs of which the driver holds the other ends, so that it decides which
//! byte arrives when.
//!
//! `errand` is what a node wants done that takes its time, `planted` which guards can be taken away.
//! All of it happens on the thread that calls. With the same calls the same things happen.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use kvferry_engine::simulation::{Errand, Node, NodeSettings, set_time};
//! use kvferry_engine::{Incarnation, Registry};
//!
//! let start = Instant::now();
//! set_time(Some(start));
//! let node = Node::start(Incarnation(7), Registry::new(), NodeSettings::default())?;
//! let peer = node.peer("decode-0:7001")?;
//! node.connect(&peer);
//! let Some(Errand::Handshake(handshake)) = node.take_errands().pop() else { panic!() };
//! assert_eq!(handshake.endpoint().to_string(), "decode-0:7001");
//! set_time(Some(start + Duration::from_secs(3)));
//! handshake.failed("nobody is there");
//! assert!(node.is_connecting() == false);
//! set_time(None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod errand;
mod planted;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use kvferry_proto::Incarnation;
use kvferry_proto::frame::{Hello, Welcome};
use kvferry_transport::lanes::Reactor;
use parking_lot::Mutex;
use prost::Message;

use crate::control::{accept, offer};
use crate::core::{Core, Settings};
use crate::engine::EngineStatus;
use crate::error::Error;
use crate::inbox::Notification;
use crate::lanes::Bond;
use crate::net::IntoEndpoint;
use crate::peer::{Peer, PeerInner};
use crate::plan::PlanLimits;
use crate::registry::{Cursor, Grant, Registry};
use crate::transports::{Transport, Transports};
use crate::{session, time};

pub use errand::{Errand, Followed, Handshake, Opening};
pub(crate) use planted::is_planted;
pub use planted::{Bug, plant};

use errand::Errands;

/// What the time is on this thread from now on, for everything that nodes do on it. `None`: the
/// system's.
pub fn set_time(now: Option<Instant>) {
    time::simulated::set(now);
}

/// How a node behaves. What is not here is as in an engine by default.
#[derive(Clone, Copy, Debug)]
pub struct NodeSettings {
    /// How its sessions behave.
    pub session: session::Settings,
    /// How its transfers are cut.
    pub plan: PlanLimits,
    /// How many notifications may wait for the program.
    pub notifications: usize,
    /// How many lanes one peer may open.
    pub max_lanes_per_peer: usize,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            session: session::Settings::default(),
            plan: PlanLimits::default(),
            notifications: 65_536,
            max_lanes_per_peer: 64,
        }
    }
}

/// An engine without its surroundings. See the [module](self).
pub struct Node {
    core: Arc<Core>,
    reactor: Arc<Reactor>,
    errands: Arc<Errands>,
    /// What was under way with when it was shut down.
    draining: Mutex<Vec<Arc<PeerInner>>>,
}

/// How much of a node's table a follower has been told.
#[derive(Default)]
pub struct Follower(Cursor);

impl Node {
    /// An engine of this incarnation, for regions of `registry`.
    ///
    /// # Errors
    /// What the system says when it gives no descriptor.
    pub fn start(
        incarnation: Incarnation,
        registry: Registry,
        settings: NodeSettings,
    ) -> io::Result<Self> {
        let reactor = Arc::new(Reactor::without_thread()?);
        let errands = Arc::new(Errands::default());
        let settings = Settings {
            session: settings.session,
            local_bulk_lanes: settings.session.bulk_lanes,
            rdma_bulk_lanes: settings.session.bulk_lanes,
            plan: settings.plan,
            spin: Duration::ZERO,
            connect_timeout: Duration::ZERO,
            max_lanes_per_peer: settings.max_lanes_per_peer,
            notifications: settings.notifications,
            transports: Transports::Only(Transport::Tcp),
            lane_address: None,
        };
        let outreach = Box::new(errands.clone());
        let reactors = vec![reactor.clone()];
        let no_host = Err("a simulation has no host".into());
        let no_rdma = Err("a simulation has no adapters".into());
        let core = Core::new(incarnation, registry, settings, outreach, no_host, no_rdma, reactors);
        let core = Arc::new(core);
        Ok(Self { core, reactor, errands, draining: Mutex::default() })
    }

    /// Its incarnation.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.core.incarnation
    }

    /// The registry whose regions it serves.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.core.registry
    }

    /// The peer at an address, known or new.
    ///
    /// # Errors
    /// [`Error::Address`], or [`Error::Shutdown`].
    pub fn peer(&self, address: impl IntoEndpoint) -> Result<Peer, Error> {
        Ok(Peer(self.core.peer(address.into_endpoint()?)?))
    }

    /// Wants a peer reachable. What comes of it is seen in [`Peer::incarnation`].
    pub fn connect(&self, peer: &Peer) {
        peer.0.want();
    }

    /// Whether anybody waits for a peer to be connected.
    #[must_use]
    pub fn is_connecting(&self) -> bool {
        self.core.peers.lock().values().any(|peer| peer.is_awaited())
    }

    /// What it wants done that takes its time, oldest first.
    #[must_use]
    pub fn take_errands(&self) -> Vec<Errand> {
        self.errands.take()
    }

    /// Lets its lanes receive and send until there is nothing left that they can do now.
    ///
    /// # Errors
    /// What epoll says.
    pub fn run_lanes(&self) -> io::Result<()> {
        while self.reactor.round()? {}
        Ok(())
    }

    /// When [`Node::on_timeout`] wants to be called.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let peers = self.core.peers.lock();
        let draining = self.draining.lock();
        peers.values().chain(&*draining).filter_map(|peer| peer.next_timeout()).min()
    }

    /// Time has passed.
    pub fn on_timeout(&self) {
        let now = time::now();
        let due = |peer: &&Arc<PeerInner>| peer.next_timeout().is_some_and(|at| at <= now);
        let peers: Vec<_> = {
            let peers = self.core.peers.lock();
            let draining = self.draining.lock();
            peers.values().chain(&*draining).filter(due).cloned().collect()
        };
        for peer in peers {
            peer.event(|session, now| session.on_timeout(now));
        }
    }

    /// What an engine does every second: reaps the lanes of silent initiators, forgets peers that
    /// nobody uses.
    pub fn sweep(&self) {
        self.core.initiators.sweep();
        self.core.forget_unused_peers();
    }

    /// What it answers to the hello of a handshake.
    #[must_use]
    pub fn hello_reply(&self) -> Vec<u8> {
        offer::hello_reply(&self.core, 1).encode_to_vec()
    }

    /// What a follower is to be told next of its table; `None` when that one knows everything.
    #[must_use]
    pub fn next_update(&self, follower: &mut Follower) -> Option<Vec<u8>> {
        let update =
            self.core.registry.table().next_update(&self.core.registry, &mut follower.0)?;
        Some(kvferry_proto::rpc::TableUpdate::from(&update).encode_to_vec())
    }

    /// Answers the hello of a lane whose other end is `stream`, and takes the lane up if it was
    /// admitted. `None` where the bytes are no hello.
    pub fn accept(
        &self,
        hello: &[u8; Hello::BYTES],
        stream: OwnedFd,
    ) -> Option<[u8; Welcome::BYTES]> {
        let hello = Hello::decode(hello).ok()?;
        let admitted = accept::admit(&self.core, &hello, Transport::Tcp);
        let welcome = admitted.welcome(&self.core).encode();
        if let Err(error) = admitted.take_up(&self.core, &hello, Ok(stream), Bond::Nothing) {
            tracing::debug!(%error, "no lane");
        }
        Some(welcome)
    }

    /// As [`crate::Engine::ticket`].
    #[must_use]
    pub fn ticket(&self, grant: &Grant) -> Vec<u8> {
        grant.ticket(self.core.incarnation).encode()
    }

    /// The next notification, if one waits.
    #[must_use]
    pub fn try_notification(&self) -> Option<Notification> {
        self.core.inbox.pop()
    }

    /// The notifications that wait for the program, which stay where they are.
    #[must_use]
    pub fn waiting_notifications(&self) -> Vec<Notification> {
        self.core.inbox.waiting()
    }

    /// What is held now.
    #[must_use]
    pub fn status(&self) -> EngineStatus {
        self.core.status()
    }

    /// Begins a shutdown: nothing new is accepted, and what is under way ends, fenced where peers
    /// answer.
    pub fn drain(&self) {
        self.draining.lock().extend(self.core.drain());
    }

    /// Whether nothing is under way any more.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.draining.lock().iter().all(|peer| peer.is_drained())
    }

    /// Ends a shutdown: everything ends now, whatever peers do, and every lane is closed.
    #[must_use]
    pub fn close(self) -> Remains {
        for peer in self.draining.lock().drain(..) {
            peer.close();
        }
        self.core.stop_reactors();
        Remains(Arc::downgrade(&self.core))
    }
}

/// What may be left of a node that was closed.
#[derive(Debug)]
pub struct Remains(Weak<Core>);

impl Remains {
    /// Whether nothing holds the engine's inside any more: no lane, no handler, no peer.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("incarnation", &self.incarnation())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Follower")
    }
}
