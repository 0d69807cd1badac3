//! HTTP: probes, figures, queries; and a small store of metadata.
//!
//! | file | what stands there |
//! |---|---|
//! | `connections` | how many connections there may be, and for how long |
//! | `routes` | what is answered to which request on the metrics port |
//! | `probe` | whether a put works |
//! | `metadata` | the store of metadata, on its own port |

pub(super) mod connections;
pub(super) mod metadata;
mod probe;
pub(super) mod routes;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::query::BadQuery;

/// How much an error says, in characters: it may quote what was sent.
const ERROR_CHARS: usize = 1000;

fn answer(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn text(body: impl Into<Body>) -> Response {
    answer(StatusCode::OK, "text/plain; charset=utf-8", body)
}

fn structured(status: StatusCode, value: &serde_json::Value) -> Response {
    answer(status, "application/json", value.to_string())
}

/// An answer that is no success, and why.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    why: String,
}

impl Refusal {
    fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self { status, why: why.into() }
    }
}

impl From<BadQuery> for Refusal {
    fn from(why: BadQuery) -> Self {
        Self::new(StatusCode::BAD_REQUEST, why.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let why: String = self.why.chars().take(ERROR_CHARS).collect();
        structured(self.status, &json!({ "error": why }))
    }
}
