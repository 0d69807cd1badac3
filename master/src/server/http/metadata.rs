//! A small store of metadata: `/metadata?key=KEY`, as transfer engines of Mooncake's kind use it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::{Refusal, answer, text};
use crate::query::Query;

/// The most bytes of a value.
const VALUE_BYTES: usize = 1 << 20;

/// The most bytes of all keys and values.
const TOTAL_BYTES: usize = 256 << 20;

/// What an entry takes beyond its bytes, about.
const ENTRY_BYTES: usize = 128;

/// How long a value may take to arrive.
const BODY: Duration = Duration::from_secs(10);

/// Values by key.
#[derive(Debug, Default)]
struct Store {
    values: HashMap<String, Bytes>,
    bytes: usize,
}

impl Store {
    fn remove(&mut self, key: &str) -> bool {
        let removed = self.values.remove(key);
        if let Some(value) = &removed {
            self.bytes -= key.len() + value.len() + ENTRY_BYTES;
        }
        removed.is_some()
    }

    /// False where there is no room; then what was there stays.
    fn put(&mut self, key: String, value: Bytes) -> bool {
        let before = self.values.get(&key).map_or(0, |was| key.len() + was.len() + ENTRY_BYTES);
        let after = self.bytes - before + key.len() + value.len() + ENTRY_BYTES;
        if after > TOTAL_BYTES {
            return false;
        }
        self.bytes = after;
        self.values.insert(key, value);
        true
    }
}

/// The routes.
pub(in crate::server) fn router() -> Router {
    let usage = "there is GET, PUT and DELETE of /metadata?key=KEY";
    Router::new()
        .route("/metadata", get(read).put(write).delete(remove))
        .route("/health", get(async || text("OK")))
        .fallback(async move || Refusal::new(StatusCode::NOT_FOUND, usage))
        .method_not_allowed_fallback(async move || {
            Refusal::new(StatusCode::METHOD_NOT_ALLOWED, usage)
        })
        .with_state(Arc::<Mutex<Store>>::default())
}

fn not_found() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "metadata not found")
}

async fn read(
    State(store): State<Arc<Mutex<Store>>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let key = Query::new(query.as_deref()).metadata_key()?;
    let value = store.lock().values.get(&key).cloned();
    Ok(answer(StatusCode::OK, "application/json", value.ok_or_else(not_found)?))
}

async fn write(
    State(store): State<Arc<Mutex<Store>>>,
    RawQuery(query): RawQuery,
    body: Body,
) -> Result<Response, Refusal> {
    let key = Query::new(query.as_deref()).metadata_key()?;
    let value = match timeout(BODY, Limited::new(body, VALUE_BYTES).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(failed)) if failed.is::<LengthLimitError>() => {
            let why = format!("a value has {VALUE_BYTES} bytes at the most");
            return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        Ok(Err(failed)) => {
            return Err(Refusal::new(StatusCode::BAD_REQUEST, format!("the body broke: {failed}")));
        }
        Err(_) => {
            let why = format!("the body did not arrive within {BODY:?}");
            return Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, why));
        }
    };
    // What is kept is this value, and not the buffer that it is a piece of.
    let value = Bytes::copy_from_slice(&value);
    if !store.lock().put(key, value) {
        let why = format!("all metadata has {TOTAL_BYTES} bytes at the most: delete what is old");
        return Err(Refusal::new(StatusCode::INSUFFICIENT_STORAGE, why));
    }
    Ok(text("metadata updated"))
}

async fn remove(
    State(store): State<Arc<Mutex<Store>>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let key = Query::new(query.as_deref()).metadata_key()?;
    let removed = store.lock().remove(&key);
    if removed { Ok(text("metadata deleted")) } else { Err(not_found()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_counts_what_it_holds_and_refuses_what_does_not_fit() {
        let mut store = Store::default();
        let large = Bytes::from(vec![0; VALUE_BYTES]);
        let mut keys = (0..).map(|number: u32| number.to_string());
        while store.put(keys.next().unwrap(), large.clone()) {}
        assert!(store.bytes <= TOTAL_BYTES);
        let held = store.bytes;
        // Another value for a key that is there needs no more room than it is longer.
        assert!(store.put("0".to_owned(), large.slice(1..)));
        assert_eq!(store.bytes, held - 1);
        assert!(store.remove("0") && !store.remove("0"));
        assert!(store.put("new".to_owned(), Bytes::new()));
        for key in store.values.keys().cloned().collect::<Vec<_>>() {
            store.remove(&key);
        }
        assert_eq!(store.bytes, 0);
    }
}
