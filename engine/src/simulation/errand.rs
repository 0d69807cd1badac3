//! What a node wants done that would take its time on a network.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use kvferry_proto::frame::{Hello, Welcome};
use kvferry_proto::{Incarnation, LaneId, rpc};
use parking_lot::Mutex;
use prost::Message;

use crate::control::client::{self, Shaken};
use crate::control::lane;
use crate::control::offer::{Offers, Why};
use crate::error::Error;
use crate::lanes::Bond;
use crate::net::Endpoint;
use crate::outreach::{Connection, Outreach};
use crate::peer::PeerInner;
use crate::remote::RemoteTable;
use crate::session::Means;

/// Something that takes its time.
#[derive(Debug)]
pub enum Errand {
    /// Shake hands with a peer and follow its table.
    Handshake(Handshake),
    /// Open a lane to a peer.
    OpenLane(Opening),
}

#[derive(Default)]
pub(super) struct Errands(Mutex<Vec<Errand>>);

impl Errands {
    pub(super) fn take(&self) -> Vec<Errand> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Whether a control connection is still wanted: its node lets go of it by dropping the other half.
#[derive(Clone, Debug)]
struct Wanted(Arc<AtomicBool>);

struct Wanting(Arc<AtomicBool>);

impl Drop for Wanting {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Outreach for Arc<Errands> {
    fn shake_hands(&self, peer: &Arc<PeerInner>) -> Connection {
        let wanted = Arc::new(AtomicBool::new(true));
        let peer = Arc::downgrade(peer);
        let handshake = Handshake { peer, wanted: Wanted(wanted.clone()) };
        self.0.lock().push(Errand::Handshake(handshake));
        Box::new(Wanting(wanted))
    }

    /// There is one transport in a simulation.
    fn open_lane(&self, peer: &Arc<PeerInner>, lane: LaneId, _means: Means) {
        let opening = Opening { peer: Arc::downgrade(peer), lane };
        self.0.lock().push(Errand::OpenLane(opening));
    }

    /// Whoever drives the node asks it when its timers are due.
    fn keep_time(&self, _peer: &Arc<PeerInner>) {}

    fn catch_up(
        &self,
        peer: &Arc<PeerInner>,
    ) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
        let why = "in a simulation whoever drives the node tells it of its peers' tables";
        let error = Error::unreachable(peer.endpoint(), why);
        Box::pin(std::future::ready(Err(error)))
    }
}

/// A handshake that a node wants, and the control connection that it leads to.
#[derive(Debug)]
pub struct Handshake {
    peer: Weak<PeerInner>,
    wanted: Wanted,
}

impl Handshake {
    /// With whom.
    ///
    /// # Panics
    /// When the node is gone.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.peer.upgrade().expect("the node is there").endpoint().clone()
    }

    /// It was answered, by [`Node::hello_reply`](super::Node::hello_reply), and these are the updates
    /// that tell of the peer's table as it was then. What follows is told through what is returned;
    /// `None` where nobody wants it any more, or the answer was refused.
    #[must_use]
    pub fn answered(self, hello_reply: &[u8], updates: &[Vec<u8>]) -> Option<Followed> {
        let peer = self.wanted()?;
        let shaken = read(peer.endpoint(), hello_reply, updates);
        let incarnation = shaken.as_ref().ok().map(|shaken| shaken.incarnation);
        peer.shaken(shaken);
        Some(Followed { handshake: self, incarnation: incarnation? })
    }

    /// Nobody answered, in time or at all.
    pub fn failed(self, why: &str) {
        if let Some(peer) = self.wanted() {
            let error = Error::unreachable(peer.endpoint(), why);
            peer.shaken(Err(error));
        }
    }

    fn wanted(&self) -> Option<Arc<PeerInner>> {
        let peer = self.peer.upgrade()?;
        self.wanted.0.load(Ordering::Relaxed).then_some(peer)
    }
}

fn read(endpoint: &Endpoint, reply: &[u8], updates: &[Vec<u8>]) -> Result<Shaken, Error> {
    let reply =
        rpc::HelloReply::decode(reply).map_err(|error| Error::unreachable(endpoint, error))?;
    let offers = Offers::read(endpoint, reply)?;
    let incarnation = offers.incarnation;
    let offer = offers.by_tcp(endpoint, Why::default())?;
    let mut table = RemoteTable::of(incarnation);
    for update in updates {
        apply(endpoint, &mut table, update)?;
    }
    Ok(Shaken { incarnation, offer, table })
}

fn apply(endpoint: &Endpoint, table: &mut RemoteTable, update: &[u8]) -> Result<(), Error> {
    let update =
        rpc::TableUpdate::decode(update).map_err(|error| Error::unreachable(endpoint, error))?;
    client::apply(endpoint, table, update)
}

/// A control connection that is up.
#[derive(Debug)]
pub struct Followed {
    handshake: Handshake,
    incarnation: Incarnation,
}

impl Followed {
    /// Who was met.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Whether the node still follows.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.handshake.wanted().is_some()
    }

    /// The peer's table has changed.
    pub fn update(&self, update: &[u8]) {
        let Some(peer) = self.handshake.wanted() else { return };
        let applied = apply(peer.endpoint(), &mut peer.table().write(), update);
        peer.table_changed();
        if applied.is_err() {
            peer.event(|session, now| session.on_control_lost(now));
        }
    }

    /// The connection broke.
    pub fn lost(self) {
        if let Some(peer) = self.handshake.wanted() {
            peer.event(|session, now| session.on_control_lost(now));
        }
    }
}

/// A lane that a node wants.
#[derive(Debug)]
pub struct Opening {
    peer: Weak<PeerInner>,
    lane: LaneId,
}

impl Opening {
    /// To whom.
    ///
    /// # Panics
    /// When the node is gone.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.peer.upgrade().expect("the node is there").endpoint().clone()
    }

    /// What is said first on it; `None` where it is not known any more to whom.
    #[must_use]
    pub fn hello(&self) -> Option<[u8; Hello::BYTES]> {
        let peer = self.peer.upgrade()?;
        lane::hello(&peer, self.lane, Means::Best).ok().map(|(_, hello)| hello.encode())
    }

    /// The answer arrived, on a connection whose end here is `stream`.
    pub fn welcomed(self, welcome: &[u8; Welcome::BYTES], stream: OwnedFd) {
        let Some(peer) = self.peer.upgrade() else { return };
        let opened = lane::hello(&peer, self.lane, Means::Best).and_then(|(offer, _)| {
            lane::take_up(&peer, self.lane, &offer, welcome, stream, Bond::Nothing)
        });
        lane::report(&peer, self.lane, opened);
    }

    /// It could not be opened.
    pub fn failed(self, why: &str) {
        if let Some(peer) = self.peer.upgrade() {
            let error = Error::unreachable(peer.endpoint(), why);
            lane::report(&peer, self.lane, Err(error));
        }
    }
}
