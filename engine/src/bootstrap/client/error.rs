//! What can go wrong with a bootstrap server.

use std::time::Duration;

use hyper::StatusCode;
use serde::Deserialize;

use super::exchange::Reply;
use crate::net::Endpoint;

/// How much of an answer that is no error of ours is shown, in characters.
const SHOWN_CHARS: usize = 300;

/// Why a bootstrap server did not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// It cannot be reached, or the connection broke.
    #[error("bootstrap server {server} cannot be reached: {reason}")]
    Unreachable {
        /// The server.
        server: Endpoint,
        /// What failed.
        reason: String,
    },
    /// It did not answer in time.
    #[error("bootstrap server {server} did not answer within {limit:?}")]
    Timeout {
        /// The server.
        server: Endpoint,
        /// How long it had.
        limit: Duration,
    },
    /// A later incarnation has registered for the rank: this process has been replaced.
    #[error("bootstrap server {server}: {reason}")]
    Superseded {
        /// The server.
        server: Endpoint,
        /// What it says.
        reason: String,
    },
    /// It wants a token, or another one.
    #[error("bootstrap server {server} does not accept the token: {reason}")]
    Unauthorized {
        /// The server.
        server: Endpoint,
        /// What it says.
        reason: String,
    },
    /// It is not ready: ranks are missing in its table, or it has too much to do.
    #[error("bootstrap server {server} is not ready: {reason}")]
    NotReady {
        /// The server.
        server: Endpoint,
        /// What it says.
        reason: String,
    },
    /// It refuses the request.
    #[error("bootstrap server {server} refuses with status {status}: {reason}")]
    Refused {
        /// The server.
        server: Endpoint,
        /// The HTTP status.
        status: u16,
        /// What it says.
        reason: String,
    },
    /// What answers is no bootstrap server.
    #[error("{server} answers, but not as a bootstrap server: {reason}")]
    Foreign {
        /// The server.
        server: Endpoint,
        /// What is wrong with the answer.
        reason: String,
    },
    /// A registration without an incarnation or a lease cannot be held.
    #[error("a registration that is held needs {what}")]
    NotHeld {
        /// What it lacks.
        what: &'static str,
    },
    /// No attempt to register has ended yet.
    #[error("not registered within {limit:?}: the first attempt has not ended")]
    Slow {
        /// How long was waited.
        limit: Duration,
    },
    /// The system gives no thread, or nothing to wait with.
    #[error("starting what runs it: {reason}")]
    Thread {
        /// What the system says.
        reason: String,
    },
}

impl ClientError {
    /// Whether the same request may succeed later without anybody changing what it asks for.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Timeout { .. } | Self::NotReady { .. })
    }

    /// What an answer that is no success means.
    pub(super) fn of(server: &Endpoint, reply: &Reply) -> Self {
        let (server, reason) = (server.clone(), reason(&reply.body));
        match reply.status {
            StatusCode::CONFLICT => Self::Superseded { server, reason },
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Self::Unauthorized { server, reason }
            }
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                Self::NotReady { server, reason }
            }
            status if status.is_server_error() => Self::NotReady { server, reason },
            status => Self::Refused { server, status: status.as_u16(), reason },
        }
    }
}

/// What an error's body says: in-tree servers write `detail` where ours write `error`.
fn reason(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Body {
        #[serde(alias = "detail")]
        error: String,
    }
    let text = serde_json::from_slice::<Body>(body).map(|body| body.error);
    let text = text.unwrap_or_else(|_| String::from_utf8_lossy(body).into_owned());
    let shown: String = text.chars().take(SHOWN_CHARS).collect();
    // It goes to terminals and logs.
    shown.chars().map(|shown| if shown.is_control() { ' ' } else { shown }).collect()
}
