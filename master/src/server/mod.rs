//! The master as a server: what it listens on, what runs on which thread, how it ends.
//!
//! | thread | what it does |
//! |---|---|
//! | workers | the service for clients |
//! | heartbeats | signs of life and whose lease is over, and nothing else: no load delays them |
//! | http | probes, figures, queries, metadata |
//! | tend | what is due: rooms that come free, evictions, segments that are gone |
//!
//! | file | what stands there |
//! |---|---|
//! | `desk` | what they share |
//! | `service` | the gRPC services |
//! | `grpc` | connections to them |
//! | `http` | everything over HTTP/1 |
//! | `metrics`, `clock` | figures; time and randomness |

mod clock;
mod desk;
mod grpc;
mod http;
mod metrics;
mod service;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use desk::Desk;
use kvferry_proto::Incarnation;
use kvferry_proto::pool::MESSAGE_BYTES;
use kvferry_proto::rpc::pool::heartbeats_server::HeartbeatsServer;
use kvferry_proto::rpc::pool::pool_server::PoolServer;
use parking_lot::Mutex;
use service::{HeartbeatService, PoolService};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tonic::service::Routes;

use crate::state::{Settings, Told};

/// How often what is due is done.
const TEND_EVERY: Duration = Duration::from_millis(50);

/// How long the threads may take to end beyond what they are doing.
const RUNTIME_END: Duration = Duration::from_millis(500);

/// Where the master listens. Port 0 is any that is free; the one that was got is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// For clients.
    pub clients: (String, u16),
    /// For signs of life, on the host for clients.
    pub heartbeat_port: u16,
    /// For probes, figures and queries.
    pub metrics: (String, u16),
    /// For metadata.
    pub metadata: Option<(String, u16)>,
}

/// Where the master is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// By clients.
    pub clients: SocketAddr,
    /// For signs of life.
    pub heartbeats: SocketAddr,
    /// For probes, figures and queries.
    pub metrics: SocketAddr,
    /// For metadata.
    pub metadata: Option<SocketAddr>,
}

/// Why a master does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port cannot be had.
    #[error("cannot listen on {host}:{port} ({what}): {error}{}", advice(error))]
    Listen {
        /// What for.
        what: &'static str,
        /// On which host.
        host: String,
        /// On which port.
        port: u16,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// The system refuses something.
    #[error("{what}: {error}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// No random numbers can be had.
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            ": another program has the port. End it, or choose another port, 0 for any"
        }
        io::ErrorKind::PermissionDenied => ": ports below 1024 need a privilege. Choose another",
        io::ErrorKind::AddrNotAvailable => ": this host has no such address",
        _ => "",
    }
}

/// How a master ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// All puts that were under way have ended.
    Clean,
    /// The deadline passed while so many puts were under way.
    Cut {
        /// How many.
        writing: u64,
    },
}

/// A master that runs. Dropped, it ends: in a fraction of a second, or in three where a client does
/// not hang up.
#[derive(Debug)]
pub struct Master {
    desk: Arc<Desk>,
    addresses: Addresses,
    end: watch::Sender<bool>,
    clients: Option<Runtime>,
    /// Says that clients have all their answers.
    answered: Mutex<std::sync::mpsc::Receiver<()>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Master {
    /// Binds all ports, and serves on threads of its own. `workers` are for clients.
    ///
    /// # Errors
    /// [`StartError`], and then nothing of it is left.
    pub fn start(settings: Settings, listen: &Listen, workers: usize) -> Result<Self, StartError> {
        let mut random = [0; 24];
        getrandom::fill(&mut random).map_err(StartError::Random)?;
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&random[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        // Zero means none.
        let master = Incarnation(number(0) | 1);
        let beat_every = settings.clients.expire / 10;
        let look_every = settings.clients.look_every;
        let clients = runtime("kv-master", workers)?;
        let bind = |what, address: &(String, u16)| bind(&clients, what, address);
        let (clients_listener, clients_at) = bind("for clients", &listen.clients)?;
        let heartbeats = (listen.clients.0.clone(), listen.heartbeat_port);
        let (heartbeats_listener, heartbeats_at) = bind("for heartbeats", &heartbeats)?;
        let (metrics_listener, metrics_at) = bind("for metrics and probes", &listen.metrics)?;
        let metadata = listen.metadata.as_ref();
        let metadata = metadata.map(|address| bind("for metadata", address)).transpose()?;
        let addresses = Addresses {
            clients: clients_at,
            heartbeats: heartbeats_at,
            metrics: metrics_at,
            metadata: metadata.as_ref().map(|(_, address)| *address),
        };

        let desk = Arc::new(Desk::new(settings, master, [number(8), number(16)]));
        let (end, ended) = watch::channel(false);
        let is_over = move |mut ended: watch::Receiver<bool>| async move {
            // Over, too, when nobody is left to say so.
            let _ = ended.wait_for(|over| *over).await;
        };

        let service = PoolService::new(desk.clone(), heartbeats_at.port(), beat_every);
        let service = PoolServer::new(service)
            .max_decoding_message_size(MESSAGE_BYTES)
            .max_encoding_message_size(MESSAGE_BYTES);
        let over = ended.clone();
        let (answer, answered) = std::sync::mpsc::channel();
        clients.spawn(async move {
            // Dropped when this ends, which is what is waited for.
            let _answer: std::sync::mpsc::Sender<()> = answer;
            let Some(listener) = listening(clients_listener) else { return };
            grpc::serve(listener, Routes::new(service), over).await;
        });

        let mut threads = Vec::new();
        let beating = desk.clone();
        let over = ended.clone();
        threads.push(spawn("kv-heartbeats", async move {
            let Some(listener) = listening(heartbeats_listener) else { return };
            let routes = Routes::new(HeartbeatsServer::new(HeartbeatService::new(beating.clone())));
            tokio::select! {
                () = grpc::serve(listener, routes, over) => {}
                () = look(&beating, look_every) => {}
            }
        })?);
        let answering = desk.clone();
        let over = is_over(ended.clone());
        threads.push(spawn("kv-http", async move {
            let Some(listener) = listening(metrics_listener) else { return };
            let metadata = metadata.and_then(|(listener, _)| listening(listener));
            let metadata = async {
                match metadata {
                    Some(listener) => {
                        http::connections::serve(listener, http::metadata::router()).await;
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = http::connections::serve(listener, http::routes::router(answering)) => {}
                () = metadata => {}
                () = over => {}
            }
        })?);
        let tended = desk.clone();
        let over = is_over(ended);
        threads.push(spawn("kv-tend", async move {
            tokio::select! { () = tend(&tended) => {}, () = over => {} }
        })?);
        let Addresses { clients: at, heartbeats, metrics, metadata } = addresses;
        tracing::info!(
            %master, clients = %at, %heartbeats, %metrics, ?metadata, security = "off",
            "master started"
        );
        let answered = Mutex::new(answered);
        Ok(Self { desk, addresses, end, clients: Some(clients), answered, threads })
    }

    /// Where it is reached.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// A line of figures for the log.
    #[must_use]
    pub fn summary(&self) -> String {
        self.desk.metrics.summary(&self.desk)
    }

    /// Takes on nothing new, and waits until what is being written has ended, at the most until the
    /// deadline. Then it ends.
    pub fn drain(mut self, limit: Duration) -> Drained {
        self.desk.close();
        let deadline = Instant::now() + limit;
        let writing = || self.desk.pool.totals().writing;
        tracing::info!(pending = writing(), ?limit, "draining");
        while writing() > 0 && Instant::now() < deadline {
            thread::sleep(TEND_EVERY);
        }
        let writing = writing();
        self.stop();
        match writing {
            0 => Drained::Clean,
            writing => Drained::Cut { writing },
        }
    }

    fn stop(&mut self) {
        let _ = self.end.send(true);
        self.desk.end_followers();
        // It ends by itself, later than that only where the machine is very busy.
        let _ = self.answered.lock().recv_timeout(grpc::LAST_ANSWERS + RUNTIME_END);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the master had panicked");
            }
        }
        if let Some(clients) = self.clients.take() {
            clients.shutdown_timeout(RUNTIME_END);
        }
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        self.desk.close();
        self.stop();
    }
}

fn system(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |error| StartError::System { what, error }
}

fn runtime(name: &'static str, workers: usize) -> Result<Runtime, StartError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers.max(1))
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(system("starting the threads for clients"))
}

/// Runs a task on a thread of its own until it ends.
fn spawn(
    name: &'static str,
    task: impl Future<Output = ()> + Send + 'static,
) -> Result<thread::JoinHandle<()>, StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("starting a thread"))?;
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            runtime.block_on(task);
            runtime.shutdown_timeout(RUNTIME_END);
        })
        .map_err(system("starting a thread"))
}

/// A listener that no runtime has yet.
fn bind(
    runtime: &Runtime,
    what: &'static str,
    (host, port): &(String, u16),
) -> Result<(std::net::TcpListener, SocketAddr), StartError> {
    let bound = runtime.block_on(async {
        let listener = TcpListener::bind((host.as_str(), *port)).await?;
        let address = listener.local_addr()?;
        Ok((listener.into_std()?, address))
    });
    bound.map_err(|error| StartError::Listen { what, host: host.clone(), port: *port, error })
}

/// The listener on the runtime that this is called on. It was made non-blocking when it was bound.
fn listening(listener: std::net::TcpListener) -> Option<TcpListener> {
    TcpListener::from_std(listener)
        .inspect_err(|error| tracing::error!(%error, "a port cannot be served"))
        .ok()
}

/// Looks whose lease is over, for ever.
async fn look(desk: &Desk, every: Duration) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for (client, became) in desk.pool.look(desk.now()) {
            tracing::warn!(%client, ?became, "a client was not heard");
        }
    }
}

/// Does what is due, for ever.
async fn tend(desk: &Desk) {
    let mut ticks = tokio::time::interval(TEND_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut was_recovering = true;
    loop {
        ticks.tick().await;
        let mut told = Told::default();
        desk.pool.tend(desk.now(), desk.clock.seed(), &mut told);
        desk.tell(&told);
        let is_recovering = desk.pool.is_recovering(desk.now());
        if was_recovering && !is_recovering {
            let totals = desk.pool.totals();
            tracing::info!(keys = totals.keys, segments = totals.segments, "recovered: serving");
        }
        was_recovering = is_recovering;
    }
}
