//! Settings of an engine, and its start.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kvferry_proto::Incarnation;
use kvferry_proto::frame::limits;
use kvferry_transport::lanes::{Reactor, ReactorConfig};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};

use crate::bootstrap::BootstrapBuilder;
use crate::control::accept::Entrance;
use crate::control::client::ControlRuntime;
use crate::control::{accept, local, server};
use crate::core::{Core, Settings};
use crate::engine::{Addresses, Engine};
use crate::error::Error;
use crate::net::Endpoint;
use crate::plan::PlanLimits;
use crate::rdma::{Adapters, Rdma, attend};
use crate::registry::Registry;
use crate::session;
use crate::time::YEAR;
use crate::transports::Transports;

/// How long the end of the control thread may take.
const RUNTIME_END: Duration = Duration::from_millis(200);

/// How an engine behaves. Every setting has a default; [`EngineBuilder::start`] checks them.
#[derive(Clone, Debug)]
pub struct EngineBuilder {
    registry: Registry,
    listen: Option<String>,
    lane_listen: Option<String>,
    advertise: Option<String>,
    lane_advertise: Option<String>,
    transports: Option<Transports>,
    run_directory: Option<PathBuf>,
    rdma: Rdma,
    io_threads: usize,
    spin: Duration,
    connect_timeout: Duration,
    max_lanes_per_peer: usize,
    notifications: usize,
    plan: PlanLimits,
    session: session::Settings,
    local_bulk_lanes: usize,
    bootstrap: Option<BootstrapBuilder>,
}

impl EngineBuilder {
    pub(crate) fn new(registry: Registry) -> Self {
        let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let plan = PlanLimits::default();
        let session = session::Settings {
            bulk_lanes: (cores / 2).clamp(1, 4),
            ..session::Settings::default()
        };
        Self {
            registry,
            listen: None,
            lane_listen: None,
            advertise: None,
            lane_advertise: None,
            transports: None,
            run_directory: None,
            rdma: Rdma::default(),
            io_threads: (cores / 4).clamp(cores.min(2), 4),
            spin: Duration::from_micros(50),
            connect_timeout: Duration::from_secs(3),
            max_lanes_per_peer: 64,
            notifications: 65_536,
            plan,
            session,
            local_bulk_lanes: (cores / 2).clamp(cores.min(2), 4),
            bootstrap: None,
        }
    }

    /// Where peers reach it: `HOST:PORT`, port 0 for any. Default `[::]:0`: every address of this
    /// host, IPv4 and IPv6.
    #[must_use]
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = Some(address.into());
        self
    }

    /// Where lanes are accepted. Default: the host of `listen`, any port.
    #[must_use]
    pub fn lane_listen(mut self, address: impl Into<String>) -> Self {
        self.lane_listen = Some(address.into());
        self
    }

    /// The address that [`Engine::address`] gives out: `HOST:PORT`, port 0 for the one that was
    /// got. Default: what was bound, or an address of this host where that was a wildcard.
    #[must_use]
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.advertise = Some(address.into());
        self
    }

    /// The address that peers open lanes to: `HOST:PORT`, port 0 for the one that was got. Default:
    /// the host by which they reached this engine.
    #[must_use]
    pub fn lane_advertise(mut self, address: impl Into<String>) -> Self {
        self.lane_advertise = Some(address.into());
        self
    }

    /// What may carry transfers, in both directions. Default: what the environment variable
    /// `KVFERRY_TRANSPORT` says (`auto`, `tcp`, `local` or `rdma`), or [`Transports::Auto`].
    #[must_use]
    pub fn transports(mut self, transports: Transports) -> Self {
        self.transports = Some(transports);
        self
    }

    /// Where processes of one host meet: a directory of this user's that nobody else can enter, the
    /// same for all that shall meet, in containers too. It is made if it is not there. Default: what
    /// the environment variable `KVFERRY_RUN_DIR` says, or `$XDG_RUNTIME_DIR/kvferry`, or
    /// `/run/kvferry`.
    #[must_use]
    pub fn run_directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.run_directory = Some(path.into());
        self
    }

    /// Which RDMA adapters are used, where RDMA is: see [`Rdma`].
    #[must_use]
    pub fn rdma(mut self, rdma: Rdma) -> Self {
        self.rdma = rdma;
        self
    }

    /// Threads that drive lanes, and copy within one host. Default: a quarter of the cores, 2 to 4.
    #[must_use]
    pub fn io_threads(mut self, threads: usize) -> Self {
        self.io_threads = threads;
        self
    }

    /// How long such a thread looks for more before it sleeps, after traffic, and a thread that
    /// waits for a transfer's end. Default 50 us: about what it costs to be woken.
    #[must_use]
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Lanes for large transfers to one peer, beside the one for small ones. Default: half of the cores,
    /// 1 to 4; to a peer on this host, where each is a thread that copies, 2 at least if there are two.
    #[must_use]
    pub fn bulk_lanes(mut self, lanes: usize) -> Self {
        self.session.bulk_lanes = lanes;
        self.local_bulk_lanes = lanes;
        self
    }

    /// Up to this many bytes a transfer is small: it shares no lane with large ones. Default 64
    /// KiB.
    #[must_use]
    pub fn small_bytes(mut self, bytes: u64) -> Self {
        self.session.small_bytes = bytes;
        self
    }

    /// The most bytes that one frame carries. Default 1 MiB.
    #[must_use]
    pub fn slice_bytes(mut self, bytes: u32) -> Self {
        self.plan.slice_bytes = bytes;
        self
    }

    /// How many transfers to one peer may be open. Default 16,384.
    #[must_use]
    pub fn open_transfers(mut self, transfers: u64) -> Self {
        self.session.open_transfers = transfers;
        self
    }

    /// How many notifications may wait for the program, beside a bound of 64 MiB on all of them.
    /// One peer may have as many waiting as it leaves free, so half of them while it is alone. A
    /// transfer whose notification finds no room does not end before there is some, or its deadline
    /// has passed. Default 65,536.
    #[must_use]
    pub fn notifications(mut self, notifications: usize) -> Self {
        self.notifications = notifications;
        self
    }

    /// When a peer was not heard for `ping`, it is asked for a sign of life; when it was not for
    /// `dead`, it counts as dead. Default 3 s and 7 s.
    #[must_use]
    pub fn liveness(mut self, ping: Duration, dead: Duration) -> Self {
        (self.session.ping_interval, self.session.dead_after) = (ping, dead);
        self
    }

    /// How long one step of connecting may take. Default 3 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// After how long lanes that nothing was submitted for are closed. Default 5 minutes.
    #[must_use]
    pub fn idle_after(mut self, idle: Duration) -> Self {
        self.session.idle_after = idle;
        self
    }

    /// Serves a bootstrap server beside the engine, on its control thread and until its end:
    /// [`Engine::bootstrap_address`] says where. A runtime that was set for it is not used.
    #[must_use]
    pub fn bootstrap(mut self, bootstrap: BootstrapBuilder) -> Self {
        self.bootstrap = Some(bootstrap);
        self
    }

    /// Binds, and starts the engine.
    ///
    /// # Errors
    /// [`Error::Setting`] and [`Error::Address`] for settings that cannot work, [`Error::Bind`]
    /// for addresses that cannot be had, [`Error::System`] when the system gives no threads.
    pub async fn start(self) -> Result<Engine, Error> {
        let starting = self.spawn()?;
        starting.await.unwrap_or(Err(Error::Shutdown))
    }

    /// As [`EngineBuilder::start`], for a thread that is in no asynchronous runtime.
    ///
    /// # Errors
    /// As [`EngineBuilder::start`].
    pub fn start_blocking(self) -> Result<Engine, Error> {
        let starting = self.spawn()?;
        starting.blocking_recv().unwrap_or(Err(Error::Shutdown))
    }

    fn spawn(mut self) -> Result<oneshot::Receiver<Result<Engine, Error>>, Error> {
        self.check()?;
        // Times are added to the clock's, which ends somewhere.
        let session = &mut self.session;
        for wait in [
            &mut session.ping_interval,
            &mut session.dead_after,
            &mut session.idle_after,
            &mut self.connect_timeout,
        ] {
            *wait = (*wait).min(YEAR);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::system("starting the control runtime"))?;
        let (started, starting) = oneshot::channel();
        let (handle_sender, handle) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("kvferry-control".into())
            .spawn(move || run(runtime, self, handle, started))
            .map_err(Error::system("starting the control thread"))?;
        // The thread waits for its own handle, to hand it to the engine.
        let _ = handle_sender.send(thread);
        Ok(starting)
    }

    fn check(&self) -> Result<(), Error> {
        let setting = |setting, value, reason| Err(Error::Setting { setting, value, reason });
        let slice = self.plan.slice_bytes;
        if slice == 0 || slice > limits::PAYLOAD_BYTES {
            return setting("slice_bytes", slice.into(), "it must be 1 to 16777216");
        }
        if self.io_threads == 0 {
            return setting("io_threads", 0, "lanes need at least one thread");
        }
        if self.notifications == 0 {
            return setting("notifications", 0, "no transfer with a notification could end");
        }
        let lanes = self.session.bulk_lanes;
        if lanes >= self.max_lanes_per_peer {
            return setting("bulk_lanes", lanes as u64, "a peer accepts at most 64 lanes");
        }
        let open = self.session.open_transfers;
        if open == 0 || open >= limits::TRANSFER_SPREAD {
            return setting("open_transfers", open, "it must be 1 to 65535");
        }
        let (ping, dead) = (self.session.ping_interval, self.session.dead_after);
        if ping.is_zero() || dead < ping * 2 {
            let dead_ms = u64::try_from(dead.as_millis()).unwrap_or(u64::MAX);
            return setting("liveness dead (ms)", dead_ms, "it must be at least two pings");
        }
        Ok(())
    }
}

/// The control thread: everything on the runtime ends with it.
fn run(
    runtime: Runtime,
    builder: EngineBuilder,
    handle: oneshot::Receiver<thread::JoinHandle<()>>,
    started: oneshot::Sender<Result<Engine, Error>>,
) {
    let (stop, mut stopped) = watch::channel(false);
    let spawner = runtime.handle().clone();
    runtime.block_on(async move {
        let parts = start(builder, spawner).await;
        // The spawner sends it right after the thread began.
        let Ok(thread) = handle.await else { return };
        let engine = parts.map(|Parts { core, addresses }| {
            let runtime = tokio::runtime::Handle::current();
            Engine::new(core, &runtime, addresses, stop, thread)
        });
        let failed = engine.is_err();
        // Whoever waited may have gone: then the engine goes too, but not by waiting for the
        // thread that this is.
        if let Err(unwanted) = started.send(engine) {
            if let Ok(engine) = &unwanted {
                engine.detach_thread();
            }
            return;
        }
        if !failed {
            // An error means that the engine is gone.
            let _ = stopped.wait_for(|stopped| *stopped).await;
        }
    });
    // A name that is being resolved must not hold up the end of the engine.
    runtime.shutdown_timeout(RUNTIME_END);
}

struct Parts {
    core: Arc<Core>,
    addresses: Addresses,
}

async fn start(builder: EngineBuilder, runtime: tokio::runtime::Handle) -> Result<Parts, Error> {
    let listen = listen_address(builder.listen.as_deref()).await?;
    let lane_listen = match &builder.lane_listen {
        Some(address) => address.parse()?,
        None => Endpoint::new(listen.host(), 0),
    };
    let (control, bound) = bind(&listen).await?;
    let (lanes, lanes_bound) = bind(&lane_listen).await?;
    let address = match &builder.advertise {
        Some(address) => advertise(address, bound)?,
        None => derive_address(&listen, bound),
    };
    let lane_port = lanes_bound.port();
    let lane_address = match &builder.lane_advertise {
        Some(address) => Some(advertise(address, lanes_bound)?),
        None => None,
    };

    let transports = match builder.transports {
        Some(transports) => transports,
        None => Transports::from_environment()?,
    };
    let incarnation = draw_incarnation()?;
    let door = local::open_door(transports, builder.run_directory, incarnation)?;
    let (run_directory, local_entrance) = match door {
        Ok(door) => (Ok(door.directory), Some(door.entrance)),
        Err(reason) => (Err(reason), None),
    };
    let adapters = Adapters::of_engine(transports, builder.rdma, &builder.registry)?;
    let ports = adapters.as_ref().map_or(0, |adapters| adapters.lanes());
    let bootstrap = match builder.bootstrap {
        Some(bootstrap) => Some(bootstrap.serving().await?),
        None => None,
    };

    let reactor_config = ReactorConfig { spin: builder.spin };
    let reactors = (0..builder.io_threads)
        .map(|index| Reactor::start(&format!("kvferry-io-{index}"), reactor_config).map(Arc::new))
        .collect::<Result<Vec<_>, _>>()
        .map_err(Error::system("starting a lane thread"))?;
    let settings = Settings {
        session: builder.session,
        local_bulk_lanes: builder.local_bulk_lanes,
        rdma_bulk_lanes: builder.session.bulk_lanes.max(ports),
        plan: builder.plan,
        spin: builder.spin,
        connect_timeout: builder.connect_timeout,
        max_lanes_per_peer: builder.max_lanes_per_peer,
        notifications: builder.notifications,
        transports,
        lane_address,
    };
    let outreach = Box::new(ControlRuntime(runtime));
    let registry = builder.registry;
    let core =
        Core::new(incarnation, registry, settings, outreach, run_directory, adapters, reactors);
    let core = Arc::new(core);
    tokio::spawn(server::serve(core.clone(), control, lane_port));
    tokio::spawn(accept::accept_lanes(core.clone(), Entrance::Tcp(lanes)));
    if let Some(entrance) = local_entrance {
        tokio::spawn(accept::accept_lanes(core.clone(), entrance));
    }
    let bootstrap = bootstrap.map(|bootstrap| {
        tokio::spawn(bootstrap.serve);
        bootstrap.address
    });
    let local = match &core.run_directory {
        Ok(directory) => directory.path().display().to_string(),
        Err(reason) => format!("none: {reason}"),
    };
    let rdma = match core.adapters() {
        Ok(adapters) => {
            attend(&core, &adapters);
            format!("{adapters:?}")
        }
        Err(reason) => format!("none: {reason}"),
    };
    tracing::info!(
        %address,
        lane_port,
        %incarnation,
        ?transports,
        %local,
        %rdma,
        security = "off",
        "engine started"
    );
    Ok(Parts { core, addresses: Addresses { control: address, lane_port, bootstrap } })
}

/// Where to listen: as set, or on every address of this host, any port.
pub(crate) async fn listen_address(set: Option<&str>) -> Result<Endpoint, Error> {
    match set {
        Some(address) => address.parse(),
        // Where there is no IPv6, every IPv4 address.
        None => Ok(match bind(&Endpoint::new("::", 0)).await {
            Ok(_) => Endpoint::new("::", 0),
            Err(_) => Endpoint::new("0.0.0.0", 0),
        }),
    }
}

pub(crate) async fn bind(endpoint: &Endpoint) -> Result<(TcpListener, SocketAddr), Error> {
    let failed = |source| Error::bind(endpoint, source);
    let listener = TcpListener::bind((endpoint.host(), endpoint.port())).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

fn draw_incarnation() -> Result<Incarnation, Error> {
    loop {
        let drawn = getrandom::u64().map_err(|error| {
            Error::system("drawing the incarnation")(std::io::Error::other(error))
        })?;
        if drawn != 0 {
            return Ok(Incarnation(drawn));
        }
    }
}

/// An address that was set for peers: never a wildcard, never port 0.
pub(crate) fn advertise(address: &str, bound: SocketAddr) -> Result<Endpoint, Error> {
    let endpoint: Endpoint = address.parse()?;
    if endpoint.is_wildcard() {
        let reason = "a wildcard names nobody: advertise an address that peers can reach";
        return Err(Error::Address { address: address.into(), reason });
    }
    let port = if endpoint.port() == 0 { bound.port() } else { endpoint.port() };
    Ok(Endpoint::new(endpoint.host(), port))
}

/// An address for peers where none was set.
pub(crate) fn derive_address(listen: &Endpoint, bound: SocketAddr) -> Endpoint {
    if !listen.is_wildcard() {
        return Endpoint::new(listen.host(), bound.port());
    }
    let host = outward_address(bound.is_ipv6()).unwrap_or_else(|| {
        tracing::warn!("no route leads out of this host: the loopback address is given to peers");
        if bound.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() }
    });
    Endpoint::from(SocketAddr::new(host, bound.port()))
}

/// The address that this host has on its way to others, as its routes say. Nothing is sent: the
/// destinations are addresses set aside for documentation (RFC 5737, RFC 3849).
fn outward_address(dual_stack: bool) -> Option<IpAddr> {
    let v4 = ("0.0.0.0:0", "192.0.2.1:9");
    let v6 = ("[::]:0", "[2001:db8::1]:9");
    let tries = if dual_stack { vec![v4, v6] } else { vec![v4] };
    tries.into_iter().find_map(|(from, to)| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        let address = socket.local_addr().ok()?.ip();
        (!address.is_unspecified()).then_some(address)
    })
}
