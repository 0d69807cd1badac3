//! Lanes that others open.

use std::sync::Arc;
use std::time::Duration;

use kvferry_proto::frame::{Hello, Refusal, Welcome};
use kvferry_proto::message::VERSION_MAJOR;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::core::Core;
use crate::serve::RequestHandler;

/// How many connections may be between their start and the end of their hello.
const MOST_UNKNOWN: usize = 1024;

/// How long a hello may take: a connection that says nothing costs a descriptor for that long.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

/// The wait after the system refused a connection, for want of descriptors for example.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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

async fn greet(core: &Arc<Core>, mut stream: TcpStream) -> std::io::Result<()> {
    let mut hello = [0; Hello::BYTES];
    stream.read_exact(&mut hello).await?;
    let hello = Hello::decode(&hello).map_err(std::io::Error::other)?;
    let initiator = admit(core, &hello);
    let refusal = initiator.as_ref().err().copied();
    let welcome = Welcome { target: core.incarnation, refusal };
    let sent = stream.write_all(&welcome.encode()).await;
    let initiator = match initiator {
        Ok(initiator) => initiator,
        Err(refusal) => return Err(std::io::Error::other(refusal)),
    };
    let opened = sent.and_then(|()| {
        let stream = stream.into_std()?;
        let reactor = core.reactor().ok_or_else(|| std::io::Error::other(Refusal::ShuttingDown))?;
        let handler = Arc::new(RequestHandler::new(core.clone(), initiator.clone(), hello.lane));
        initiator.lanes.add(hello.lane, || reactor.add(stream, Core::accepted_lane(), handler))
    });
    if opened.is_err() {
        initiator.remove_lane(hello.lane);
    }
    opened
}

fn admit(core: &Core, hello: &Hello) -> Result<Arc<crate::serve::Initiator>, Refusal> {
    if hello.version != VERSION_MAJOR {
        return Err(Refusal::Version);
    }
    if hello.target != core.incarnation {
        return Err(Refusal::OtherIncarnation);
    }
    if core.is_shut() {
        return Err(Refusal::ShuttingDown);
    }
    core.initiators.open_lane(hello)
}
