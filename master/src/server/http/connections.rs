//! Connections: so many, each for a bounded time and with bounded heads.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::server::grpc::ACCEPT_PAUSE;

/// How many connections may be open to one port.
const MOST_CONNECTIONS: usize = 1024;

/// How long a head may take to arrive, and how long a connection may wait for the next request.
const HEAD: Duration = Duration::from_secs(10);

/// The most bytes of a request's head: a key of a kilobyte, every byte of it encoded, fits.
const HEAD_BYTES: usize = 16 << 10;

/// How long a connection may stay. A request that is under way then may still be answered.
const AGE: Duration = Duration::from_secs(300);

/// How long after that.
const LAST_ANSWER: Duration = Duration::from_secs(60);

/// Serves for as long as it is polled.
pub(in crate::server) async fn serve(listener: TcpListener, router: Router) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(arrived) => arrived,
            Err(error) => {
                tracing::warn!(%error, "no HTTP connection can be accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            tracing::debug!(%from, limit = MOST_CONNECTIONS, "too many HTTP connections");
            continue;
        };
        let router = router.clone();
        tokio::spawn(async move {
            converse(stream, router).await;
            drop(place);
        });
    }
}

async fn converse(stream: TcpStream, router: Router) {
    // Small messages both ways: one that cannot be told so is slower, no more.
    let _ = stream.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    // What a client breaks is its own affair.
    if timeout(AGE, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(LAST_ANSWER, connection).await;
    }
}
