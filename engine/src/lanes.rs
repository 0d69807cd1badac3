//! Open lanes by number.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvferry_proto::LaneId;
use kvferry_transport::lanes::{Lane, LaneConfig, LaneHandler, Reactor};
use kvferry_transport::local::Ring;
use kvferry_transport::rdma::fetch::Fetcher;
use parking_lot::Mutex;

use crate::loan::{Lender, Lending, Loans, Reach};
use crate::rdma::{Berth, Link};
use crate::transports::Transport;

/// Lanes that are open. A lane is added under the lock that removes it, so one that closes at once
/// is removed after it was added.
#[derive(Default)]
pub(crate) struct Lanes(Mutex<BTreeMap<LaneId, Open>>);

/// What the two ends of a new lane have beside the connection.
pub(crate) enum Bond {
    Nothing,
    /// What processes of one host found out about each other, and a ring that they share, where they do.
    Host(Reach, Option<Ring>),
    /// A queue pair, and where it has its place.
    Pair(Box<Fetcher>, Berth),
}

/// What the two ends of a lane share beside the connection.
#[derive(Clone, Debug)]
pub(crate) enum Tie {
    Nothing,
    /// Memory that processes of one host lend each other.
    Host(Lending),
    /// A queue pair.
    Pair(Arc<Link>),
}

/// A lane, and what its ends share beside it.
#[derive(Clone)]
pub(crate) struct Open {
    pub(crate) lane: Lane,
    pub(crate) tie: Tie,
}

impl Tie {
    /// What the ends share, and the ring by which they speak, where they do.
    pub(crate) fn new(lender: Lender, bond: Bond) -> (Self, Option<Ring>) {
        match bond {
            Bond::Nothing => (Self::Nothing, None),
            Bond::Host(reach, ring) => (Self::Host(Lending::new(lender, reach)), ring),
            Bond::Pair(fetcher, berth) => (Self::Pair(Link::new(lender, *fetcher, &berth)), None),
        }
    }

    pub(crate) fn transport(&self) -> Transport {
        match self {
            Self::Nothing => Transport::Tcp,
            Self::Host(_) => Transport::Local,
            Self::Pair(_) => Transport::Rdma,
        }
    }

    /// What this end lends, where it does.
    pub(crate) fn loans(&self) -> Option<&Arc<Loans>> {
        match self {
            Self::Nothing => None,
            Self::Host(lending) => Some(&lending.loans),
            Self::Pair(link) => Some(&link.loans),
        }
    }

    /// Whether what is shared does not work any more.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self, Self::Pair(link) if link.has_failed())
    }

    /// The lane is closed: when this returns nothing comes of what was shared any more.
    pub(crate) fn close(&self) {
        match self {
            Self::Nothing => {}
            Self::Host(lending) => lending.close(),
            Self::Pair(link) => link.close(),
        }
    }
}

impl Lanes {
    pub(crate) fn get(&self, id: LaneId) -> Option<Open> {
        self.0.lock().get(&id).cloned()
    }

    /// All of them, copied: what is done with one may open and remove others.
    pub(crate) fn all(&self) -> Vec<Lane> {
        self.0.lock().values().map(|open| open.lane.clone()).collect()
    }

    /// Adds a connection as a lane.
    pub(crate) fn add(
        &self,
        id: LaneId,
        tie: Tie,
        reactor: &Reactor,
        (stream, ring): (OwnedFd, Option<Ring>),
        config: LaneConfig,
        handler: Arc<dyn LaneHandler>,
    ) -> io::Result<()> {
        let mut lanes = self.0.lock();
        if let Tie::Pair(link) = &tie {
            link.attend(reactor)?;
        }
        match reactor.add_with(stream, ring, config, handler) {
            Ok(lane) => {
                if let Tie::Pair(link) = &tie {
                    link.is_of(&lane);
                }
                lanes.insert(id, Open { lane, tie });
                Ok(())
            }
            Err(error) => {
                tie.close();
                Err(error)
            }
        }
    }

    pub(crate) fn remove(&self, id: LaneId) {
        self.0.lock().remove(&id);
    }
}
