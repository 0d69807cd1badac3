//! Threads that look at lanes by themselves, because they wait for an answer and would rather look than
//! sleep.

use super::beside::Beside;
use super::lane::Lane;
use super::receive::Received;

/// How much a waiting thread receives before it lets the reactor go on.
const LOOK_BYTES: usize = 64 << 10;

/// How often rings are looked at before somebody else has the processor: for a few microseconds, in which
/// an answer comes that comes soon.
pub(super) const LOOKS: usize = 256;

/// Looks at lanes on this thread until something `is_over`.
pub fn look_until(lanes: &[Lane], is_over: &dyn Fn() -> bool) {
    let watched: Vec<Watching<'_>> = lanes.iter().filter_map(Watching::new).collect();
    // To look at a socket is a system call, and takes about as long.
    let looks = if watched.len() == lanes.len() { LOOKS / lanes.len().max(1) } else { 1 };
    loop {
        for _ in 0..looks.max(1) {
            if is_over() {
                return;
            }
            for lane in lanes {
                lane.look();
            }
            std::hint::spin_loop();
        }
        // Whoever has to answer may be on this very processor.
        std::thread::yield_now();
    }
}

impl Lane {
    /// Receives what is there, on this thread, unless the reactor is at it.
    pub fn look(&self) {
        let Some(mut receiver) = self.0.receiver.try_lock() else { return };
        let Some(open) = receiver.as_mut().filter(|open| open.is_worth_a_look()) else { return };
        let received = open.receive_some(self, LOOK_BYTES);
        drop(receiver);
        match received {
            Received::Idle { in_frame } => self.rest(!in_frame),
            // Whatever else there is to do about it is the reactor's, which no event may tell.
            _ => self.kick(),
        }
    }

    fn kick(&self) {
        self.0.reactor.kick(self.0.token);
    }

    /// Whether frames have come through a ring that the reactor is to read.
    pub(super) fn is_due(&self) -> bool {
        self.0.ring.as_ref().is_some_and(Beside::is_due) && !self.is_paused()
    }
}

/// A lane with a ring that a thread looks at: for as long as it does, the other end wakes nobody.
struct Watching<'a> {
    lane: &'a Lane,
    beside: &'a Beside,
}

impl<'a> Watching<'a> {
    fn new(lane: &'a Lane) -> Option<Self> {
        let beside = lane.0.ring.as_ref()?;
        beside.ring().watch();
        Some(Self { lane, beside })
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        if self.beside.ring().unwatch() {
            self.lane.kick();
        }
    }
}
