//! `kvctl bootstrap`, as processes.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use kvferry_tests::bootstrap::http::{connect, get, post, query, register};
use kvferry_tests::bootstrap::server::{Options, Server, Spawned};
use kvferry_tests::bootstrap::worker::{Worker, registration, with};
use rustix::process::Signal;
use serde_json::{Value, json};

fn kvctl() -> PathBuf {
    env!("CARGO_BIN_EXE_kvctl").into()
}

fn spawn(options: Options) -> Spawned {
    Spawned::start(kvctl(), options)
}

fn boxed(options: Options) -> Box<dyn Server> {
    Box::new(spawn(options))
}

mod process {
    kvferry_tests::bootstrap_cases!(super::boxed);
}

/// Runs a command to its end, with these further variables.
fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut program = Command::new(kvctl());
    program.args(["bootstrap"]).args(arguments).env_remove("KVFERRY_BOOTSTRAP_TOKEN");
    program.envs(variables.iter().copied()).stdin(Stdio::null()).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[track_caller]
fn fails(output: &Output, part: &str) {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.starts_with("kvctl: ") && said.contains(part), "{part:?} is not in {said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_signal_ends_it_soon_and_well_with_connections_open_too() {
    for (signal, name) in [(Signal::TERM, "SIGTERM"), (Signal::INT, "SIGINT")] {
        let mut server = spawn(Options::default());
        let mut open: Vec<_> = (0..20).map(|_| connect(&server.address())).collect();
        for stream in &mut open {
            stream
                .write_all(b"POST /register HTTP/1.1\r\nContent-Length: 9\r\n\r\n{")
                .expect("open");
        }
        assert_eq!(get(&server.address(), "/health").status, 200);
        server.signal(signal);
        let (status, took) = server.wait();
        assert!(status.success(), "{name}: {status}");
        assert!(took < Duration::from_secs(3), "{name}: {took:?}");
    }
}

#[test]
fn a_server_that_is_stopped_keeps_nobody_waiting_for_ever_and_goes_on_when_it_wakes() {
    let server = spawn(Options::default());
    let address = server.address();
    let worker = Worker::start();
    register(&address, &worker.registration("a", [0, 0, 0])).accepted();
    server.stop();
    let began = Instant::now();
    fails(&run(&["query", &address], &[]), "did not answer within 5s");
    assert!(began.elapsed() < Duration::from_secs(20));
    server.signal(Signal::CONT);
    server.await_table("whole", &|table| table["0"]["worker_addr"]["0"]["0"] == worker.address());
}

/// In-tree workers as processes: a process that listens is all that a server sees of one.
#[test]
fn a_worker_process_keeps_its_rank_while_it_is_stopped_and_loses_it_when_it_is_killed() {
    let probe_every = Duration::from_millis(50);
    let forget_after = Duration::from_millis(500);
    let server = spawn(Options { probe_every, forget_after, ..Options::default() });
    let address = server.address();
    let mut worker = spawn(Options::default());
    let at = format!("tcp://{}", worker.address());
    let other = Worker::start();
    register(&address, &registration("a", [0, 0, 0], &at)).accepted();
    worker.stop();
    register(&address, &other.registration("a", [0, 0, 0])).refused(400, "accepts connections");
    let began = Instant::now();
    while began.elapsed() < forget_after * 3 {
        assert_eq!(query(&address).json()["0"]["worker_addr"]["0"]["0"], at);
        std::thread::sleep(probe_every);
    }
    worker.signal(Signal::KILL);
    worker.wait();
    server.await_table("empty", &|table| table == &json!({}));
    register(&address, &other.registration("b", [0, 0, 0])).accepted();
}

#[test]
fn query_shows_who_has_registered() {
    let server = spawn(Options { listen: "[::1]:0".into(), ..Options::default() });
    let address = server.address();
    let output = run(&["query", &address], &[]);
    assert_eq!(text(&output.stdout), "Nobody has registered.\n");
    assert!(output.status.success());
    let named = with(
        registration("prefill\u{1b}[31m-0", [0, 1, 0], "tcp://10.0.0.1:5001"),
        &json!({ "incarnation": 255 }),
    );
    register(&address, &named).accepted();
    register(&address, &registration("prefill-1", [1, 0, 0], "tcp://[fd00::2]:5000")).accepted();
    let output = run(&["query", &format!("http://{address}/")], &[]);
    assert_eq!(
        text(&output.stdout),
        "DP  TP  PP  ADDRESS               INCARNATION       ENGINE\n\
         0   1   0   tcp://10.0.0.1:5001   00000000000000ff  prefill\\u{1b}[31m-0\n\
         1   0   0   tcp://[fd00::2]:5000  -                 prefill-1\n\
         \n2 engines, 2 workers\n"
    );
    let output = run(&["query", "--json", &address], &[]);
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json, query(&address).json());
    // A zone, here that of the loopback interface.
    let zoned = address.replace("::1", "::1%1");
    assert!(run(&["query", &zoned], &[]).status.success());
}

#[test]
fn a_table_that_is_not_complete_is_status_1_and_can_be_waited_for() {
    let server = spawn(Options::default());
    let address = server.address();
    let sized = |rank| {
        with(registration("a", rank, "tcp://10.0.0.1:5000"), &json!({ "tp_size": 2, "pp_size": 1 }))
    };
    register(&address, &sized([0, 0, 0])).accepted();
    let output = run(&["query", &address], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("1 ranks have not registered yet: dp 0 tp 1 pp 0"));
    let output = run(&["query", "--json", &address], &[]);
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(json["error"].is_string());
    let waiting = Command::new(kvctl())
        .args(["bootstrap", "query", "--wait", "30", &address])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    register(&address, &sized([0, 1, 0])).accepted();
    let output = waiting.wait_with_output().expect("it ends");
    assert!(text(&output.stdout).contains("1 engine, 2 workers"), "{output:?}");
}

#[test]
fn what_cannot_be_asked_is_status_2_with_what_is_wrong() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("it is bound").to_string();
    drop(free);
    for (address, part) in [
        (&*address, "refused"),
        ("127.0.0.1:0", "port 0 is none"),
        ("127.0.0.1:65536", "not a number from 0 to 65535"),
        ("[::]:8998", "a wildcard names nobody"),
        ("::1:8998", "an IPv6 address needs brackets"),
        ("https://127.0.0.1:8998", "http, not https"),
    ] {
        fails(&run(&["query", address], &[]), part);
    }
}

#[test]
fn proxies_of_the_environment_are_not_asked() {
    let server = spawn(Options::default());
    let nobody = "http://127.0.0.1:1";
    let proxies = ["http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    let proxies: Vec<_> = proxies.into_iter().map(|name| (name, nobody)).collect();
    let output = run(&["query", &server.address()], &proxies);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_token_that_cannot_be_had_keeps_the_server_from_starting() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("token");
    let path = file.to_str().expect("a path");
    let serve = ["serve", "--listen", "127.0.0.1:0", "--token-file", path];
    fails(&run(&serve, &[]), "the token cannot be read from");
    fs::write(&file, "\n").expect("a file");
    fails(&run(&serve, &[]), "the token is empty");
    fs::write(&file, "two words").expect("a file");
    fails(&run(&serve, &[]), "a token has up to 4096 letters");
    let empty = [("KVFERRY_BOOTSTRAP_TOKEN", "")];
    fails(&run(&serve[..3], &empty), "KVFERRY_BOOTSTRAP_TOKEN: the token is empty");

    // The file wins.
    fs::write(&file, "from-file\n").expect("a file");
    let mut child = Command::new(kvctl())
        .args(["bootstrap"])
        .args(serve)
        .env("KVFERRY_BOOTSTRAP_TOKEN", "from-variable")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    let stdout = child.stdout.as_mut().expect("it is piped");
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        stdout.read_exact(&mut byte).expect("it says where it listens");
        line.push(byte[0]);
    }
    let line = text(&line);
    let address = line.trim().rsplit('/').next().expect("an address");
    let body = Worker::start().registration("a", [0, 0, 0]).to_string();
    assert_eq!(post(address, &body, "Authorization: Bearer from-variable\r\n").status, 401);
    post(address, &body, "Authorization: Bearer from-file\r\n").accepted();
    child.kill().expect("it runs");
    child.wait().expect("it was started here");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("it is bound").to_string();
    fails(&run(&["serve", "--listen", &address], &[]), &format!("cannot listen on {address}"));
    fails(&run(&["serve", "--listen", "127.0.0.1:65536"], &[]), "not a number from 0 to 65535");
    fails(
        &run(&["serve", "--max-connections", "0", "--listen", "[::1]:0"], &[]),
        "connections = 0",
    );
    let usage = run(&["serve", "--forget-after", "soon"], &[]);
    assert_eq!(usage.status.code(), Some(2));
    assert!(text(&usage.stderr).contains("not a number of seconds"));
}

#[test]
fn the_log_says_who_comes_and_goes() {
    let mut child = Command::new(kvctl())
        .args(["bootstrap", "serve", "--listen", "127.0.0.1:0", "--advertise", "127.0.0.1:0"])
        .env_remove("RUST_LOG")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut first = [0; 64];
    let read = child.stdout.as_mut().expect("it is piped").read(&mut first).expect("a line");
    let line = text(&first[..read]);
    let address = line.trim().rsplit('/').next().expect("an address").to_owned();
    let leased = with(
        registration("a\nb", [0, 0, 0], "tcp://10.0.0.1:5000"),
        &json!({ "lease_ms": 100, "incarnation": 1 }),
    );
    register(&address, &leased).accepted();
    while query(&address).body != "{}" {
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    let log = text(&output.stderr);
    assert!(log.contains("bootstrap server started") && log.contains(&address), "{log}");
    assert!(log.contains("worker registered") && log.contains("\"a\\nb\""), "{log}");
    assert!(log.contains("worker forgotten: its lease is over"), "{log}");
    assert!(log.contains("security=\"off\""), "{log}");
}

#[test]
fn the_help_teaches() {
    let help = run(&["serve", "--help"], &[]);
    for part in ["bootstrap_server_address", "SIGTERM", "--token-file", "KVFERRY_BOOTSTRAP_TOKEN"] {
        assert!(text(&help.stdout).contains(part), "{part}");
    }
    let help = run(&["query", "--help"], &[]);
    assert!(text(&help.stdout).contains("status 1"));
}
