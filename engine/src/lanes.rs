//! Open lanes by number.

use std::collections::BTreeMap;
use std::io;

use kvferry_proto::LaneId;
use kvferry_transport::lanes::Lane;
use parking_lot::Mutex;

/// Lanes that are open. A lane is added under the lock that removes it, so one that closes at once
/// is removed after it was added.
#[derive(Default)]
pub(crate) struct Lanes(Mutex<BTreeMap<LaneId, Lane>>);

impl Lanes {
    pub(crate) fn get(&self, id: LaneId) -> Option<Lane> {
        self.0.lock().get(&id).cloned()
    }

    /// All of them, copied: what is done with one may open and remove others.
    pub(crate) fn all(&self) -> Vec<Lane> {
        self.0.lock().values().cloned().collect()
    }

    /// Adds what `open` returns.
    pub(crate) fn add(
        &self,
        id: LaneId,
        open: impl FnOnce() -> io::Result<Lane>,
    ) -> io::Result<()> {
        let mut lanes = self.0.lock();
        let lane = open()?;
        lanes.insert(id, lane);
        Ok(())
    }

    pub(crate) fn remove(&self, id: LaneId) {
        self.0.lock().remove(&id);
    }
}
