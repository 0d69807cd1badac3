//! What all parts of an engine share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kvferry_proto::frame::Prefix;
use kvferry_proto::{Incarnation, LaneId};
use kvferry_transport::lanes::{FramePrefix, LaneConfig, Reactor};
use kvferry_transport::local::RunDirectory;
use parking_lot::Mutex;

use crate::error::Error;
use crate::inbox::Inbox;
use crate::metrics::Counts;
use crate::net::Endpoint;
use crate::outreach::Outreach;
use crate::peer::PeerInner;
use crate::plan::PlanLimits;
use crate::rdma::Adapters;
use crate::registry::Registry;
use crate::serve::Initiators;
use crate::session::{Settings as SessionSettings, slot_of};
use crate::transports::{Transport, Transports};

/// How many frames may wait on a lane before it is not read any more.
const BACKLOG_FRAMES: usize = 64;

/// Settings of an engine, checked.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) session: SessionSettings,
    /// As [`SessionSettings::bulk_lanes`], with peers on this host.
    pub(crate) local_bulk_lanes: usize,
    /// The same with peers that are reached by RDMA.
    pub(crate) rdma_bulk_lanes: usize,
    pub(crate) plan: PlanLimits,
    /// How long a thread looks for more before it sleeps.
    pub(crate) spin: Duration,
    /// How long one attempt at a connection, a hello or a call may take.
    pub(crate) connect_timeout: Duration,
    pub(crate) max_lanes_per_peer: usize,
    pub(crate) notifications: usize,
    /// What may carry transfers.
    pub(crate) transports: Transports,
    /// Where lanes are advertised; none: the host that the caller reached, and the port got.
    pub(crate) lane_address: Option<Endpoint>,
}

impl Settings {
    /// Lanes for large transfers to a peer that this carries them to.
    pub(crate) fn bulk_lanes(&self, transport: Transport) -> usize {
        match transport {
            Transport::Local => self.local_bulk_lanes,
            Transport::Rdma => self.rdma_bulk_lanes,
            Transport::Tcp => self.session.bulk_lanes,
        }
    }
}

pub(crate) struct Core {
    pub(crate) incarnation: Incarnation,
    pub(crate) registry: Registry,
    pub(crate) settings: Settings,
    pub(crate) outreach: Box<dyn Outreach>,
    pub(crate) peers: Mutex<BTreeMap<Endpoint, Arc<PeerInner>>>,
    pub(crate) initiators: Initiators,
    pub(crate) inbox: Inbox,
    pub(crate) counts: Counts,
    /// Where processes of this host meet, or why this one meets none there.
    pub(crate) run_directory: Result<RunDirectory, Arc<str>>,
    /// The RDMA adapters that are used, until shutdown, or why there are none.
    adapters: Mutex<Result<Arc<Adapters>, Arc<str>>>,
    reactors: Mutex<Vec<Arc<Reactor>>>,
    next_session: AtomicU64,
    shut: AtomicBool,
    pid: u32,
}

impl Core {
    pub(crate) fn new(
        incarnation: Incarnation,
        registry: Registry,
        settings: Settings,
        outreach: Box<dyn Outreach>,
        run_directory: Result<RunDirectory, Arc<str>>,
        adapters: Result<Arc<Adapters>, Arc<str>>,
        reactors: Vec<Arc<Reactor>>,
    ) -> Self {
        Self {
            incarnation,
            registry,
            // A ping may be late by its interval.
            initiators: Initiators::new(
                settings.max_lanes_per_peer,
                settings.session.dead_after + settings.session.ping_interval,
            ),
            inbox: Inbox::new(settings.notifications),
            counts: Counts::default(),
            settings,
            outreach,
            run_directory,
            peers: Mutex::default(),
            adapters: Mutex::new(adapters),
            reactors: Mutex::new(reactors),
            next_session: AtomicU64::new(0),
            shut: AtomicBool::new(false),
            pid: std::process::id(),
        }
    }

    /// For lanes that others opened: one who asks without listening is not read any more.
    pub(crate) fn accepted_lane() -> LaneConfig {
        LaneConfig { parse: parse_prefix, backlog_frames: BACKLOG_FRAMES }
    }

    /// For lanes that this engine opened. Answers are always read: what waits to be sent is bounded
    /// by windows, and if both ends stopped reading neither would go on.
    pub(crate) fn opened_lane() -> LaneConfig {
        LaneConfig { parse: parse_prefix, backlog_frames: usize::MAX }
    }

    /// A number for a session: each numbers its own transfers and lanes.
    pub(crate) fn next_session(&self) -> u64 {
        self.next_session.fetch_add(1, Ordering::Relaxed)
    }

    /// The thread for a lane of a session; `None` after shutdown. Each of a session's lanes goes to
    /// another as long as there is one, and so does what takes its place when it is lost: large transfers
    /// are copied, or taken off their connections, by several threads at once.
    pub(crate) fn reactor(&self, session: u64, lane: LaneId) -> Option<Arc<Reactor>> {
        let reactors = self.reactors.lock();
        reactors.get(turn(session, lane, reactors.len())?).cloned()
    }

    /// How many threads these lanes of a session are on.
    pub(crate) fn threads_of(&self, session: u64, lanes: impl Iterator<Item = LaneId>) -> usize {
        let threads = self.reactors.lock().len();
        lanes.filter_map(|lane| turn(session, lane, threads)).collect::<BTreeSet<_>>().len()
    }

    /// The RDMA adapters, or why none are used (any more). They may have failed, and be opened anew.
    pub(crate) fn adapters(&self) -> Result<Arc<Adapters>, Arc<str>> {
        self.adapters.lock().clone()
    }

    /// Every peer, as of now.
    pub(crate) fn all_peers(&self) -> Vec<Arc<PeerInner>> {
        self.peers.lock().values().cloned().collect()
    }

    /// Whether this is the process that the engine was started in, and not a forked child, which
    /// has none of its threads.
    pub(crate) fn is_own_process(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Lets go of peers that nobody has a handle of and nothing is under way with. They are dropped
    /// outside the lock.
    pub(crate) fn forget_unused_peers(&self) {
        let mut unused = Vec::new();
        self.peers.lock().retain(|_, peer| {
            // Handles are only made under this lock.
            let is_unused = Arc::strong_count(peer) == 1 && peer.is_at_rest();
            if is_unused {
                unused.push(peer.clone());
            }
            !is_unused
        });
    }

    /// The peer at an endpoint, known or new.
    pub(crate) fn peer(self: &Arc<Self>, endpoint: Endpoint) -> Result<Arc<PeerInner>, Error> {
        let mut peers = self.peers.lock();
        // Under the lock that shutdown takes to close them.
        if self.is_shut() {
            return Err(Error::Shutdown);
        }
        let peer =
            peers.entry(endpoint.clone()).or_insert_with(|| PeerInner::start(self, endpoint));
        Ok(peer.clone())
    }

    /// Nothing new is accepted from now on, and what is under way with peers ends, fenced where
    /// they answer. Returns them: each has to be closed.
    pub(crate) fn drain(&self) -> Vec<Arc<PeerInner>> {
        let peers: Vec<_> = {
            let mut peers = self.peers.lock();
            self.shut();
            std::mem::take(&mut *peers).into_values().collect()
        };
        for peer in &peers {
            peer.drain();
        }
        peers
    }

    /// Nothing new is accepted from now on.
    pub(crate) fn shut(&self) {
        self.shut.store(true, Ordering::Release);
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Acquire)
    }

    /// Closes every lane, ends the threads that drive them, and gives back what lanes were made with.
    pub(crate) fn stop_reactors(&self) {
        let reactors = std::mem::take(&mut *self.reactors.lock());
        drop(reactors);
        let adapters = std::mem::replace(&mut *self.adapters.lock(), Err("shut down".into()));
        drop(adapters);
    }
}

/// Which of so many threads a lane of a session is on.
fn turn(session: u64, lane: LaneId, threads: usize) -> Option<usize> {
    let turn = session.wrapping_add(slot_of(lane).into());
    usize::try_from(turn.checked_rem(threads as u64)?).ok()
}

fn parse_prefix(bytes: &[u8; FramePrefix::BYTES]) -> Option<FramePrefix> {
    let prefix = Prefix::decode(bytes).ok()?;
    Some(FramePrefix {
        head_bytes: prefix.head_bytes as usize,
        payload_bytes: prefix.payload_bytes as usize,
    })
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("incarnation", &self.incarnation).finish_non_exhaustive()
    }
}
