//! `kvbench serve`, and clients that lead to it with `--peer`.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use serde_json::Value;

use crate::program::{PATIENCE, Serve, endless, is_positive, kvbench, measured, refused, until};

/// What the clients here move: more than a target holds without one.
const TOTAL: u64 = 4 << 20;

#[test]
fn a_target_elsewhere_does_all_that_a_child_does() {
    let serve = Serve::start(&[]);
    // One client after the other.
    for _ in 0..2 {
        let (runs, printed) = measured(&[
            "transfer",
            "--peer",
            &serve.address,
            "--block-size=64KiB",
            "--total=1MiB",
            "--iterations=2",
            "--pace=bulk,hot",
            "--floor",
        ]);
        assert_eq!(runs.len(), 4);
        for run in &runs {
            assert_eq!(run["verified"], true);
            for name in ["gbps", "target_cpu_s_per_gib", "floor_gbps", "floor_ratio"] {
                assert!(is_positive(&run[name]), "{name} of {run}");
            }
            assert!(run["iperf3_gbps"].is_null());
        }
        assert!(printed.contains("between two hosts"), "{printed}");
        serve.until_it_holds(0);
    }
}

#[test]
fn a_second_client_is_told_who_is_served() {
    let serve = Serve::start(&[]);
    let first = endless(&["--peer", &serve.address]);
    serve.until_it_holds(TOTAL);
    let said = refused(&["transfer", "--peer", &serve.address]);
    assert!(said.contains("busy with a client at 127.0.0.1:"), "{said}");
    drop(first);
    until("the place to be free", || {
        let arguments = ["transfer", "--total=64KiB", "--iterations=1", "--peer", &serve.address];
        kvbench(&arguments).status.success()
    });
}

#[test]
fn memory_of_a_client_that_was_killed_is_given_back() {
    let serve = Serve::start(&[]);
    let client = endless(&["--peer", &serve.address]);
    serve.until_it_holds(TOTAL);
    client.signal(Signal::KILL);
    serve.until_it_holds(0);
    let (runs, _) = measured(&["transfer", "--total=1MiB", "--peer", &serve.address]);
    assert!(runs.iter().all(|run| run["verified"] == true));
}

#[test]
fn memory_of_a_client_that_stops_is_given_back_too() {
    let serve = Serve::start(&["--silence=1"]);
    let client = endless(&["--peer", &serve.address]);
    serve.until_it_holds(TOTAL);
    client.signal(Signal::STOP);
    serve.until_it_holds(0);
    client.signal(Signal::CONT);
    let (code, said) = client.ended();
    assert_eq!(code, Some(1));
    assert!(said.contains("the target at"), "{said}");
}

#[test]
fn memory_of_a_client_that_stops_in_a_run_of_the_floor_is_given_back() {
    let serve = Serve::start(&["--silence=1"]);
    let client = endless(&["--peer", &serve.address, "--floor"]);
    serve.until_it_holds(TOTAL);
    client.signal(Signal::STOP);
    serve.until_it_holds(0);
}

#[test]
fn a_target_elsewhere_that_dies_is_reported() {
    let serve = Serve::start(&[]);
    let client = endless(&["--peer", &serve.address]);
    serve.until_it_holds(TOTAL);
    serve.process.signal(Signal::KILL);
    let (code, said) = client.ended();
    assert_eq!(code, Some(1));
    assert!(said.contains(&format!("lost the target at {}", serve.address)), "{said}");
}

#[test]
fn a_target_elsewhere_that_stops_is_waited_for_a_limited_time() {
    let serve = Serve::start(&[]);
    let client = endless(&["--peer", &serve.address, "--patience=1"]);
    serve.until_it_holds(TOTAL);
    serve.process.signal(Signal::STOP);
    let began = Instant::now();
    let (code, said) = client.ended();
    assert!(began.elapsed() < PATIENCE);
    assert_eq!(code, Some(1));
    assert!(said.contains("the target at"), "{said}");
}

#[test]
fn what_exceeds_the_targets_limit_is_refused_and_the_target_stays() {
    let serve = Serve::start(&["--max-memory=1MiB"]);
    let said = refused(&["transfer", "--total=2MiB", "--peer", &serve.address]);
    assert!(said.contains("2097152") && said.contains("--max-memory"), "{said}");
    let (runs, _) = measured(&["transfer", "--total=1MiB", "--peer", &serve.address]);
    assert_eq!(runs[0]["verified"], true);
}

#[test]
fn a_peer_that_is_no_target_is_named() {
    // Nobody listens: the port was just given back.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let said = refused(&["transfer", "--peer", &free]);
    assert!(said.contains(&free) && said.contains("kvbench serve"), "{said}");
    let said = refused(&["transfer", "--peer", "nowhere"]);
    assert!(said.contains("HOST:PORT"), "{said}");
    // Somebody listens who never says a word.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = mute.local_addr().unwrap().to_string();
    let began = Instant::now();
    let said = refused(&["transfer", "--patience=1", "--peer", &address]);
    assert!(said.contains("did not answer") && said.contains("--patience"), "{said}");
    assert!(began.elapsed() < PATIENCE && began.elapsed() >= Duration::from_secs(1));
}

/// A control connection on which every verification after the first is of the round before.
fn a_round_behind(target: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let target = TcpStream::connect(target).unwrap();
    thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let mut answers =
            (BufReader::new(target.try_clone().unwrap()), client.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut answers.0, &mut answers.1));
        let mut orders = target;
        for line in BufReader::new(client).lines() {
            let mut order: Value = serde_json::from_str(&line.unwrap()).unwrap();
            if let Some(round) = order.pointer_mut("/verify/round")
                && round.as_u64() > Some(1)
            {
                *round = (round.as_u64().unwrap() - 1).into();
            }
            writeln!(orders, "{order}").unwrap();
        }
    });
    address
}

#[test]
fn a_stale_block_at_the_target_fails_the_run_and_is_in_every_output() {
    let serve = Serve::start(&[]);
    let output = kvbench(&[
        "transfer",
        "--peer",
        &a_round_behind(&serve.address),
        "--op=write",
        "--total=1MiB",
        "--iterations=2",
        "--json=-",
    ]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["runs"][0]["verified"], false);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the engine did not move what it should: block 0"), "{said}");
    assert!(said.contains("do not rely on the figures"), "{said}");
}
