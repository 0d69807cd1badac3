//! What is answered to which request on the metrics port.

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use kvferry_proto::pool::{
    Key, Matching, Outcome, Placed, RemoveMatching, SegmentState, SegmentStatus, Tenant,
};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::{Refusal, answer, probe, structured, text};
use crate::query::Query;
use crate::server::desk::Desk;
use crate::server::metrics::state;
use crate::server::service::remove_matching;
use crate::state::SHARDS;

/// What all requests share.
#[derive(Clone, Debug)]
struct Shared {
    desk: Arc<Desk>,
    /// One probe at a time.
    probing: Arc<Mutex<()>>,
}

/// The routes.
pub(in crate::server) fn router(desk: Arc<Desk>) -> Router {
    let shared = Shared { desk, probing: Arc::default() };
    Router::new()
        .route("/metrics", get(metrics))
        .route("/metrics/summary", get(summary))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/role", get(async || text("leader")))
        .route("/ha_status", get(ha_status))
        .route("/leader", get(leader))
        .route("/query_key", get(query_key))
        .route("/batch_query_keys", get(batch_query_keys))
        .route("/get_all_keys", get(get_all_keys))
        .route("/get_all_segments", get(get_all_segments))
        .route("/get_segments_detail", get(get_segments_detail))
        .route("/query_segment", get(query_segment))
        .route("/api/v1/segments/status", get(get_segments_detail))
        .route("/api/v1/remove_all", post(remove_all))
        .fallback(async || {
            Refusal::new(StatusCode::NOT_FOUND, "no such page: docs/pool.md lists them")
        })
        .method_not_allowed_fallback(async || {
            let why = "not by this method: docs/pool.md lists them";
            Refusal::new(StatusCode::METHOD_NOT_ALLOWED, why)
        })
        .with_state(shared)
}

/// What needs the whole state is refused while it is being rebuilt.
fn serving(desk: &Desk) -> Result<(), Refusal> {
    if desk.pool.is_recovering(desk.now()) {
        let why = Outcome::Recovering.to_string();
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, why));
    }
    Ok(())
}

async fn metrics(State(shared): State<Shared>) -> Response {
    let desk = &shared.desk;
    answer(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", desk.metrics.text(desk))
}

async fn summary(State(shared): State<Shared>) -> Response {
    text(shared.desk.metrics.summary(&shared.desk))
}

/// Alive: while it is being shut down it is not, and says what is still under way.
async fn health(State(shared): State<Shared>) -> Response {
    let desk = &shared.desk;
    let status = if desk.is_closing() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let word = if desk.is_closing() { "draining" } else { "ok" };
    let body = json!({
        "status": word,
        "role": "leader",
        "state": state(desk),
        "service_ready": state(desk) == "serving",
        "pending": desk.pool.totals().writing,
    });
    structured(status, &body)
}

async fn ready(State(shared): State<Shared>) -> Response {
    let _turn = shared.probing.lock().await;
    match probe::ready(&shared.desk).await {
        Ok(body) => structured(StatusCode::OK, &body),
        Err(why) => {
            let body = json!({ "ready": false, "why": why });
            structured(StatusCode::SERVICE_UNAVAILABLE, &body)
        }
    }
}

async fn ha_status(State(shared): State<Shared>) -> Response {
    text(state(&shared.desk))
}

async fn leader() -> Response {
    structured(StatusCode::OK, &json!({ "present": true, "is_single": true }))
}

fn replica(placed: &Placed, offset: u64, length: u64) -> Value {
    json!({
        "segment": placed.lent.name,
        "segment_id": placed.lent.segment.to_string(),
        "owner": placed.owner.to_string(),
        "host": placed.host,
        "transport_endpoint": placed.lent.address,
        "offset": offset,
        "size": length,
    })
}

fn described(desk: &Desk, tenant: &Tenant, key: &Key) -> Result<Value, Refusal> {
    let found = desk.pool.query(desk.now(), tenant, key);
    let status = found.map_err(|why| {
        let code = match why {
            Outcome::Recovering => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::NOT_FOUND,
        };
        Refusal::new(code, why.to_string())
    })?;
    let length = status.length;
    let replicas: Vec<Value> =
        status.replicas.iter().map(|(placed, offset)| replica(placed, *offset, length)).collect();
    Ok(json!({
        "key": key.as_str(),
        "tenant": tenant.as_str(),
        "size": length,
        "version": status.version.to_string(),
        "checksum": status.checksum,
        "leased": status.is_leased,
        "pinned": status.is_pinned,
        "replicas": replicas,
    }))
}

async fn query_key(
    State(shared): State<Shared>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let query = Query::new(query.as_deref());
    let described = described(&shared.desk, &query.tenant()?, &query.key()?)?;
    Ok(structured(StatusCode::OK, &described))
}

async fn batch_query_keys(
    State(shared): State<Shared>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let query = Query::new(query.as_deref());
    let tenant = query.tenant()?;
    let mut found = serde_json::Map::new();
    for (text, key) in query.keys()? {
        let value = key.and_then(|key| described(&shared.desk, &tenant, &key).ok());
        found.insert(text, value.unwrap_or(Value::Null));
    }
    Ok(structured(StatusCode::OK, &Value::Object(found)))
}

/// One key a line, those with control characters as JSON has strings; or all as JSON with
/// `?format=json`.
async fn get_all_keys(
    State(shared): State<Shared>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let desk = shared.desk.clone();
    serving(&desk)?;
    let query = Query::new(query.as_deref());
    let (tenant, limit, is_json) = (query.tenant()?, query.limit()?, query.is_json());
    let Ok(_turn) = desk.looking_through.acquire().await else {
        let why = Outcome::Closing.to_string();
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, why));
    };
    let at = desk.clone();
    // It looks at all objects: elsewhere than where probes are answered.
    let listed = tokio::task::spawn_blocking(move || {
        let mut keys: Vec<String> = Vec::new();
        for shard in 0..SHARDS {
            if keys.len() >= limit {
                break;
            }
            at.pool.each_key(shard, &tenant, |key| {
                if keys.len() < limit {
                    keys.push(String::from_utf8_lossy(key).into_owned());
                }
            });
        }
        keys
    });
    let Ok(keys) = listed.await else {
        return Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "listing failed"));
    };
    if is_json {
        return Ok(structured(StatusCode::OK, &json!({ "keys": keys })));
    }
    let mut lines = String::new();
    for key in keys {
        if key.contains(char::is_control) {
            lines.extend([Value::from(key).to_string().as_str(), "\n"]);
        } else {
            lines.extend([key.as_str(), "\n"]);
        }
    }
    Ok(text(lines))
}

async fn get_all_segments(State(shared): State<Shared>) -> Result<Response, Refusal> {
    serving(&shared.desk)?;
    let mut lines = String::new();
    for status in shared.desk.pool.segments() {
        if matches!(status.state, SegmentState::Alive | SegmentState::Suspect) {
            lines.extend([status.placed.lent.name.as_str(), "\n"]);
        }
    }
    Ok(text(lines))
}

fn detail(status: &SegmentStatus) -> Value {
    let Placed { owner, lent, host } = &status.placed;
    json!({
        "segment_name": lent.name,
        "segment_id": lent.segment.to_string(),
        "client_id": owner.to_string(),
        "host": host,
        "te_endpoint": lent.address,
        "size_bytes": lent.length,
        "allocator_used_bytes": status.used,
        "allocator_capacity_bytes": lent.length,
        "status": status.state.to_string(),
    })
}

async fn get_segments_detail(State(shared): State<Shared>) -> Response {
    let segments: Vec<Value> = shared.desk.pool.segments().iter().map(detail).collect();
    structured(StatusCode::OK, &json!({ "total_segments": segments.len(), "segments": segments }))
}

async fn query_segment(
    State(shared): State<Shared>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    serving(&shared.desk)?;
    let name = Query::new(query.as_deref()).segment()?;
    let segments = shared.desk.pool.segments();
    let named = segments.iter().filter(|status| status.placed.lent.name == name);
    let sums = named.fold(None, |sums: Option<(u64, u64)>, status| {
        let (used, length) = sums.unwrap_or_default();
        Some((used + status.used, length + status.placed.lent.length))
    });
    match sums {
        Some((used, length)) => {
            Ok(text(format!("{name}\nUsed(bytes): {used}\nCapacity(bytes) : {length}\n")))
        }
        None => {
            let why = format!("no segment is called {name:?}");
            Err(Refusal::new(StatusCode::NOT_FOUND, why))
        }
    }
}

async fn remove_all(
    State(shared): State<Shared>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let query = Query::new(query.as_deref());
    let (tenant, force) = (query.tenant()?, query.force());
    let remove = RemoveMatching { tenant, matching: Matching::All, force };
    match remove_matching(&shared.desk, remove).await {
        Ok(done) => {
            let body = json!({
                "removed": done.removed, "kept": done.kept, "recorded": done.is_recorded
            });
            Ok(structured(StatusCode::OK, &body))
        }
        Err(status) => Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, status.message())),
    }
}
