//! What a transfer is asked, and what it answers.

use std::time::Instant;

use crate::error::{Error, Remote};

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// From here to the peer: push.
    Write,
    /// From the peer to here: pull.
    Read,
}

/// What a transfer asks for.
#[derive(Debug)]
pub struct Spec {
    /// Which way.
    pub op: Op,
    /// The payload bytes of each slice.
    pub slice_bytes: Vec<u32>,
    /// Whether the peer is told something once the data is in place.
    pub notifies: bool,
    /// Whether slices of it may name their bytes instead of carrying them: then its notification goes
    /// on its own, once they are acknowledged and may change.
    pub by_reference: bool,
    /// When it began.
    pub begun: Instant,
    /// When it ends at the latest.
    pub deadline: Instant,
}

/// How a transfer ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Everything that was asked for is true.
    Done,
    /// It is not, and this is known of the peer's memory.
    Failed(Error, Remote),
}

/// What has to be done after an event.
#[derive(Debug)]
#[must_use]
pub enum Step {
    /// Nothing.
    Nothing,
    /// Slices are to be posted (again).
    Post,
    /// The notification is to be sent, on any lane.
    Notify,
    /// The target is to be told to fence, on any lane; nothing more of this is posted.
    Fence,
    /// The source is to be told that a slice has landed, on the lane it came on.
    SayLanded(u32),
    /// It is over.
    End(Outcome),
    /// The event matches nothing that is under way: a late or repeated one.
    Stale,
}
