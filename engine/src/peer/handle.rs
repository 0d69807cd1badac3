//! What a program holds of a remote engine.

use std::fmt;
use std::sync::Arc;

use kvferry_proto::Incarnation;

use super::PeerInner;
use crate::error::Error;
use crate::metrics::{Carriers, Direction};
use crate::net::Endpoint;
use crate::remote::{RemoteLayout, RemoteRegion};
use crate::request::{LocalSpans, RemoteSpans, Request};
use crate::transfer::Op;
use crate::transports::Transport;

/// A remote engine. Clones are handles to the same peer.
///
/// The handle outlives the peer's process: the next use after a restart finds the new incarnation by
/// itself. A transfer of what was looked up before fails then, and layouts have to be looked up again.
#[derive(Clone)]
pub struct Peer(pub(crate) Arc<PeerInner>);

impl Peer {
    /// The address that it was connected by.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    /// Its incarnation, while it is reachable.
    #[must_use]
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.0.session.lock().incarnation()
    }

    /// Connects if it is not connected, and returns when everything that the peer shared by then
    /// is known here.
    ///
    /// # Errors
    /// [`Error::Unreachable`] and others that say which step failed.
    pub async fn ready(&self) -> Result<(), Error> {
        self.0.ready().await
    }

    /// A layout that the peer published.
    ///
    /// # Errors
    /// [`Error::NoSuchLayout`], or [`Error::Unreachable`] when the peer was never connected.
    pub fn layout(&self, name: &str) -> Result<RemoteLayout, Error> {
        let table = self.0.table.read();
        self.0.incarnation_of(&table)?;
        table
            .layout(name)
            .ok_or_else(|| Error::NoSuchLayout { name: name.into(), peer: self.endpoint().clone() })
    }

    /// The names of all layouts that the peer published, sorted.
    #[must_use]
    pub fn layout_names(&self) -> Vec<String> {
        self.0.table.read().layout_names()
    }

    /// All regions that the peer shares, by address.
    #[must_use]
    pub fn regions(&self) -> Vec<RemoteRegion> {
        self.0.table.read().regions()
    }

    /// The region that covers an address range of the peer's process.
    ///
    /// # Errors
    /// [`Error::NotShared`], or [`Error::Unreachable`] when the peer was never connected.
    pub fn find(&self, address: u64, length: u64) -> Result<RemoteRegion, Error> {
        let table = self.0.table.read();
        self.0.incarnation_of(&table)?;
        table
            .find(address, length)
            .and_then(|region| table.remote_region(region))
            .ok_or_else(|| Error::NotShared { address, length, peer: self.endpoint().clone() })
    }

    /// Pushes: writes local spans to remote ones, pair by pair.
    pub fn write(&self, local: impl Into<LocalSpans>, remote: impl Into<RemoteSpans>) -> Request {
        Request::new(self.0.clone(), Op::Write, local.into(), remote.into())
    }

    /// Pulls: reads remote spans into local ones, pair by pair.
    pub fn read(&self, remote: impl Into<RemoteSpans>, local: impl Into<LocalSpans>) -> Request {
        Request::new(self.0.clone(), Op::Read, local.into(), remote.into())
    }

    /// Sends a notification that belongs to no data.
    pub fn notify(&self, notification: impl AsRef<[u8]>) -> Request {
        self.write(LocalSpans::default(), RemoteSpans::default()).notify(notification)
    }

    /// Why transfers to it are not carried by [`Transport::Local`], where that is allowed and
    /// another transport does.
    #[must_use]
    pub fn not_local(&self) -> Option<Arc<str>> {
        self.0.offer().and_then(|offer| offer.why.not_local)
    }

    /// Why transfers to it are not carried by [`Transport::Rdma`], where that is allowed and
    /// [`Transport::Tcp`] does: since the last handshake, or since RDMA has failed.
    #[must_use]
    pub fn not_rdma(&self) -> Option<Arc<str>> {
        let failure = self.0.session.lock().not_best();
        failure.or_else(|| self.0.offer().and_then(|offer| offer.why.not_rdma))
    }

    /// Why transfers to it go by [`Transport::Tcp`], where something better is allowed.
    #[must_use]
    pub fn fallback(&self) -> Option<Arc<str>> {
        let transport = self.0.transport(self.0.session.lock().means());
        if transport != Some(Transport::Tcp) {
            return None;
        }
        match (self.not_local(), self.not_rdma()) {
            (Some(not_local), Some(not_rdma)) => {
                Some(format!("not local: {not_local}; not by RDMA: {not_rdma}").into())
            }
            (not_local, not_rdma) => not_local.or(not_rdma),
        }
    }

    /// Why foreign memory is not read where it lies, where transfers to it are carried by
    /// [`Transport::Local`]: it goes through the socket then, as files do, and is copied twice.
    #[must_use]
    pub fn not_in_place(&self) -> Option<Arc<str>> {
        self.0.offer().and_then(|offer| offer.not_in_place)
    }

    /// Counts a transfer with it that could not begin, as one that failed. What begins is counted by the
    /// engine itself ([`crate::Engine::metrics`]); whoever tries again knows when it was the last time.
    pub fn count_unbegun(&self, direction: Direction) {
        self.0.core.counts.ended(direction, Carriers::default(), None);
    }

    /// What is under way with it.
    #[must_use]
    pub fn status(&self) -> PeerStatus {
        let session = self.0.session.lock();
        PeerStatus {
            incarnation: session.incarnation(),
            transport: session.incarnation().and_then(|_| self.0.transport(session.means())),
            open_transfers: session.open_transfers(),
            open_lanes: session.open_lanes(),
            bulk_threads: self.0.core.threads_of(self.0.number, session.bulk_lanes_up()),
            stale_answers: session.stale_answers(),
        }
    }
}

/// What is under way with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Who it is, while it is reachable.
    pub incarnation: Option<Incarnation>,
    /// What carries transfers to it, while it is reachable.
    pub transport: Option<Transport>,
    /// Transfers that have not ended.
    pub open_transfers: usize,
    /// Lanes to it.
    pub open_lanes: usize,
    /// Threads that those for large transfers are on: so many carry one at once, or copy it.
    pub bulk_threads: usize,
    /// Answers that matched nothing under way: late, repeated, or made up.
    pub stale_answers: u64,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("endpoint", &self.0.endpoint)
            .field("status", &self.status())
            .finish()
    }
}
