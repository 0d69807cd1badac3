//! After its end, a server has left nothing behind. In a process of its own: others' threads and
//! sockets are not counted.

use std::io::Write as _;
use std::time::{Duration, Instant};

use kvferry_engine::bootstrap::Bootstrap;
use kvferry_engine::{Engine, Registry};
use kvferry_tests::bootstrap::http::{connect, get};
use kvferry_tests::command::{Answer, Command, Setup};
use kvferry_tests::process::{Cache, Process};

const SOON: Duration = Duration::from_secs(3);

#[test]
fn an_engine_that_shuts_down_takes_its_server_and_its_connections_with_it() {
    let before = {
        let mut process = Process::start();
        assert!(matches!(process.tell(&Command::Shutdown { patience_ms: 500 }), Answer::Ok));
        process.held()
    };
    let setup = Setup { bootstrap: Some("127.0.0.1:0".into()), ..Setup::default() };
    let mut process = Process::start_with(setup, Cache::default());
    let server = process.bootstrap.clone().unwrap();
    let mut open: Vec<_> = (0..20).map(|_| connect(&server)).collect();
    for stream in &mut open {
        stream.write_all(b"POST /register HTTP/1.1\r\nContent-Length: 500\r\n\r\n{").unwrap();
    }
    assert_eq!(get(&server, "/health").status, 200);
    let began = Instant::now();
    assert!(matches!(process.tell(&Command::Shutdown { patience_ms: 500 }), Answer::Ok));
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    process.await_held("given back", |held| {
        (held.descriptors, held.threads) == (before.descriptors, before.threads)
    });
}

#[test]
fn a_server_on_its_own_thread_is_gone_when_the_drop_returns() {
    let server = Bootstrap::builder().listen("127.0.0.1:0").start_blocking().unwrap();
    let address = server.address().to_string();
    let mut open = connect(&address);
    open.write_all(b"GET /query HTTP/1.1\r\nX: ").unwrap();
    let began = Instant::now();
    drop(server);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    std::net::TcpStream::connect(&address).unwrap_err();
    // The port is free again.
    let again = Bootstrap::builder().listen(&address).start_blocking().unwrap();
    assert_eq!(get(&again.address().to_string(), "/health").status, 200);
}

#[test]
fn a_server_on_anothers_runtime_ends_when_it_is_dropped() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let builder = Bootstrap::builder().listen("127.0.0.1:0").runtime(runtime.handle().clone());
    let server = builder.start_blocking().unwrap();
    let address = server.address().to_string();
    assert_eq!(get(&address, "/health").status, 200);
    let tasks = runtime.metrics().num_alive_tasks();
    assert!(tasks > 0);
    let _open = connect(&address);
    drop(server);
    let began = Instant::now();
    while runtime.metrics().num_alive_tasks() > 0 {
        assert!(began.elapsed() < SOON, "{} tasks", runtime.metrics().num_alive_tasks());
        std::thread::sleep(Duration::from_millis(5));
    }
    std::net::TcpStream::connect(&address).unwrap_err();
}

#[test]
fn settings_that_cannot_work_and_ports_that_are_taken_are_errors() {
    let builder = || Bootstrap::builder().listen("127.0.0.1:0");
    let zero = Duration::ZERO;
    for (builder, part) in [
        (builder().connections(0), "connections = 0"),
        (builder().read_timeout(zero), "read_timeout = 0"),
        (builder().forget(zero, zero), "probe_every (ms) = 0"),
        (builder().listen("127.0.0.1:65536"), "the port is not a number"),
        (builder().listen("[::1"), "the bracket is not closed"),
        (builder().advertise("0.0.0.0:0"), "a wildcard names nobody"),
    ] {
        let error = builder.start_blocking().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let server = builder().start_blocking().unwrap();
    let address = server.address().to_string();
    let error = Bootstrap::builder().listen(&address).start_blocking().unwrap_err();
    assert!(error.to_string().contains(&format!("cannot listen on {address}")), "{error}");
    // An engine does not start without the server that it was told to have.
    let beside = Bootstrap::builder().listen(&address);
    let engine = Engine::builder(Registry::new()).listen("127.0.0.1:0").bootstrap(beside);
    let error = engine.start_blocking().unwrap_err();
    assert!(error.to_string().contains(&format!("cannot listen on {address}")), "{error}");
}
