//! What is answered to which request.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::{get, post};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::json;
use tokio::time::timeout;

use super::connections::Slot;
use super::desk::{Desk, Outcome};
use crate::bootstrap::registration::Registration;
use crate::bootstrap::table::Refusal;
use crate::bootstrap::token::Token;

/// The most bytes of a request's body: a registration has a few hundred.
const BODY_BYTES: usize = 64 << 10;

/// How much an error says, in characters: it may quote what was sent.
const ERROR_CHARS: usize = 1000;

/// What all requests share.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) desk: Arc<Desk>,
    pub(super) token: Option<Token>,
    /// How long a body may take to arrive.
    pub(super) read_timeout: Duration,
}

pub(super) fn router(shared: Shared) -> Router {
    Router::new()
        .route("/register", post(register))
        .route("/query", get(query))
        .route("/health", get(health))
        .fallback(async || {
            error(StatusCode::NOT_FOUND, "there is POST /register, GET /query and GET /health")
        })
        .method_not_allowed_fallback(async || {
            error(
                StatusCode::METHOD_NOT_ALLOWED,
                "there is POST /register, GET /query and GET /health",
            )
        })
        .with_state(shared)
}

async fn health() -> Response {
    answer(StatusCode::OK, json!({ "status": "ok" }).to_string())
}

async fn query(State(shared): State<Shared>) -> Response {
    match shared.desk.query() {
        Ok(listing) => answer(StatusCode::OK, listing.to_json()),
        Err(incomplete) => {
            let mut response = error(StatusCode::SERVICE_UNAVAILABLE, &incomplete.to_string());
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            response
        }
    }
}

async fn register(State(shared): State<Shared>, request: Request) -> Response {
    if let Some(token) = &shared.token {
        let shown = request.headers().get(header::AUTHORIZATION);
        if !shown.is_some_and(|shown| token.is_shown_by(shown.as_bytes())) {
            let mut response = error(
                StatusCode::UNAUTHORIZED,
                "registering needs this server's token: send Authorization: Bearer TOKEN",
            );
            let challenge = HeaderValue::from_static("Bearer realm=\"kvferry bootstrap\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
            return response;
        }
    }
    let slot = request.extensions().get::<Arc<Slot>>().cloned();
    let body = match read(request.into_body(), shared.read_timeout).await {
        Ok(body) => body,
        Err(response) => return response,
    };
    let registration = match Registration::from_json(&body) {
        Ok(registration) => registration,
        Err(reason) => {
            let why = format!("not a registration: {reason}");
            return error(StatusCode::BAD_REQUEST, &why);
        }
    };
    // From here on the other end has done its part.
    let _busy = slot.as_ref().map(|slot| slot.busy());
    match shared.desk.register(registration).await {
        Outcome::Accepted => answer(StatusCode::OK, json!({ "status": "ok" }).to_string()),
        Outcome::Refused(refusal) => {
            tracing::warn!(%refusal, "registration refused");
            error(status(&refusal), &refusal.to_string())
        }
        Outcome::Busy => error(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many registrations wait until it is known whether others are alive: try again",
        ),
    }
}

fn status(refusal: &Refusal) -> StatusCode {
    match refusal {
        Refusal::Superseded { .. } => StatusCode::CONFLICT,
        Refusal::Full { .. } | Refusal::Contended { .. } => StatusCode::SERVICE_UNAVAILABLE,
        Refusal::OutOfBounds { .. }
        | Refusal::OutsideOwnSize { .. }
        | Refusal::EngineClash { .. }
        | Refusal::AddressClash { .. }
        | Refusal::SizeClash { .. }
        | Refusal::OutsideSize { .. } => StatusCode::BAD_REQUEST,
    }
}

/// A whole body, within its bounds of length and time.
async fn read(body: Body, limit: Duration) -> Result<axum::body::Bytes, Response> {
    match timeout(limit, Limited::new(body, BODY_BYTES).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(failed)) if failed.is::<LengthLimitError>() => {
            let why = format!("a registration has {BODY_BYTES} bytes at the most");
            Err(error(StatusCode::PAYLOAD_TOO_LARGE, &why))
        }
        Ok(Err(failed)) => {
            Err(error(StatusCode::BAD_REQUEST, &format!("the body broke: {failed}")))
        }
        Err(_) => {
            let why = format!("the body did not arrive within {limit:?}");
            Err(error(StatusCode::REQUEST_TIMEOUT, &why))
        }
    }
}

/// In-tree callers log the text of an answer that is no success, and look no further.
fn error(status: StatusCode, why: &str) -> Response {
    let why: String = why.chars().take(ERROR_CHARS).collect();
    answer(status, json!({ "error": why }).to_string())
}

fn answer(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
