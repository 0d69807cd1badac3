//! Who is forgotten.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::bootstrap::http::{query, register};
use crate::bootstrap::server::{Options, Start};
use crate::bootstrap::worker::{Worker, with};

/// Renewed by repeating, and over otherwise, although the address accepts connections.
pub fn a_worker_is_forgotten_when_its_lease_is_over(start: Start<'_>) {
    let server = start(Options::default());
    let address = server.address();
    let worker = Worker::start();
    let lease = |ms: u64| with(worker.registration("a", [0, 0, 0]), &json!({ "lease_ms": ms }));
    let began = Instant::now();
    register(&address, &lease(2000)).accepted();
    server.await_table("empty", &|table| table == &json!({}));
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    register(&address, &lease(500)).accepted();
    register(&address, &lease(60_000)).accepted();
    let renewed = Instant::now();
    while renewed.elapsed() < Duration::from_secs(1) {
        assert_eq!(query(&address).json()["0"]["engine_id"], "a");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// And no sooner.
pub fn a_worker_without_a_lease_is_forgotten_when_nothing_is_at_its_address(start: Start<'_>) {
    let forget_after = Duration::from_secs(1);
    let probe_every = Duration::from_millis(100);
    let server = start(Options { probe_every, forget_after, ..Options::default() });
    let address = server.address();
    let (living, dying) = (Worker::start(), Worker::start());
    register(&address, &living.registration("a", [0, 0, 0])).accepted();
    register(&address, &dying.registration("a", [0, 1, 0])).accepted();
    drop(dying);
    let died = Instant::now();
    let table = server.await_table("without it", &|table| table["0"]["worker_addr"]["1"].is_null());
    assert!(died.elapsed() >= forget_after, "{:?}", died.elapsed());
    assert_eq!(table["0"]["worker_addr"], json!({ "0": { "0": living.address() } }));
}
