//! Seeing whether an adapter works: a page written and read back, through it and to itself.

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use super::completion::{Completion, CompletionQueue, Outcome, Status};
use super::context::Context;
use super::domain::{LocalSpan, MemoryRegion, ProtectionDomain, Rights};
use super::error::VerbsError;
use super::queue_pair::{Capacity, QueuePair, Route, Unconnected};
use super::work::{Operation, Work};
use crate::memory::Memory;

/// What is written and read back, in bytes.
pub const TRIAL_BYTES: u32 = 4096;

/// How long either way may take: an adapter that sends again six times has given up by then.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a trial failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrialError {
    /// Something could not be set up or posted.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The write or the read ended with an error.
    #[error(
        "the {what} of {TRIAL_BYTES} bytes through {route:?} failed: {status} (vendor code {vendor})"
    )]
    Failed {
        /// Which of them.
        what: &'static str,
        /// Through which port.
        route: Route,
        /// Why.
        status: Status,
        /// The vendor's own code.
        vendor: u32,
    },
    /// Nothing came of it.
    #[error("the {what} of {TRIAL_BYTES} bytes has not ended after {} s", PATIENCE.as_secs())]
    Silent {
        /// Which of them.
        what: &'static str,
    },
    /// What came back is not what was written.
    #[error("the adapter brought back other bytes than were written to it")]
    Wrong,
}

/// Connects two queue pairs of a port to each other, writes [`TRIAL_BYTES`] from one to the other,
/// reads them back, compares, and says how long the two took. Takes up to ten seconds where the
/// adapter does not answer.
///
/// # Errors
/// What did not work.
pub fn write_and_read_back(context: &Context, route: Route) -> Result<Duration, TrialError> {
    let bytes = u64::from(TRIAL_BYTES);
    let memory = Memory::allocate(3 * TRIAL_BYTES as usize).map_err(VerbsError::from)?;
    let pattern: Vec<u8> = (0..TRIAL_BYTES).map(|byte| (byte % 251).to_le_bytes()[0]).collect();
    memory.copy_in(0, &pattern).map_err(VerbsError::from)?;

    let domain = ProtectionDomain::new(context)?;
    let capacity = Capacity { requests: 2, announcements: 0, spans: 1, inline_bytes: 0 };
    let queue = CompletionQueue::new(context, 2 * capacity.requests)?;
    let rights = Rights { read: true, write: true, relaxed_ordering: false };
    let region = domain.register(&memory, 0, memory.length(), rights)?;
    let new = || Unconnected::new(&domain, &queue, route, capacity, 0);
    let (here, there) = (new()?, new()?);
    let (here_address, there_address) = (here.address(), there.address());
    let here = here.connect(&there_address)?;
    let _there = there.connect(&here_address)?;

    let trial = Trial { pair: &here, queue: &queue, route };
    let began = Instant::now();
    let written = span(&region, 0);
    trial
        .carry_out("write", Operation::Write { from: &[written], to: region.address_of(bytes) })?;
    let back = span(&region, 2 * bytes);
    trial.carry_out("read", Operation::Read { from: region.address_of(bytes), into: &[back] })?;
    let took = began.elapsed();

    let mut returned = vec![0; pattern.len()];
    memory.copy_out(2 * bytes, &mut returned).map_err(VerbsError::from)?;
    if returned == pattern { Ok(took) } else { Err(TrialError::Wrong) }
}

fn span(region: &MemoryRegion, offset: u64) -> LocalSpan<'_> {
    LocalSpan { region, offset, bytes: TRIAL_BYTES }
}

struct Trial<'a> {
    pair: &'a QueuePair,
    queue: &'a CompletionQueue,
    route: Route,
}

impl Trial<'_> {
    fn carry_out(&self, what: &'static str, operation: Operation<'_>) -> Result<(), TrialError> {
        self.pair.post(&[Work { id: 0, signaled: true, operation }])?;
        match self.completed()? {
            None => Err(TrialError::Silent { what }),
            Some(Completion { outcome: Outcome::Failed { status, vendor }, .. }) => {
                Err(TrialError::Failed { what, route: self.route, status, vendor })
            }
            Some(_) => Ok(()),
        }
    }

    fn completed(&self) -> Result<Option<Completion>, TrialError> {
        let deadline = Instant::now() + PATIENCE;
        let mut completions = Vec::with_capacity(1);
        loop {
            self.queue.arm()?;
            if self.queue.poll(&mut completions, 1)? > 0 {
                return Ok(completions.pop());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            wait_readable(self.queue, left);
            self.queue.take_wakeup()?;
        }
    }
}

/// Waits until the descriptor is readable, or the time is over. Who is interrupted looks again.
fn wait_readable(queue: &CompletionQueue, left: Duration) {
    let mut entry =
        libc::pollfd { fd: queue.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let left_ms = libc::c_int::try_from(left.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: one entry, which the call reads and writes.
    unsafe { libc::poll(&raw mut entry, 1, left_ms.max(1)) };
}
