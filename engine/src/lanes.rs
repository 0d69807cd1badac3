//! Open lanes by number.

use std::collections::BTreeMap;
use std::io;

use kvferry_proto::LaneId;
use kvferry_transport::lanes::Lane;
use parking_lot::Mutex;

use crate::loan::Lending;
use crate::transports::Transport;

/// Lanes that are open. A lane is added under the lock that removes it, so one that closes at once
/// is removed after it was added.
#[derive(Default)]
pub(crate) struct Lanes(Mutex<BTreeMap<LaneId, Open>>);

/// A lane, and what is lent on it, where it is one between processes of one host.
#[derive(Clone)]
pub(crate) struct Open {
    pub(crate) lane: Lane,
    pub(crate) lending: Option<Lending>,
}

impl Open {
    pub(crate) fn transport(&self) -> Transport {
        if self.lending.is_some() { Transport::Local } else { Transport::Tcp }
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

    /// Adds what `open` returns.
    pub(crate) fn add(
        &self,
        id: LaneId,
        lending: Option<Lending>,
        open: impl FnOnce() -> io::Result<Lane>,
    ) -> io::Result<()> {
        let mut lanes = self.0.lock();
        let lane = open()?;
        lanes.insert(id, Open { lane, lending });
        Ok(())
    }

    pub(crate) fn remove(&self, id: LaneId) {
        self.0.lock().remove(&id);
    }
}
