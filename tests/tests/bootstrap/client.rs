//! The client, against servers that are slow, absent, strange, or late.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use kvferry_engine::Incarnation;
use kvferry_engine::bootstrap::{
    Bootstrap, Client, ClientError, Rank, Registration, Sizes, Token, WorkerAddress,
};
use kvferry_tests::bootstrap::worker::Worker;

const SECOND: Duration = Duration::from_secs(1);

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

fn start() -> Bootstrap {
    Bootstrap::builder().listen("127.0.0.1:0").start_blocking().unwrap()
}

fn client(address: impl std::fmt::Display) -> Client {
    Client::new(&format!("{address}")).unwrap().patience(Duration::ZERO)
}

fn registration(worker: &Worker) -> Registration {
    let address: WorkerAddress = worker.address().parse().unwrap();
    Registration::new("a", Rank::default(), address)
}

/// A server of one connection that reads a request and says what it is told.
fn stranger(answer: impl Into<Vec<u8>>) -> (String, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, answer) = (listener.local_addr().unwrap().to_string(), answer.into());
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = vec![0; 4096];
        let bytes = stream.read(&mut request).unwrap();
        let _ = stream.write_all(&answer);
        String::from_utf8_lossy(&request[..bytes]).into_owned()
    });
    (address, thread)
}

fn answer(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

#[test]
fn what_is_registered_is_found_by_every_name_of_the_server() {
    let server = Bootstrap::builder().listen("[::]:0").start_blocking().unwrap();
    let port = server.address().port();
    let worker = Worker::start();
    let wanted = Registration { incarnation: Some(Incarnation(7)), ..registration(&worker) };
    for host in ["127.0.0.1", "localhost", "[::1]", "[::1%1]", "http://127.0.0.1", "http://[::1]"] {
        let client = client(format!("{host}:{port}"));
        block_on(client.register(&wanted)).unwrap();
        let listing = block_on(client.query()).unwrap();
        let found = &listing.engines[&0].workers[&0][&0];
        assert_eq!(found.address, wanted.address, "{host}");
        assert_eq!(found.incarnation, wanted.incarnation, "{host}");
    }
    for none in ["127.0.0.1:0", "127.0.0.1:65536", "[::]:1", "https://h:1", "h", "http://h:1/x"] {
        Client::new(none).unwrap_err();
    }
}

#[test]
fn an_absent_server_is_an_error_in_bounded_time_and_names_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let began = Instant::now();
    let error = block_on(client(address).patience(SECOND).query()).unwrap_err();
    assert!(began.elapsed() < 10 * SECOND);
    assert!(matches!(&error, ClientError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn a_silent_server_is_an_error_in_bounded_time() {
    // Connections come about, and nobody answers.
    let silent = Worker::start();
    let address = silent.address().replace("tcp://", "");
    let began = Instant::now();
    let error = block_on(client(address).attempt(SECOND).query()).unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    assert!(began.elapsed() >= SECOND && began.elapsed() < 10 * SECOND);
}

#[test]
fn a_server_that_comes_later_is_found() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let worker = Worker::start();
    let incarnation = Some(Incarnation(7));
    let wanted = Registration { lease: Some(60 * SECOND), incarnation, ..registration(&worker) };
    let held = client(&address).hold(wanted).unwrap();
    let began = Instant::now();
    while !matches!(held.state(), Some(Err(ClientError::Unreachable { .. }))) {
        assert!(began.elapsed() < 20 * SECOND, "{held:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    let _server = Bootstrap::builder().listen(&address).start_blocking().unwrap();
    held.wait(20 * SECOND).unwrap();
}

#[test]
fn a_query_waits_until_the_table_is_complete() {
    let server = start();
    let worker = Worker::start();
    let sizes = Sizes { tp: NonZeroU32::new(2), ..Sizes::default() };
    let first = Registration { sizes, ..registration(&worker) };
    let second = Registration { rank: Rank { tp: 1, ..Rank::default() }, ..first.clone() };
    let client = client(server.address());
    block_on(client.register(&first)).unwrap();
    let error = block_on(client.query()).unwrap_err();
    assert!(matches!(&error, ClientError::NotReady { .. }), "{error}");
    assert!(error.to_string().contains("dp 0 tp 1 pp 0"), "{error}");
    let patient = client.clone().patience(30 * SECOND);
    let asking = std::thread::spawn(move || block_on(patient.query()));
    block_on(client.register(&second)).unwrap();
    assert_eq!(asking.join().unwrap().unwrap().engines[&0].workers.len(), 2);
}

#[test]
fn what_answers_and_is_no_bootstrap_server_is_named_as_such() {
    for (reply, part) in [
        (answer("200 OK", "<html>"), "not as a bootstrap server"),
        (answer("200 OK", "{\"0\":{\"engine_id\":\"e\"}}"), "missing field `worker_addr`"),
        (answer("404 Not Found", "{\"detail\":\"Not Found\"}"), "status 404: Not Found"),
        (answer("302 Found", "elsewhere"), "status 302: elsewhere"),
        (b"SSH-2.0-OpenSSH_9.9\r\n".to_vec(), "cannot be reached"),
        (Vec::new(), "cannot be reached"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n".to_vec(), "cannot be reached"),
        (answer("500 Oops", "\u{1b}[31mred\nline"), "not ready:  [31mred line"),
    ] {
        let (address, thread) = stranger(reply);
        let error = block_on(client(&address).query()).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(&address), "{part}: {error}");
        thread.join().unwrap();
    }
    let (address, thread) = stranger(answer("200 OK", "{\"status\":\"later\"}"));
    let error = block_on(client(&address).register(&registration(&Worker::start()))).unwrap_err();
    assert!(matches!(error, ClientError::Foreign { .. }), "{error}");
    let request = thread.join().unwrap();
    assert!(request.starts_with("POST /register HTTP/1.1\r\n"), "{request}");
    assert!(request.to_lowercase().contains(&format!("host: {address}\r\n")), "{request}");
}

#[test]
fn an_answer_is_read_up_to_a_bound() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // An answer before the request is another error.
        let _request = stream.read(&mut [0; 4096]).unwrap();
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head).unwrap();
        let chunk = format!("100000\r\n{}\r\n", "x".repeat(1 << 20));
        let mut sent = 0_u64;
        while stream.write_all(chunk.as_bytes()).is_ok() {
            sent += 1;
            assert!(sent < 1000, "it reads for ever");
        }
    });
    let error = block_on(client(address).attempt(30 * SECOND).query()).unwrap_err();
    assert!(error.to_string().contains("length limit"), "{error}");
    thread.join().unwrap();
}

#[test]
fn a_refusal_is_final_and_says_why() {
    let token = Token::new("secret").unwrap();
    let server =
        Bootstrap::builder().listen("127.0.0.1:0").token(token.clone()).start_blocking().unwrap();
    let worker = Worker::start();
    let began = Instant::now();
    let without = client(server.address()).patience(60 * SECOND);
    let error = block_on(without.register(&registration(&worker))).unwrap_err();
    assert!(matches!(error, ClientError::Unauthorized { .. }), "{error}");
    let with = without.token(token);
    block_on(with.register(&registration(&worker))).unwrap();
    let other = Worker::start();
    let error = block_on(with.register(&registration(&other))).unwrap_err();
    assert!(matches!(error, ClientError::Refused { status: 400, .. }), "{error}");
    assert!(error.to_string().contains("accepts connections"), "{error}");
    assert!(began.elapsed() < 30 * SECOND, "none of it was repeated");
}

#[test]
fn a_held_registration_is_renewed_until_it_is_dropped() {
    let server = start();
    let worker = Worker::start();
    let lease = 3 * SECOND;
    let incarnation = Some(Incarnation(7));
    let wanted = Registration { lease: Some(lease), incarnation, ..registration(&worker) };
    let held = client(server.address()).hold(wanted).unwrap();
    held.wait(20 * SECOND).unwrap();
    let client = client(server.address());
    let registered = Instant::now();
    while registered.elapsed() < lease * 2 {
        assert_eq!(block_on(client.query()).unwrap().engines.len(), 1);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(matches!(held.state(), Some(Ok(()))));
    drop(held);
    let dropped = Instant::now();
    while !block_on(client.query()).unwrap().engines.is_empty() {
        assert!(dropped.elapsed() < 20 * SECOND, "somebody renews it");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_worker_that_was_replaced_says_so_and_goes_on_asking() {
    let (address, thread) = stranger(answer("409 Conflict", "{\"error\":\"was replaced\"}"));
    let worker = Worker::start();
    let (lease, incarnation) = (Some(6 * SECOND), Some(Incarnation(7)));
    let held = client(&address)
        .hold(Registration { lease, incarnation, ..registration(&worker) })
        .unwrap();
    let error = held.wait(20 * SECOND).unwrap_err();
    assert!(matches!(error, ClientError::Superseded { .. }), "{error}");
    thread.join().unwrap();
    // Nobody is there any more: a further attempt has another end.
    let began = Instant::now();
    while matches!(held.state(), Some(Err(ClientError::Superseded { .. }))) {
        assert!(began.elapsed() < 20 * SECOND, "it asks no more: {held:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_cannot_be_held_is_refused_at_once() {
    let worker = Worker::start();
    let client = || client("127.0.0.1:1");
    let without = client().hold(registration(&worker)).unwrap_err();
    assert!(without.to_string().contains("a lease"), "{without}");
    let leased = Registration { lease: Some(SECOND), ..registration(&worker) };
    let without = client().hold(leased).unwrap_err();
    assert!(without.to_string().contains("an incarnation"), "{without}");
}

#[test]
fn a_held_registration_without_a_server_ends_in_bounded_time() {
    let silent = Worker::start();
    let worker = Worker::start();
    let incarnation = Some(Incarnation(7));
    let wanted = Registration { lease: Some(60 * SECOND), incarnation, ..registration(&worker) };
    let held = client(silent.address().replace("tcp://", "")).hold(wanted).unwrap();
    let began = Instant::now();
    let error = held.wait(Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, ClientError::Slow { .. }), "{error}");
    drop(held);
    assert!(began.elapsed() < 3 * SECOND, "{:?}", began.elapsed());
}
