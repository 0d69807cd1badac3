//! Connections to the ports of the gRPC services: so many and no more, and served only once they have
//! begun as HTTP/2 connections do.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// How many connections may be open to one port.
const MOST_CONNECTIONS: usize = 16_384;

/// How many requests one connection may have under way.
const REQUESTS_PER_CONNECTION: usize = 256;

/// How many connections may wait to be served.
const ACCEPTED_AHEAD: usize = 64;

/// How every HTTP/2 connection begins (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long that may take: a connection that says nothing costs a descriptor for that long.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long accepting pauses when it fails: when no descriptor is left, say.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long a connection may be silent before its other end is asked whether it is there, and how
/// long the answer may take.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// The first byte of a request in coro_rpc's protocol, which Mooncake's C++ clients speak
/// (`coro_rpc_protocol.hpp` in yalantinglibs: `magic_number`).
const CORO_RPC_MAGIC: u8 = 21;

/// How long what is under way at the end may take to be answered: longer than any answer waits.
pub(super) const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Serves until the end comes, and then until what is under way has been answered, or could have
/// been: a client that does not read holds up nothing.
pub(super) async fn serve(listener: TcpListener, routes: Routes, end: watch::Receiver<bool>) {
    let is_over = |mut end: watch::Receiver<bool>| async move {
        // Over, too, when nobody is left to say so.
        let _ = end.wait_for(|over| *over).await;
    };
    let late = async {
        is_over(end.clone()).await;
        tokio::time::sleep(LAST_ANSWERS).await;
    };
    let (accepting, accepted) = mpsc::channel(ACCEPTED_AHEAD);
    tokio::spawn(admit_all(listener, accepting));
    let serving = tonic::transport::Server::builder()
        .concurrency_limit_per_connection(REQUESTS_PER_CONNECTION)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .add_routes(routes)
        .serve_with_incoming_shutdown(ReceiverStream::new(accepted), is_over(end.clone()));
    tokio::select! {
        served = serving => if let Err(error) = served {
            tracing::error!(%error, "a server failed: nobody can connect any more");
        },
        () = late => tracing::debug!("some clients did not hang up"),
    }
}

async fn admit_all(listener: TcpListener, admitted: mpsc::Sender<io::Result<Admitted>>) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let arrived = tokio::select! {
            arrived = listener.accept() => arrived,
            () = admitted.closed() => return,
        };
        let (stream, from) = match arrived {
            Ok(arrived) => arrived,
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Without a place it is closed: who is told so tries again, who waits does not.
        let Ok(place) = places.clone().try_acquire_owned() else {
            tracing::debug!(%from, limit = MOST_CONNECTIONS, "too many connections");
            continue;
        };
        let admitted = admitted.clone();
        tokio::spawn(async move {
            match timeout(PREFACE_TIMEOUT, admit(stream, place)).await {
                // The server is gone where nobody takes it.
                Ok(Ok(connection)) => drop(admitted.send(Ok(connection)).await),
                Ok(Err(found)) => tracing::warn!(%from, "{found}"),
                Err(_) => tracing::debug!(%from, "nothing was said within {PREFACE_TIMEOUT:?}"),
            }
        });
    }
}

/// What a connection began with instead of HTTP/2.
#[derive(Debug, thiserror::Error)]
enum Foreign {
    #[error(
        "a client of Mooncake's own protocol has connected, which this master does not speak: use \
         kvferry's client"
    )]
    Mooncake,
    #[error("HTTP/1 on the port for gRPC: probes, metrics and queries are on the metrics port")]
    Http1,
    #[error("a connection that does not begin as HTTP/2 does was closed")]
    Other,
    #[error("a connection broke: {0}")]
    Broken(#[from] io::Error),
}

async fn admit(mut stream: TcpStream, place: OwnedSemaphorePermit) -> Result<Admitted, Foreign> {
    // Small messages both ways: one that cannot be told so is slower, no more.
    let _ = stream.set_nodelay(true);
    let mut found = [0; PREFACE.len()];
    let mut length = 0;
    while length < found.len() {
        match stream.read(&mut found[length..]).await? {
            0 => return Err(Foreign::Other),
            read => length += read,
        }
        if found[..length] != PREFACE[..length] {
            return Err(match found[0] {
                CORO_RPC_MAGIC => Foreign::Mooncake,
                b'G' | b'P' | b'H' | b'D' | b'O' => Foreign::Http1,
                _ => Foreign::Other,
            });
        }
    }
    Ok(Admitted { ahead: PREFACE, stream, _place: place })
}

/// A connection that has begun well.
#[derive(Debug)]
struct Admitted {
    /// What was read ahead and is still to be read by whoever serves it.
    ahead: &'static [u8],
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
}

impl Connected for Admitted {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Admitted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, into);
        }
        let (now, later) = self.ahead.split_at(self.ahead.len().min(into.remaining()));
        into.put_slice(now);
        self.ahead = later;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Admitted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
