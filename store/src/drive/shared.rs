//! What all parts of a store know.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use kvferry_engine::Engine;
use kvferry_proto::pool::SegmentId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::lend::Segment;
use super::master::Master;
use super::owners::Owners;
use crate::decide::choice::Reader;
use crate::decide::inventory::Inventory;
use crate::decide::membership::Membership;
use crate::error::Error;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    pub(crate) master: Master,
    pub(crate) owners: Owners,
    pub(crate) reader: Reader,
    pub(crate) membership: Mutex<Membership>,
    /// The master is to be joined again.
    pub(crate) join_again: Notify,
    /// The client has joined, or has not any more.
    pub(crate) joined: Notify,
    /// A segment is to be mounted.
    pub(crate) mount: Notify,
    pub(crate) segments: Mutex<HashMap<SegmentId, Arc<Segment>>>,
    pub(crate) inventory: Mutex<Inventory>,
    /// Threads that populate memory.
    pub(crate) populating: Mutex<Vec<JoinHandle<()>>>,
    /// Nothing more can be asked of it.
    pub(crate) is_closed: AtomicBool,
    /// The master is told, or was: it is not to be joined any more.
    pub(crate) has_left: AtomicBool,
}

impl Shared {
    /// # Errors
    /// [`Error::Closed`].
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.is_closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// The segments that are lent, in no order.
    pub(crate) fn segments(&self) -> Vec<Arc<Segment>> {
        self.segments.lock().values().cloned().collect()
    }
}
