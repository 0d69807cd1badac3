//! Lanes that others open.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use kvferry_proto::frame::{Hello, PairAddress, Refusal, Welcome};
use kvferry_proto::message::VERSION_MAJOR;
use kvferry_transport::local::Doorway;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::local;
use super::pair;
use crate::core::Core;
use crate::lanes::{Bond, Tie};
use crate::loan::Lender;
use crate::serve::{Initiator, RequestHandler};
use crate::transports::Transport;

/// How many connections may be between their start and the end of their hello.
const MOST_UNKNOWN: usize = 1024;

/// How long a hello may take: a connection that says nothing costs a descriptor for that long.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

/// The wait after the system refused a connection, for want of descriptors for example.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where lanes come in.
pub(crate) enum Entrance {
    Tcp(TcpListener),
    /// The socket's name goes with the listener.
    Local {
        listener: UnixListener,
        _doorway: Doorway,
    },
}

/// A connection that may become a lane.
enum Arrival {
    Tcp(TcpStream, SocketAddr),
    Local(UnixStream),
}

impl Entrance {
    async fn accept(&self) -> io::Result<Arrival> {
        match self {
            Self::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                Ok(Arrival::Tcp(stream, from))
            }
            Self::Local { listener, .. } => Ok(Arrival::Local(listener.accept().await?.0)),
        }
    }
}

/// Accepts lanes for as long as the engine's runtime lives.
pub(crate) async fn accept_lanes(core: Arc<Core>, entrance: Entrance) {
    let unknown = Arc::new(Semaphore::new(MOST_UNKNOWN));
    loop {
        // Never closed, so this is a permit.
        let Ok(permit) = unknown.clone().acquire_owned().await else { return };
        match entrance.accept().await {
            Ok(arrival) => {
                let core = core.clone();
                tokio::spawn(async move {
                    let from = arrival.to_string();
                    let greeted = timeout(HELLO_TIMEOUT, greet(&core, arrival)).await;
                    drop(permit);
                    match greeted {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => tracing::debug!(%from, %error, "no lane"),
                        Err(_) => tracing::debug!(%from, "no hello within {HELLO_TIMEOUT:?}"),
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(_, from) => from.fmt(f),
            Self::Local(_) => f.write_str("a process of this host"),
        }
    }
}

async fn greet(core: &Arc<Core>, arrival: Arrival) -> io::Result<()> {
    match arrival {
        Arrival::Tcp(mut stream, _) => {
            let (hello, admitted, bond, sent) = exchange(core, &mut stream, true).await?;
            let stream = sent.and_then(|()| {
                stream.set_nodelay(true)?;
                Ok(stream.into_std()?.into())
            });
            admitted.take_up(core, &hello, stream, bond)
        }
        Arrival::Local(mut stream) => {
            let (reach, ring) = local::prove(&mut stream).await?;
            let (hello, admitted, _, sent) = exchange(core, &mut stream, false).await?;
            let stream = sent.and_then(|()| Ok(stream.into_std()?.into()));
            admitted.take_up(core, &hello, stream, Bond::Host(reach, ring))
        }
    }
}

/// Hears the hello of a lane, over TCP or a Unix socket, and answers it, with a queue pair where one
/// belongs to it. Whether the answer could be sent is for whoever takes the lane up.
async fn exchange(
    core: &Core,
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    over_tcp: bool,
) -> io::Result<(Hello, Admitted, Bond, io::Result<()>)> {
    let mut hello = [0; Hello::BYTES];
    stream.read_exact(&mut hello).await?;
    let hello = Hello::decode(&hello).map_err(io::Error::other)?;
    let theirs = if hello.with_pair {
        let mut theirs = [0; PairAddress::BYTES];
        stream.read_exact(&mut theirs).await?;
        Some(PairAddress::decode(&theirs).map_err(io::Error::other)?)
    } else {
        None
    };
    let transport = match (over_tcp, theirs) {
        (true, None) => Transport::Tcp,
        (true, Some(_)) => Transport::Rdma,
        (false, None) => Transport::Local,
        (false, Some(_)) => {
            return Err(io::Error::other("a queue pair between processes of one host"));
        }
    };
    let mut admitted = admit(core, &hello, transport);
    let mut bond = Bond::Nothing;
    let mut ours = None;
    if let (true, Some(theirs)) = (admitted.initiator.is_ok(), theirs) {
        match pair::answer(core, &theirs) {
            Ok((address, pair)) => (ours, bond) = (Some(address), pair),
            Err(refusal) => admitted.refuse(&hello, refusal),
        }
    }
    let mut answer = admitted.welcome(core).encode().to_vec();
    answer.extend(ours.iter().flat_map(PairAddress::encode));
    let sent = stream.write_all(&answer).await;
    Ok((hello, admitted, bond, sent))
}

/// Whether a lane may be opened, and by whom.
pub(crate) struct Admitted {
    initiator: Result<Arc<Initiator>, Refusal>,
}

impl Admitted {
    /// What the initiator is told.
    pub(crate) fn welcome(&self, core: &Core) -> Welcome {
        Welcome { target: core.incarnation, refusal: self.initiator.as_ref().err().copied() }
    }

    /// It may not be opened after all.
    fn refuse(&mut self, hello: &Hello, refusal: Refusal) {
        if let Ok(initiator) = &self.initiator {
            initiator.remove_lane(hello.lane);
        }
        self.initiator = Err(refusal);
    }

    /// Takes the connection up as a lane, if it was admitted and its welcome is on its way.
    pub(crate) fn take_up(
        self,
        core: &Arc<Core>,
        hello: &Hello,
        stream: io::Result<OwnedFd>,
        bond: Bond,
    ) -> io::Result<()> {
        let initiator = self.initiator.map_err(io::Error::other)?;
        let opened = stream.and_then(|stream| {
            // Each initiator numbers its sessions by itself.
            let session = hello.initiator.0.wrapping_add(hello.session);
            let reactor = core.reactor(session, hello.lane);
            let reactor = reactor.ok_or_else(|| io::Error::other(Refusal::ShuttingDown))?;
            let (tie, ring) = Tie::new(Lender::Owner, bond);
            let handler =
                RequestHandler::new(core.clone(), initiator.clone(), hello.lane, tie.clone());
            let (config, handler) = (Core::accepted_lane(), Arc::new(handler));
            initiator.lanes.add(hello.lane, tie, &reactor, (stream, ring), config, handler)
        });
        if opened.is_err() {
            initiator.remove_lane(hello.lane);
        }
        opened
    }
}

/// Looks whether the lane of a hello may be opened.
pub(crate) fn admit(core: &Core, hello: &Hello, transport: Transport) -> Admitted {
    Admitted { initiator: find_initiator(core, hello, transport) }
}

fn find_initiator(
    core: &Core,
    hello: &Hello,
    transport: Transport,
) -> Result<Arc<Initiator>, Refusal> {
    if hello.version != VERSION_MAJOR {
        return Err(Refusal::Version);
    }
    if hello.target != core.incarnation && !planted!(StaleIncarnation) {
        return Err(Refusal::OtherIncarnation);
    }
    if core.is_shut() {
        return Err(Refusal::ShuttingDown);
    }
    if !core.settings.transports.permit(transport) {
        return Err(Refusal::Transport);
    }
    core.initiators.open_lane(hello)
}
