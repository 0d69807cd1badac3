//! The program: its flags, its ports, its end.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kvferry_proto::Incarnation;
use kvferry_proto::pool::{Beat, Join};
use kvferry_proto::rpc::pool as rpc;
use kvferry_proto::rpc::pool::heartbeats_client::HeartbeatsClient;
use kvferry_proto::rpc::pool::pool_client::PoolClient;
use rustix::process::{Pid, Signal, kill_process};

use super::client::{SOON, connect};
use super::http;

struct Program {
    child: Child,
    clients: SocketAddr,
    metrics: SocketAddr,
    metadata: SocketAddr,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kv-master"));
    command.args(arguments).stderr(Stdio::piped()).env("RUST_LOG", "info").env("NO_COLOR", "1");
    command
}

/// Starts it as launchers do, on free ports, and reads in the log which those are.
fn start(more: &[&str]) -> Program {
    let mut arguments = vec![
        "--port=0",
        "--rpc_address=127.0.0.1",
        "--enable_http_metadata_server=true",
        "--http_metadata_server_port=0",
        "--http_metadata_server_host=127.0.0.1",
        "--eviction_high_watermark_ratio=0.9",
        "--default_kv_lease_ttl=10000",
        "--rpc_thread_num=16",
        "--enable_metric_reporting=true",
        "--metrics_port=0",
        "--metrics_host=127.0.0.1",
        "--recovery_window_ms=0",
    ];
    arguments.extend(more);
    let mut child = command(&arguments).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("master started") {
        line.clear();
        assert_ne!(log.read_line(&mut line).unwrap(), 0, "it ended without having started");
    }
    // The log is read on, so that it never blocks.
    std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    let address = |name: &str| {
        let rest = line.split_once(name).unwrap().1;
        let end = rest.find([' ', ')', '\n']).unwrap_or(rest.len());
        rest[..end].parse().unwrap()
    };
    Program {
        clients: address("clients="),
        metrics: address("metrics="),
        metadata: address("metadata=Some("),
        child,
    }
}

fn send(program: &Program, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(program.child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

fn terminate(program: &Program) {
    send(program, Signal::TERM);
}

#[tokio::test]
async fn it_listens_on_all_ports_and_ends_clean_when_nothing_is_under_way() {
    let mut program = tokio::task::spawn_blocking(|| start(&[])).await.unwrap();
    connect(program.clients).await;
    assert_eq!(http::get(program.metrics, "/health").await.0, 200);
    assert_eq!(http::get(program.metadata, "/metadata?key=a").await.0, 404);
    terminate(&program);
    let status = tokio::task::spawn_blocking(move || program.child.wait().unwrap()).await.unwrap();
    assert_eq!(status.code(), Some(0));
}

/// Has one put under way with the program as it is told to end. Its exit code, once the client has
/// done as `then` says.
async fn drain(limit: &str, ends: bool) -> Option<i32> {
    let limit = format!("--drain_timeout_sec={limit}");
    let mut program = tokio::task::spawn_blocking(move || start(&[&limit])).await.unwrap();
    let mut pool = PoolClient::new(connect(program.clients).await);
    let client = Incarnation(1);
    let join = Join { client, host: String::new(), epoch: 0 };
    pool.join(rpc::JoinRequest::from(&join)).await.unwrap();
    let lent = rpc::Lent {
        segment: 1,
        address: "a:1".to_owned(),
        length_bytes: 1 << 20,
        ..Default::default()
    };
    let part = rpc::MountPart { client: 1, lent: Some(lent), is_fenced: true, held: Vec::new() };
    pool.mount(tokio_stream::iter([part])).await.unwrap();
    let put = |key: &'static str| rpc::PutStartRequest {
        client: 1,
        puts: vec![rpc::Put { key: key.into(), length_bytes: 10, group: String::new() }],
        ..Default::default()
    };
    let started = pool.put_start(put("a")).await.unwrap().into_inner();
    terminate(&program);
    // It says that it is draining, and takes on nothing new.
    let metrics = program.metrics;
    loop {
        let (status, body) = http::get(metrics, "/health").await;
        if status == 503 {
            assert!(body.contains("\"pending\":1"), "{body}");
            break;
        }
    }
    let refused = pool.put_start(put("b")).await.unwrap().into_inner();
    assert_eq!(refused.reserved[0].outcome, i32::from(rpc::Outcome::Closing));
    if ends {
        let version = started.reserved[0].version;
        let ended = rpc::Ended { key: "a".into(), version, ..Default::default() };
        let end = rpc::PutEndRequest { client: 1, puts: vec![ended], ..Default::default() };
        let ended = pool.put_end(end).await.unwrap().into_inner();
        assert_eq!(ended.outcomes, [i32::from(rpc::Outcome::Ok)]);
    }
    let status = tokio::task::spawn_blocking(move || program.child.wait().unwrap()).await.unwrap();
    status.code()
}

#[tokio::test]
async fn told_to_end_it_waits_for_puts_that_are_under_way() {
    assert_eq!(drain("60", true).await, Some(0));
}

#[tokio::test]
async fn told_to_end_it_waits_no_longer_than_it_may_and_its_exit_code_says_so() {
    assert_eq!(drain("1", false).await, Some(3));
}

#[test]
fn a_port_that_is_taken_and_a_flag_that_is_not_there_are_errors_that_say_so() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for flag in ["--port", "--heartbeat-port", "--metrics_port", "--http_metadata_server_port"] {
        let mut ports = BTreeMap::from([
            ("--port", "0"),
            ("--heartbeat-port", "0"),
            ("--metrics_port", "0"),
            ("--http_metadata_server_port", "0"),
        ]);
        ports.insert(flag, &port);
        let mut arguments = vec![
            "--rpc_address=127.0.0.1",
            "--metrics_host=127.0.0.1",
            "--http_metadata_server_host=127.0.0.1",
            "--enable_http_metadata_server",
        ];
        arguments.extend(ports.into_iter().flat_map(|(flag, port)| [flag, port]));
        let ended = command(&arguments).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success(), "{flag}");
        assert!(said.contains(&port) && said.contains("another program has the port"), "{said}");
    }

    let ended = command(&["--evicton_ratio=0.1"]).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("--eviction-ratio"), "{said}");
    let ended = command(&["--enable_ha=true"]).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("enable-ha"), "{said}");
}

#[tokio::test]
async fn a_master_that_was_stopped_for_longer_than_leases_last_expires_nobody_when_it_is_woken() {
    const LEASE: Duration = Duration::from_secs(2);
    let ttl = format!("--client_ttl={}", LEASE.as_secs());
    let program = tokio::task::spawn_blocking(move || start(&[&ttl])).await.unwrap();
    let mut pool = PoolClient::new(connect(program.clients).await);
    let mut living = tokio::task::JoinSet::new();
    for client in 1..=20 {
        let join = Join { client: Incarnation(client), host: String::new(), epoch: 0 };
        let joined = pool.join(rpc::JoinRequest::from(&join)).await.unwrap().into_inner();
        let lent = rpc::Lent {
            segment: client,
            address: "a:1".to_owned(),
            length_bytes: 1 << 20,
            ..Default::default()
        };
        let part = rpc::MountPart { client, lent: Some(lent), is_fenced: true, held: Vec::new() };
        pool.mount(tokio_stream::iter([part])).await.unwrap();
        let port = u16::try_from(joined.heartbeat_port).unwrap();
        let at = SocketAddr::new(program.clients.ip(), port);
        let mut beats = HeartbeatsClient::new(connect(at).await);
        let master = Incarnation(joined.master);
        let beat = Beat { client: Incarnation(client), master };
        living.spawn(async move {
            loop {
                let answer = beats.beat(rpc::BeatRequest::from(beat)).await.unwrap().into_inner();
                assert!(answer.is_known, "{client} was forgotten");
                tokio::time::sleep(LEASE / 20).await;
            }
        });
    }
    let states = async |program: &Program| {
        let (status, body) = http::get(program.metrics, "/get_segments_detail").await;
        assert_eq!(status, 200);
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        let segments = body["segments"].as_array().unwrap().clone();
        assert_eq!(segments.len(), 20);
        segments.into_iter().map(|segment| segment["status"].as_str().unwrap().to_owned())
    };
    send(&program, Signal::STOP);
    tokio::time::sleep(LEASE * 2).await;
    send(&program, Signal::CONT);
    // Until it has looked more than once, and has heard everybody.
    let (woken, mut alive) = (Instant::now(), 0);
    while woken.elapsed() < LEASE / 2 || alive < 20 {
        let states: Vec<String> = states(&program).await.collect();
        assert!(!states.iter().any(|state| state == "expired"), "{states:?}");
        alive = states.iter().filter(|state| *state == "alive").count();
        assert!(woken.elapsed() < SOON, "{states:?}");
    }
    // Whoever has panicked was told that it is not known.
    assert!(living.try_join_next().is_none());
}
