//! A registration that is renewed for as long as it is wanted.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::{Client, ClientError, MOST_WAIT};
use crate::bootstrap::registration::Registration;
use crate::time;

/// How often a lease is renewed before it ends: two renewals may be lost.
const RENEWALS_PER_LEASE: u32 = 3;

/// The least time between attempts, however short the lease.
const LEAST_WAIT: Duration = Duration::from_millis(10);

/// A registration that is renewed in the background, on a thread of its own. When this is dropped
/// the renewals end, and the server forgets the worker when the lease is over.
pub struct Held {
    state: Arc<State>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
    pid: u32,
}

#[derive(Default)]
struct State {
    /// How the last attempt went; none before the first has ended.
    last: Mutex<Option<Result<(), ClientError>>>,
    changed: Condvar,
}

impl Client {
    /// Registers, and renews the lease until the result is dropped. Returns at once: an attempt
    /// that fails is repeated for ever, unless the server says that a later incarnation has the
    /// rank. [`Held::wait`] and [`Held::state`] tell how it goes.
    ///
    /// # Errors
    /// [`ClientError::NotHeld`] for a registration without an incarnation or a lease: the server
    /// could not tell a renewal from somebody else. [`ClientError::Thread`].
    pub fn hold(self, registration: Registration) -> Result<Held, ClientError> {
        let Some(lease) = registration.lease else {
            return Err(ClientError::NotHeld { what: "a lease" });
        };
        if registration.incarnation.is_none() {
            return Err(ClientError::NotHeld { what: "an incarnation" });
        }
        let failed = |error: std::io::Error| ClientError::Thread { reason: error.to_string() };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let state = Arc::new(State::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let told = state.clone();
        let thread = thread::Builder::new()
            .name("kvferry-register".into())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = renew(&self, &registration, lease, &told) => {}
                        _ = stopped => {}
                    }
                });
                // A name that is being resolved must not hold up the end.
                runtime.shutdown_background();
            })
            .map_err(failed)?;
        Ok(Held { state, stop: Some(stop), thread: Some(thread), pid: std::process::id() })
    }
}

/// Goes on for as long as it is polled. Also when another was taken to have replaced this worker: the
/// server may have been wrong, and finds out by this.
async fn renew(client: &Client, registration: &Registration, lease: Duration, told: &State) {
    let period = lease / RENEWALS_PER_LEASE;
    // A renewal that takes as long as the lease comes too late.
    let client = client.clone().patience(period.min(client.patience));
    loop {
        let began = Instant::now();
        let outcome = client.register(registration).await;
        match (&outcome, &*told.last.lock()) {
            (Err(error), None | Some(Ok(()))) => {
                tracing::warn!(%error, rank = %registration.rank, "not registered");
            }
            (Ok(()), None | Some(Err(_))) => {
                tracing::info!(server = %client.server, rank = %registration.rank, "registered");
            }
            _ => {}
        }
        let wait = if outcome.is_ok() { period } else { period.min(MOST_WAIT) };
        *told.last.lock() = Some(outcome);
        told.changed.notify_all();
        sleep(wait.saturating_sub(began.elapsed()).max(period / 10).max(LEAST_WAIT)).await;
    }
}

impl Held {
    /// How the last attempt went: `None` before the first has ended.
    #[must_use]
    pub fn state(&self) -> Option<Result<(), ClientError>> {
        self.state.last.lock().clone()
    }

    /// Blocks this thread until the worker is registered, is refused, or `patience` has passed.
    ///
    /// # Errors
    /// [`ClientError`] of the last attempt. [`ClientError::Slow`] where none has ended.
    pub fn wait(&self, patience: Duration) -> Result<(), ClientError> {
        let deadline = time::after(Instant::now(), patience);
        let mut last = self.state.last.lock();
        loop {
            match &*last {
                Some(Err(error)) if error.is_retryable() => {}
                Some(outcome) => return outcome.clone(),
                None => {}
            }
            if self.state.changed.wait_until(&mut last, deadline).timed_out() {
                break;
            }
        }
        last.clone().unwrap_or(Err(ClientError::Slow { limit: patience }))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (stop, thread) = (self.stop.take(), self.thread.take());
        if self.pid != std::process::id() {
            // A forked child has no such thread, and its parent goes on.
            std::mem::forget((stop, thread));
            return;
        }
        drop(stop);
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that renewed a registration had panicked");
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("state", &self.state()).finish_non_exhaustive()
    }
}
