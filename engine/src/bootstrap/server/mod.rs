//! The server: settings, start, end.
//!
//! | file | what stands there |
//! |---|---|
//! | `desk` | the driver of the table: clock, probes, log |
//! | `probe` | whether an address accepts connections |
//! | `routes` | what is answered to which request |
//! | `connections` | how many connections there may be, and for how long |

mod connections;
mod desk;
mod probe;
mod routes;

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use desk::Desk;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::table;
use super::token::Token;
use crate::builder::{advertise, bind, derive_address, listen_address};
use crate::error::Error;
use crate::net::Endpoint;

/// How long the end of the server's thread may take beyond what it is doing.
const RUNTIME_END: Duration = Duration::from_millis(200);

/// The most connections that may be open at once, whatever is set.
const MOST_CONNECTIONS: usize = 65_536;

/// How a bootstrap server behaves. Every setting has a default.
#[derive(Clone, Debug)]
pub struct BootstrapBuilder {
    listen: Option<String>,
    port: u16,
    advertise: Option<String>,
    token: Option<Token>,
    table: table::Settings,
    connections: usize,
    read_timeout: Duration,
    runtime: Option<Handle>,
}

impl Default for BootstrapBuilder {
    fn default() -> Self {
        Self {
            listen: None,
            port: 0,
            advertise: None,
            token: None,
            table: table::Settings::default(),
            connections: 256,
            read_timeout: Duration::from_secs(5),
            runtime: None,
        }
    }
}

impl BootstrapBuilder {
    /// Where it is reached: `HOST:PORT`, port 0 for any. Default: every address of this host, IPv4
    /// and IPv6, and the port of [`BootstrapBuilder::port`].
    #[must_use]
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = Some(address.into());
        self
    }

    /// The port, where no address is set to listen on. Default 0: any. In-tree vLLM uses 8998.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// The address that [`Bootstrap::address`] gives out: `HOST:PORT`, port 0 for the one that was
    /// got. Default: what was bound, or an address of this host where that was a wildcard.
    #[must_use]
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.advertise = Some(address.into());
        self
    }

    /// The token that registrants have to show. Default: none, and anybody can register.
    #[must_use]
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// What the table may hold.
    #[must_use]
    pub fn limits(mut self, limits: table::Limits) -> Self {
        self.table.limits = limits;
        self
    }

    /// How often the address of a worker without a lease is tried, and after how long without a
    /// connection the worker is forgotten. Default 10 s and 60 s.
    #[must_use]
    pub fn forget(mut self, probe_every: Duration, forget_after: Duration) -> Self {
        (self.table.probe_every, self.table.forget_after) = (probe_every, forget_after);
        self
    }

    /// How many connections may be open at once. Where all are and one more comes, the oldest that
    /// has sent no whole request has to go. Default 256.
    #[must_use]
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// How long the head of a request may take to arrive, and then its body. Default 5 s.
    #[must_use]
    pub fn read_timeout(mut self, timeout: Duration) -> Self {
        self.read_timeout = timeout;
        self
    }

    /// The runtime to run on; it needs time and I/O enabled. Default: a thread of its own.
    #[must_use]
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Binds, and starts to serve.
    ///
    /// # Errors
    /// [`Error::Setting`] and [`Error::Address`] for settings that cannot work, [`Error::Bind`]
    /// for an address that cannot be had, [`Error::System`] when the system gives no thread.
    pub async fn start(self) -> Result<Bootstrap, Error> {
        let starting = self.spawn()?;
        starting.await.unwrap_or(Err(Error::Shutdown))
    }

    /// As [`BootstrapBuilder::start`], for a thread that is in no asynchronous runtime.
    ///
    /// # Errors
    /// As [`BootstrapBuilder::start`].
    pub fn start_blocking(self) -> Result<Bootstrap, Error> {
        let starting = self.spawn()?;
        starting.blocking_recv().unwrap_or(Err(Error::Shutdown))
    }

    fn spawn(mut self) -> Result<oneshot::Receiver<Result<Bootstrap, Error>>, Error> {
        let (started, starting) = oneshot::channel();
        if let Some(runtime) = self.runtime.take() {
            runtime.spawn(self.start_here(started));
            return Ok(starting);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::system("starting the bootstrap server's runtime"))?;
        let (thread_sender, own_thread) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("kvferry-bootstrap".into())
            .spawn(move || {
                runtime.block_on(async move {
                    let serving = match self.serving().await {
                        Ok(serving) => serving,
                        Err(error) => {
                            let _ = started.send(Err(error));
                            return;
                        }
                    };
                    // The spawner sends it right after the thread began.
                    let Ok(thread) = own_thread.await else { return };
                    let (stop, stopped) = oneshot::channel();
                    let home = Home::Thread { stop, thread };
                    let bootstrap = Bootstrap::new(serving.address, home);
                    // Whoever waited may have gone: this thread cannot wait for its own end.
                    if let Err(Ok(mut unwanted)) = started.send(Ok(bootstrap)) {
                        drop(unwanted.home.take());
                        return;
                    }
                    tokio::select! {
                        () = serving.serve => {}
                        _ = stopped => {}
                    }
                });
                // A name that is being resolved must not hold up the end.
                runtime.shutdown_timeout(RUNTIME_END);
            })
            .map_err(Error::system("starting the bootstrap server's thread"))?;
        let _ = thread_sender.send(thread);
        Ok(starting)
    }

    async fn start_here(self, started: oneshot::Sender<Result<Bootstrap, Error>>) {
        let bootstrap = self.serving().await.map(|serving| {
            let task = tokio::spawn(serving.serve);
            Bootstrap::new(serving.address, Home::Task(task))
        });
        // Whoever waited may have gone: then it ends as it is dropped.
        drop(started.send(bootstrap));
    }

    /// Binds. What is returned serves for as long as it is polled.
    pub(crate) async fn serving(self) -> Result<Serving<impl Future<Output = ()> + Send>, Error> {
        self.check()?;
        let mut listen = listen_address(self.listen.as_deref()).await?;
        if self.listen.is_none() {
            listen = Endpoint::new(listen.host(), self.port);
        }
        let (listener, bound) = bind(&listen).await?;
        let address = self.address(&listen, bound)?;
        let desk = Arc::new(Desk::new(self.table));
        let security = if self.token.is_some() { "token" } else { "off" };
        tracing::info!(%address, security, "bootstrap server started");
        let shared = routes::Shared {
            desk: desk.clone(),
            token: self.token,
            read_timeout: self.read_timeout,
        };
        let router = routes::router(shared);
        let serve = async move {
            tokio::join!(
                connections::serve(listener, router, self.connections, self.read_timeout),
                desk.keep(),
            );
        };
        Ok(Serving { address, serve })
    }

    fn address(&self, listen: &Endpoint, bound: SocketAddr) -> Result<Endpoint, Error> {
        match &self.advertise {
            Some(address) => advertise(address, bound),
            None => Ok(derive_address(listen, bound)),
        }
    }

    fn check(&self) -> Result<(), Error> {
        let setting = |setting, value, reason| Err(Error::Setting { setting, value, reason });
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let connections = self.connections;
        if connections == 0 || connections > MOST_CONNECTIONS {
            return setting("connections", connections as u64, "it must be 1 to 65536");
        }
        if self.read_timeout.is_zero() {
            return setting("read_timeout", 0, "no request could arrive");
        }
        let every = self.table.probe_every;
        if every < Duration::from_millis(10) {
            return setting("probe_every (ms)", millis(every), "it must be at least 10");
        }
        let limits = &self.table.limits;
        if limits.workers == 0 || limits.engines == 0 {
            return setting("limits", 0, "nobody could register");
        }
        if limits.workers > 1 << 20 {
            return setting("limits.workers", limits.workers.into(), "it must be 1 to 1048576");
        }
        Ok(())
    }
}

/// A server that is bound.
pub(crate) struct Serving<F> {
    /// The address to give to others.
    pub(crate) address: Endpoint,
    /// Serves for as long as it is polled.
    pub(crate) serve: F,
}

/// A bootstrap server that runs. Dropped, it ends: with a thread of its own, nothing of it is left
/// when the drop returns, which takes a fraction of a second; on another's runtime, as soon as that
/// runs next.
///
/// ```no_run
/// use kvferry_engine::bootstrap::{Bootstrap, Client};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let bootstrap = Bootstrap::builder().listen("[::]:8998").start().await?;
/// let listing = Client::new(&bootstrap.address().to_string())?.query().await?;
/// assert!(listing.engines.is_empty());
/// # Ok(())
/// # }
/// ```
pub struct Bootstrap {
    address: Endpoint,
    home: Option<Home>,
    pid: u32,
}

/// Where it runs.
enum Home {
    Thread { stop: oneshot::Sender<()>, thread: thread::JoinHandle<()> },
    Task(JoinHandle<()>),
}

impl Bootstrap {
    /// A builder with default settings.
    #[must_use]
    pub fn builder() -> BootstrapBuilder {
        BootstrapBuilder::default()
    }

    fn new(address: Endpoint, home: Home) -> Self {
        Self { address, home: Some(home), pid: std::process::id() }
    }

    /// The address to give to others, with the port that was got.
    #[must_use]
    pub fn address(&self) -> &Endpoint {
        &self.address
    }
}

impl Drop for Bootstrap {
    fn drop(&mut self) {
        let home = self.home.take();
        if self.pid != std::process::id() {
            // A forked child has no such thread, and its parent goes on.
            std::mem::forget(home);
            return;
        }
        match home {
            Some(Home::Thread { stop, thread }) => {
                let _ = stop.send(());
                if thread.join().is_err() {
                    tracing::error!("the bootstrap server's thread had panicked");
                }
            }
            Some(Home::Task(task)) => task.abort(),
            None => {}
        }
    }
}

impl fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bootstrap").field("address", &self.address).finish_non_exhaustive()
    }
}
