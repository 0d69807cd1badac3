//! In-tree vLLM's own requests, and what is wrong with a registration.

use std::io::{Read as _, Write as _};

use serde_json::json;

use crate::bootstrap::http::{connect, get, post, query, register};
use crate::bootstrap::server::{Options, Start};
use crate::bootstrap::worker::{Worker, registration, with};

/// Two engines of two workers: what an in-tree client reads is what it read before.
pub fn an_in_tree_deployment_registers_and_is_found(start: Start<'_>) {
    let server = start(Options::default());
    let address = server.address();
    assert_eq!(get(&address, "/health").json(), json!({ "status": "ok" }));
    let empty = query(&address);
    assert_eq!((empty.status, &*empty.body), (200, "{}"));
    for (engine, rank, worker) in [
        ("b2", [1, 1, 0], "tcp://10.0.0.2:5001"),
        ("a1", [0, 0, 0], "tcp://10.0.0.1:5000"),
        ("b2", [1, 0, 0], "tcp://[fd00::2]:5000"),
        ("a1", [0, 1, 0], "tcp://10.0.0.1:5001"),
    ] {
        register(&address, &registration(engine, rank, worker)).accepted();
    }
    let answer = query(&address);
    assert!(answer.head.contains("content-type: application/json"), "{answer:?}");
    assert_eq!(
        answer.body,
        "{\"0\":{\"engine_id\":\"a1\",\"worker_addr\":\
         {\"0\":{\"0\":\"tcp://10.0.0.1:5000\"},\"1\":{\"0\":\"tcp://10.0.0.1:5001\"}}},\
         \"1\":{\"engine_id\":\"b2\",\"worker_addr\":\
         {\"0\":{\"0\":\"tcp://[fd00::2]:5000\"},\"1\":{\"0\":\"tcp://10.0.0.2:5001\"}}}}"
    );
}

/// The same again, with what a later version may add.
pub fn a_repeat_is_accepted_and_other_fields_are_ignored(start: Start<'_>) {
    let server = start(Options::default());
    let address = server.address();
    let worker = Worker::start();
    let plain = worker.registration("a", [0, 0, 0]);
    let extra = with(plain.clone(), &json!({ "future": { "x": [1, null] }, "tp_size": null }));
    for registration in [&plain, &plain, &extra, &plain] {
        register(&address, registration).accepted();
    }
    assert_eq!(
        query(&address).json()["0"]["worker_addr"],
        json!({ "0": { "0": worker.address() } })
    );
}

/// Each with an error that names the field.
pub fn what_is_no_registration_is_refused_with_what_is_wrong_in_it(start: Start<'_>) {
    let server = start(Options::default());
    let address = server.address();
    let good = registration("a", [0, 0, 0], "tcp://10.0.0.1:5000");
    for (field, value, part) in [
        ("dp_rank", json!(-1), "dp_rank is -1"),
        ("tp_rank", json!(16_384), "tp_rank is 16384: this server accepts 0 to 16383"),
        ("pp_rank", json!(1e30), "floating point"),
        ("dp_rank", json!("0"), "expected i64"),
        ("engine_id", json!(7), "expected a string"),
        ("engine_id", json!(""), "the length of engine_id"),
        ("engine_id", json!("e".repeat(257)), "the length of engine_id in bytes is 257"),
        ("addr", json!("10.0.0.1:5000"), "tcp://HOST:PORT"),
        ("addr", json!("tcp://10.0.0.1"), "the port is missing"),
        ("addr", json!("tcp://10.0.0.1:0"), "port 0"),
        ("addr", json!("tcp://10.0.0.1:65536"), "not a number from 0 to 65535"),
        ("addr", json!("tcp://0.0.0.0:5000"), "a wildcard names nobody"),
        ("addr", json!("tcp://[::]:5000"), "a wildcard names nobody"),
        ("addr", json!("tcp://::1:5000"), "an IPv6 address needs brackets"),
        ("addr", json!(format!("tcp://{}:1", "h".repeat(50_000))), "longer than any address"),
        ("incarnation", json!(0), "incarnation 0 means none"),
        ("incarnation", json!(1.5), "expected u64"),
        ("tp_size", json!(0), "tp_size is 0"),
        ("dp_size", json!(1025), "dp_size is 1025: this server accepts 1 to 1024"),
        ("lease_ms", json!(0), "lease_ms is 0: this server accepts 100 to 86400000"),
    ] {
        let bad = with(good.clone(), &json!({ field: value }));
        register(&address, &bad).refused(400, part);
    }
    let mut lacking = good;
    lacking.as_object_mut().expect("an object").remove("pp_rank");
    register(&address, &lacking).refused(400, "missing field `pp_rank`");
    for (body, part) in [
        ("", "EOF"),
        ("engine_id=a&dp_rank=0", "not a registration"),
        ("[]", "not a registration"),
        ("{\"engine_id\":\"\u{1}\"}", "control character"),
        ("{\"dp_rank\":0,\"dp_rank\":1}", "duplicate field"),
    ] {
        post(&address, body, "").refused(400, part);
    }
    assert_eq!(query(&address).body, "{}", "nothing of it is in the table");
}

/// Other paths and methods.
pub fn what_is_not_there_is_an_error_in_json(start: Start<'_>) {
    let server = start(Options::default());
    let address = server.address();
    for path in ["/", "/register/", "/query/x", "/%2e%2e/query", "/query%00"] {
        get(&address, path).refused(404, "there is POST /register");
    }
    get(&address, "/register").refused(405, "there is POST /register");
    let answer = get(&address, "/query?tp=0");
    assert_eq!(answer.status, 200, "a query string is ignored");
}

/// As routers that keep connections open ask.
pub fn one_connection_may_carry_several_requests(start: Start<'_>) {
    let server = start(Options::default());
    let mut stream = connect(&server.address());
    for _ in 0..3 {
        stream.write_all(b"GET /query HTTP/1.1\r\nHost: x\r\n\r\n").expect("it is open");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n{}") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("it answers");
            answer.push(byte[0]);
        }
    }
}
