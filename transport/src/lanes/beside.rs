//! A ring beside a lane's stream, as the lane's threads look at it.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::socket;
use crate::descriptor;
use crate::local::{Ring, RingShared};

/// Payloads up to this size go through the ring behind their heads, larger ones through the stream: both
/// ends have to agree. From about this size on the owner of the destination copies them, where it can.
pub(super) const RING_PAYLOAD_BYTES: usize = 32 << 10;

/// What a lane keeps of its ring, and of the stream that goes with it.
pub(super) struct Beside {
    ring: Arc<RingShared>,
    /// For descriptors; for as long as the lane is open.
    stream: Weak<OwnedFd>,
    /// Something has come by the stream, its end perhaps, and was not looked at.
    has_come: AtomicBool,
    /// A payload is due, before which no frame is looked at.
    awaits_stream: AtomicBool,
}

impl Beside {
    pub(super) fn new(ring: &Ring, stream: &Arc<OwnedFd>) -> Self {
        let (ring, stream) = (ring.shared.clone(), Arc::downgrade(stream));
        let (has_come, awaits_stream) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { ring, stream, has_come, awaits_stream }
    }

    pub(super) fn ring(&self) -> &RingShared {
        &self.ring
    }

    /// The descriptor that belongs to the frame at hand: it was sent before it, so it is there.
    pub(super) fn take_descriptor(&self) -> Option<OwnedFd> {
        let stream = self.stream.upgrade()?;
        descriptor::receive(stream.as_raw_fd(), &mut [0]).ok()?.1
    }

    /// Nothing more can be dealt with now, until a payload comes by the stream or, else, a frame.
    pub(super) fn await_stream(&self, is_payload_due: bool) {
        self.awaits_stream.store(is_payload_due, Ordering::Relaxed);
    }

    /// Whether frames have come that can be looked at.
    pub(super) fn is_due(&self) -> bool {
        self.ring.has_more() && !self.awaits_stream.load(Ordering::Relaxed)
    }

    /// Something has come by the stream, or it has ended.
    pub(super) fn note(&self) {
        self.has_come.store(true, Ordering::Release);
    }

    /// Whether the other end has closed the stream, whatever lies in it. Costs a system call only after
    /// [`Self::note`].
    pub(super) fn is_over(&self, stream: RawFd) -> bool {
        // Before it is looked at: of what comes later there is another event.
        if !self.has_come.swap(false, Ordering::AcqRel) {
            return false;
        }
        let is_over = socket::is_unhealthy(stream);
        if is_over {
            self.note();
        }
        is_over
    }
}
