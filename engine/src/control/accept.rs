//! Lanes that others open.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use kvferry_proto::frame::{Hello, Refusal, Welcome};
use kvferry_proto::message::VERSION_MAJOR;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::core::Core;
use crate::serve::{Initiator, RequestHandler};

/// How many connections may be between their start and the end of their hello.
const MOST_UNKNOWN: usize = 1024;

/// How long a hello may take: a connection that says nothing costs a descriptor for that long.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

/// The wait after the system refused a connection, for want of descriptors for example.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts lanes for as long as the engine's runtime lives.
pub(crate) async fn accept_lanes(core: Arc<Core>, listener: TcpListener) {
    let unknown = Arc::new(Semaphore::new(MOST_UNKNOWN));
    loop {
        // Never closed, so this is a permit.
        let Ok(permit) = unknown.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, from)) => {
                let core = core.clone();
                tokio::spawn(async move {
                    let greeted = timeout(HELLO_TIMEOUT, greet(&core, stream)).await;
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

async fn greet(core: &Arc<Core>, mut stream: TcpStream) -> io::Result<()> {
    let mut hello = [0; Hello::BYTES];
    stream.read_exact(&mut hello).await?;
    let hello = Hello::decode(&hello).map_err(io::Error::other)?;
    let admitted = admit(core, &hello);
    let sent = stream.write_all(&admitted.welcome(core).encode()).await;
    let stream = sent.and_then(|()| {
        stream.set_nodelay(true)?;
        Ok(stream.into_std()?.into())
    });
    admitted.take_up(core, &hello, stream)
}

/// Whether a lane may be opened, and by whom.
pub(crate) struct Admitted(Result<Arc<Initiator>, Refusal>);

impl Admitted {
    /// What the initiator is told.
    pub(crate) fn welcome(&self, core: &Core) -> Welcome {
        Welcome { target: core.incarnation, refusal: self.0.as_ref().err().copied() }
    }

    /// Takes the connection up as a lane, if it was admitted and its welcome is on its way.
    pub(crate) fn take_up(
        self,
        core: &Arc<Core>,
        hello: &Hello,
        stream: io::Result<OwnedFd>,
    ) -> io::Result<()> {
        let initiator = self.0.map_err(io::Error::other)?;
        let opened = stream.and_then(|stream| {
            let reactor = core.reactor().ok_or_else(|| io::Error::other(Refusal::ShuttingDown))?;
            let handler = RequestHandler::new(core.clone(), initiator.clone(), hello.lane);
            let add = || reactor.add(stream, Core::accepted_lane(), Arc::new(handler));
            initiator.lanes.add(hello.lane, add)
        });
        if opened.is_err() {
            initiator.remove_lane(hello.lane);
        }
        opened
    }
}

/// Looks whether the lane of a hello may be opened.
pub(crate) fn admit(core: &Core, hello: &Hello) -> Admitted {
    Admitted(find_initiator(core, hello))
}

fn find_initiator(core: &Core, hello: &Hello) -> Result<Arc<Initiator>, Refusal> {
    if hello.version != VERSION_MAJOR {
        return Err(Refusal::Version);
    }
    if hello.target != core.incarnation && !planted!(StaleIncarnation) {
        return Err(Refusal::OtherIncarnation);
    }
    if core.is_shut() {
        return Err(Refusal::ShuttingDown);
    }
    core.initiators.open_lane(hello)
}
