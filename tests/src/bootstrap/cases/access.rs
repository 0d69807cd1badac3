//! Tokens, bounds, and the names that a server has.

use serde_json::Value;

use crate::bootstrap::http::{get, post, query, register};
use crate::bootstrap::server::{Options, Start};
use crate::bootstrap::worker::{Worker, registration};

/// Writes are closed, reads are open.
pub fn only_who_shows_the_token_registers_and_everybody_may_ask(start: Start<'_>) {
    let server = start(Options { token: Some("s3cret".into()), ..Options::default() });
    let address = server.address();
    let body = Worker::start().registration("a", [0, 0, 0]).to_string();
    for header in [
        "",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer s3cre\r\n",
        "Authorization: Bearer s3crets\r\n",
        "Authorization: Bearer S3CRET\r\n",
        "Authorization: Basic s3cret\r\n",
        "X-Authorization: Bearer s3cret\r\n",
    ] {
        let refused = post(&address, &body, header);
        refused.refused(401, "needs this server's token");
        assert!(refused.head.contains("www-authenticate: bearer"), "{refused:?}");
        assert!(!refused.body.contains("s3cret"), "{refused:?}");
    }
    // Who may not register is not told what is wrong with the registration.
    assert_eq!(post(&address, "garbage", "").status, 401);
    assert_eq!(query(&address).body, "{}");
    assert_eq!(get(&address, "/health").status, 200);
    post(&address, &body, "Authorization: bearer s3cret\r\n").accepted();
    assert_eq!(query(&address).json()["0"]["engine_id"], "a");
}

/// One server on every address; the address that it gives out is none that names nobody.
pub fn a_server_is_reached_by_every_name_that_it_has(start: Start<'_>) {
    let server = start(Options { listen: "[::]:0".into(), ..Options::default() });
    let address = server.address();
    assert!(!address.starts_with("[::]"), "{address}");
    let port = address.rsplit(':').next().expect("a port");
    for host in ["[::1]", "127.0.0.1", "localhost"] {
        let answer = get(&format!("{host}:{port}"), "/health");
        assert_eq!(answer.status, 200, "{host}");
    }
    for listen in ["[::1]:0", "[::1%1]:0", "localhost:0", "127.0.0.1:0"] {
        let server = start(Options { listen: listen.into(), ..Options::default() });
        let (host, _) = listen.rsplit_once(':').expect("a port");
        let address = server.address();
        assert!(address.starts_with(&format!("{host}:")), "{address}");
        assert!(!address.ends_with(":0"), "{address}");
        assert_eq!(get(&address, "/health").status, 200, "{address}");
    }
}

/// Also those that it has may repeat themselves.
pub fn a_full_table_refuses_more_and_serves_those_it_has(start: Start<'_>) {
    let server = start(Options { workers: 8, ..Options::default() });
    let address = server.address();
    let worker = Worker::start();
    let at = |tp| registration("a", [0, tp, 0], &worker.address());
    for tp in 0..8 {
        register(&address, &at(tp)).accepted();
    }
    register(&address, &registration("b", [1, 0, 0], &worker.address()))
        .refused(503, "the table is full: it has 8 workers");
    register(&address, &at(7)).accepted();
    let table = query(&address).json();
    assert_eq!(table["0"]["worker_addr"].as_object().map(serde_json::Map::len), Some(8));
    assert_eq!(table["1"], Value::Null);
}
