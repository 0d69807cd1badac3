//! The threads of a store: one for all that it is asked, one for signs of life. It depends on no
//! runtime of its program's, and its futures can be awaited on any.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;

use crate::error::Error;

/// How long the end of a thread may take.
const RUNTIME_END: Duration = Duration::from_millis(200);

/// A thread that drives a runtime until it is told to stop.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) handle: Handle,
    stop: watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    pid: u32,
}

fn runtime() -> Result<Runtime, Error> {
    let built = Builder::new_current_thread().enable_all().build();
    built.map_err(|error| Error::system("starting a runtime", error))
}

impl Driver {
    pub(crate) fn start(name: &str) -> Result<Self, Error> {
        let runtime = runtime()?;
        let handle = runtime.handle().clone();
        let (stop, mut stopped) = watch::channel(false);
        let thread = thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                // An error means that whoever could stop it is gone.
                let _ = runtime.block_on(stopped.wait_for(|stopped| *stopped));
                // A name that is being resolved must not hold up the end.
                runtime.shutdown_timeout(RUNTIME_END);
            })
            .map_err(|error| Error::system("starting a thread", error))?;
        Ok(Self { handle, stop, thread: Mutex::new(Some(thread)), pid: std::process::id() })
    }

    /// Carries a future out on the thread. Dropping what is returned drops it there.
    pub(crate) fn run<Output: Send + 'static>(
        &self,
        future: impl Future<Output = Output> + Send + 'static,
    ) -> Task<Output> {
        Task(self.handle.spawn(future))
    }

    /// Ends the thread, and all that it carries out.
    pub(crate) fn stop(&self) {
        let Some(thread) = self.thread.lock().take() else { return };
        if self.pid != std::process::id() {
            // A forked child has no such thread, and its parent goes on.
            std::mem::forget(thread);
            return;
        }
        self.stop.send_replace(true);
        if thread.join().is_err() {
            tracing::error!("a thread of the store had panicked");
        }
    }

    /// Whether this is the process that started it.
    pub(crate) fn is_own_process(&self) -> bool {
        self.pid == std::process::id()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Something that is carried out on a driver's thread. It ends with this.
#[derive(Debug)]
pub(crate) struct Task<Output>(tokio::task::JoinHandle<Output>);

impl<Output> Future for Task<Output> {
    type Output = Result<Output, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(|error| {
            if error.is_panic() {
                Error::system("carrying a call out", error)
            } else {
                Error::Closed
            }
        })
    }
}

impl<Output> Drop for Task<Output> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
