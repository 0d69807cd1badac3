//! One request and its answer, over a connection of its own.
//!
//! The connection is dialled here and goes straight to the server: no proxy of the environment's
//! is asked, no redirection followed, and an address with a zone, which no URL can carry, works.

use std::fmt::Display;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::error::ClientError;
use crate::bootstrap::token::Token;
use crate::net::Endpoint;

/// The most bytes of an answer: a table of 16,384 workers has about 1 MiB.
const ANSWER_BYTES: usize = 16 << 20;

/// What a server answered.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

/// Sends a request, and reads all of the answer. Bounded in length; in time by whoever drops it.
pub(super) async fn exchange(
    server: &Endpoint,
    token: Option<&Token>,
    method: Method,
    path: &str,
    body: Vec<u8>,
) -> Result<Reply, ClientError> {
    let unreachable = |error: &dyn Display| ClientError::Unreachable {
        server: server.clone(),
        reason: error.to_string(),
    };
    let stream = TcpStream::connect((server.host(), server.port()))
        .await
        .map_err(|error| unreachable(&error))?;
    // Small messages both ways: a connection that cannot be told so is slower, no more.
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| unreachable(&error))?;
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, host_header(server))
        .header(CONTENT_TYPE, "application/json")
        .header(CONNECTION, "close");
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, token.header());
    }
    let request =
        request.body(Full::new(Bytes::from(body))).map_err(|error| unreachable(&error))?;
    let answer = async move {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        Ok::<_, String>(Reply { status, body })
    };
    let (mut answer, mut connection) = (std::pin::pin!(answer), std::pin::pin!(connection));
    let mut is_open = true;
    loop {
        tokio::select! {
            answered = &mut answer => return answered.map_err(|error| unreachable(&error)),
            _ = &mut connection, if is_open => is_open = false,
        }
    }
}

/// A zone means something on this host only (RFC 6874, section 1).
fn host_header(server: &Endpoint) -> String {
    let plain = server.host().split('%').next().unwrap_or_default();
    Endpoint::new(plain, server.port()).to_string()
}
