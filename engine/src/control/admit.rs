//! Connections to the control port: so many and no more, and served only once they have begun as
//! HTTP/2 connections do.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::accept::ACCEPT_PAUSE;

/// How many connections may be open: two for each engine that may follow the table.
const MOST_CONNECTIONS: usize = 8192;

/// How every HTTP/2 connection begins (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long that may take: a connection that says nothing costs a descriptor for that long.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection that has begun well.
#[derive(Debug)]
pub(super) struct Admitted {
    /// What was read ahead and is still to be read by whoever serves it.
    ahead: &'static [u8],
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
}

/// Accepts connections for as long as they are served, and pauses while none can be had.
pub(super) async fn admit_all(listener: TcpListener, admitted: mpsc::Sender<io::Result<Admitted>>) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut was_full = false;
    while !admitted.is_closed() {
        match listener.accept().await {
            Ok((stream, from)) => {
                let place = places.clone().try_acquire_owned();
                if place.is_err() != was_full {
                    was_full = !was_full;
                    tracing::warn!(was_full, limit = MOST_CONNECTIONS, "control connections");
                }
                // Without a place it is closed: who is told so tries again, who waits does not.
                let Ok(place) = place else { continue };
                let admitted = admitted.clone();
                tokio::spawn(async move {
                    match timeout(PREFACE_TIMEOUT, admit(stream, place)).await {
                        // The server is gone where nobody takes it.
                        Ok(Ok(connection)) => drop(admitted.send(Ok(connection)).await),
                        Ok(Err(error)) => tracing::debug!(%from, %error, "no control connection"),
                        Err(_) => tracing::debug!(%from, "no preface within {PREFACE_TIMEOUT:?}"),
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "no control connection can be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn admit(mut stream: TcpStream, place: OwnedSemaphorePermit) -> io::Result<Admitted> {
    // Small messages both ways: one that cannot be told so is slower, no more.
    let _ = stream.set_nodelay(true);
    let mut found = [0; PREFACE.len()];
    stream.read_exact(&mut found).await?;
    if found != *PREFACE {
        return Err(io::Error::other("it does not begin as HTTP/2 does"));
    }
    Ok(Admitted { ahead: PREFACE, stream, _place: place })
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
