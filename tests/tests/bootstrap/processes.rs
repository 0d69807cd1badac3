//! Workers that are killed, stopped, woken and replaced, registered with a server in another
//! process.

use std::time::{Duration, Instant};

use kvferry_tests::bootstrap::http::{query, register};
use kvferry_tests::bootstrap::worker::registration;
use kvferry_tests::command::{Answer, Command, Setup};
use kvferry_tests::process::{Cache, Process};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(20);

/// A process with an engine and a server beside it.
struct Host {
    process: Process,
    server: String,
}

impl Host {
    fn start() -> Self {
        let setup = Setup { bootstrap: Some("127.0.0.1:0".into()), ..Setup::default() };
        let process = Process::start_with(setup, Cache::default());
        let server = process.bootstrap.clone().unwrap();
        Self { process, server }
    }

    /// The address that the table has of a rank.
    fn listed(&self, tp: u32) -> Option<String> {
        let table = query(&self.server).json();
        let address = &table["0"]["worker_addr"][tp.to_string()]["0"];
        address.as_str().map(ToOwned::to_owned)
    }

    #[track_caller]
    fn await_listed(&self, tp: u32, expected: Option<&Process>) {
        let expected = expected.map(|process| format!("tcp://{}", process.address));
        let began = Instant::now();
        while self.listed(tp) != expected {
            assert!(began.elapsed() < PATIENCE, "never {expected:?}: {:?}", self.listed(tp));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn register(&self, worker: &mut Process, tp_rank: u32, lease_ms: u64) -> Answer {
        let (bootstrap, engine_id) = (self.server.clone(), "prefill".into());
        worker.tell(&Command::Register { bootstrap, engine_id, tp_rank, lease_ms })
    }
}

#[track_caller]
fn ok(answer: &Answer) {
    assert!(matches!(answer, Answer::Ok), "{answer:?}");
}

#[test]
fn a_worker_that_is_killed_is_forgotten_and_its_successor_found_at_once() {
    let host = Host::start();
    let (mut killed, mut other) = (Process::start(), Process::start());
    ok(&host.register(&mut killed, 0, 1000));
    ok(&host.register(&mut other, 1, 1000));
    killed.kill();
    host.await_listed(0, None);
    host.await_listed(1, Some(&other));
    let mut successor = Process::start();
    ok(&host.register(&mut successor, 0, 1000));
    host.await_listed(0, Some(&successor));
    let table = query(&host.server).json();
    assert_eq!(table["0"]["incarnation"]["0"]["0"], Value::from(successor.incarnation));
}

#[test]
fn a_worker_that_is_replaced_before_its_lease_is_over_waits_for_nothing() {
    let host = Host::start();
    let mut killed = Process::start();
    ok(&host.register(&mut killed, 0, 3_600_000));
    killed.kill();
    let mut successor = Process::start();
    ok(&host.register(&mut successor, 0, 3_600_000));
    host.await_listed(0, Some(&successor));
}

#[test]
fn a_worker_that_is_stopped_is_forgotten_and_is_back_when_it_wakes() {
    let host = Host::start();
    let mut stopped = Process::start();
    ok(&host.register(&mut stopped, 0, 1000));
    stopped.stop();
    host.await_listed(0, None);
    stopped.wake();
    host.await_listed(0, Some(&stopped));
    ok(&stopped.tell(&Command::Registration));
}

#[test]
fn a_worker_that_was_replaced_while_it_was_stopped_learns_it_when_it_wakes() {
    let host = Host::start();
    let (mut stopped, mut successor) = (Process::start(), Process::start());
    ok(&host.register(&mut stopped, 0, 600));
    stopped.stop();
    ok(&host.register(&mut successor, 0, 600));
    stopped.wake();
    let began = Instant::now();
    let message = loop {
        match stopped.tell(&Command::Registration) {
            Answer::Error { message, .. } if message.contains("was replaced by") => break message,
            _ => assert!(began.elapsed() < PATIENCE, "it never learns"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(message.contains(&format!("{:016x}", successor.incarnation)), "{message}");
    host.await_listed(0, Some(&successor));
    // It goes on asking, and comes back when the other has gone.
    successor.kill();
    host.await_listed(0, Some(&stopped));
}

#[test]
fn an_in_tree_worker_that_is_stopped_keeps_its_rank_and_one_that_is_killed_does_not() {
    let host = Host::start();
    let mut worker = Process::start();
    let (address, other) = (format!("tcp://{}", worker.address), Process::start());
    let wanted = registration("prefill", [0, 0, 0], &format!("tcp://{}", other.address));
    register(&host.server, &registration("prefill", [0, 0, 0], &address)).accepted();
    worker.stop();
    register(&host.server, &wanted).refused(400, "accepts connections");
    worker.kill();
    register(&host.server, &wanted).accepted();
    host.await_listed(0, Some(&other));
}

#[test]
fn workers_find_a_server_again_that_was_started_anew() {
    let mut host = Host::start();
    let mut worker = Process::start();
    ok(&host.register(&mut worker, 0, 1000));
    host.process.kill();
    let setup = Setup { bootstrap: Some(host.server.clone()), ..Setup::default() };
    host.process = Process::start_with(setup, Cache::default());
    host.await_listed(0, Some(&worker));
}

#[test]
fn workers_outlive_a_server_that_is_stopped_for_a_while() {
    let host = Host::start();
    let mut worker = Process::start();
    ok(&host.register(&mut worker, 0, 1000));
    host.process.stop();
    std::thread::sleep(Duration::from_millis(1500));
    host.process.wake();
    host.await_listed(0, Some(&worker));
}
