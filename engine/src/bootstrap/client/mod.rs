//! The client: for workers that register, and whoever looks for them.
//!
//! | file | what stands there |
//! |---|---|
//! | `exchange` | one request and its answer |
//! | `held` | a registration that is renewed for as long as it is wanted |
//! | `error` | what can go wrong |

mod error;
mod exchange;
mod held;

use std::time::{Duration, Instant};

pub use error::ClientError;
use exchange::{Reply, exchange};
pub use held::Held;
use hyper::{Method, StatusCode};
use tokio::time::{sleep, timeout};

use super::address::server_address;
use super::registration::Registration;
use super::table::Listing;
use super::token::Token;
use crate::error::Error;
use crate::net::Endpoint;
use crate::time;

/// The first wait after a failure; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// The longest wait after a failure.
const MOST_WAIT: Duration = Duration::from_secs(2);

/// A client of one bootstrap server. It holds no connection: each request has its own.
///
/// Its futures need a tokio runtime; [`Client::hold`] needs none.
#[derive(Clone, Debug)]
pub struct Client {
    server: Endpoint,
    token: Option<Token>,
    attempt: Duration,
    patience: Duration,
}

impl Client {
    /// A client of the server at `HOST:PORT`, `[IPV6]:PORT` or either behind `http://`.
    ///
    /// # Errors
    /// [`Error::Address`] where the text is no such address.
    pub fn new(server: &str) -> Result<Self, Error> {
        Ok(Self {
            server: server_address(server)?,
            token: None,
            attempt: Duration::from_secs(5),
            patience: Duration::from_secs(30),
        })
    }

    /// The token to show. Default: none.
    #[must_use]
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// How long one attempt may take. Default 5 s; a server may take 3 s to find out whether
    /// whoever is in the way is alive.
    #[must_use]
    pub fn attempt(mut self, limit: Duration) -> Self {
        self.attempt = limit;
        self
    }

    /// How long a call may take in all, with repeats where the server cannot be reached or is not
    /// ready. Default 30 s; zero: one attempt.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The server.
    #[must_use]
    pub fn server(&self) -> &Endpoint {
        &self.server
    }

    /// Registers once. A registration with a lease has to be repeated, which
    /// [`Client::hold`] does.
    ///
    /// # Errors
    /// [`ClientError`] of the last attempt.
    pub async fn register(&self, registration: &Registration) -> Result<(), ClientError> {
        let body = registration.to_json();
        let reply = self.ask(Method::POST, "/register", &body).await?;
        let accepted: Result<serde_json::Value, _> = serde_json::from_slice(&reply.body);
        match accepted {
            Ok(answer) if answer["status"] == "ok" => Ok(()),
            _ => Err(self.foreign("it says that it accepts, but not that all is well")),
        }
    }

    /// Who has registered. A table that is known to be incomplete is waited for.
    ///
    /// # Errors
    /// [`ClientError`] of the last attempt.
    pub async fn query(&self) -> Result<Listing, ClientError> {
        let reply = self.ask(Method::GET, "/query", &[]).await?;
        Listing::from_json(&reply.body).map_err(|error| self.foreign(&error.to_string()))
    }

    /// [`Client::query`] on this thread, for programs without a runtime.
    ///
    /// # Errors
    /// As [`Client::query`], and [`ClientError::Thread`] where nothing can be run.
    pub fn query_blocking(&self) -> Result<Listing, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| ClientError::Thread { reason: error.to_string() })?;
        let listing = runtime.block_on(self.query());
        // A name that is being resolved must not hold up the end.
        runtime.shutdown_background();
        listing
    }

    fn foreign(&self, reason: &str) -> ClientError {
        ClientError::Foreign { server: self.server.clone(), reason: reason.into() }
    }

    /// The answer to a request, once it is a success.
    async fn ask(&self, method: Method, path: &str, body: &[u8]) -> Result<Reply, ClientError> {
        let deadline = time::after(Instant::now(), self.patience);
        let mut wait = FIRST_WAIT;
        loop {
            let error = match self.attempt_once(method.clone(), path, body).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let wait_now = spread(wait);
            if !error.is_retryable() || Instant::now() + wait_now >= deadline {
                return Err(error);
            }
            tracing::debug!(%error, ?wait_now, "asked again after a while");
            sleep(wait_now).await;
            wait = (wait * 2).min(MOST_WAIT);
        }
    }

    async fn attempt_once(
        &self,
        method: Method,
        path: &str,
        body: &[u8],
    ) -> Result<Reply, ClientError> {
        let asked = exchange(&self.server, self.token.as_ref(), method, path, body.to_vec());
        let Ok(reply) = timeout(self.attempt, asked).await else {
            return Err(ClientError::Timeout { server: self.server.clone(), limit: self.attempt });
        };
        let reply = reply?;
        if reply.status == StatusCode::OK {
            return Ok(reply);
        }
        Err(ClientError::of(&self.server, &reply))
    }
}

/// Half of a wait at the least, and the rest at random: those who failed together come again one
/// by one.
fn spread(wait: Duration) -> Duration {
    // Without randomness all wait for the same time, which still works.
    let random = getrandom::u32().unwrap_or(u32::MAX);
    let share = f64::from(random) / f64::from(u32::MAX);
    wait / 2 + (wait / 2).mul_f64(share)
}
