//! What lanes with a queue pair cost while nothing is done.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kvferry_tests::own::await_lanes;

use crate::library::{End, StandIn};

/// What is promised is 0.1 % of a core; this leaves room for slow machines and unoptimised code.
const IDLE_SHARE: f64 = 0.005;

/// What a line begins with that names threads.
const THREADS: &str = "threads of an idle engine:";

fn threads() -> Vec<String> {
    let entries = std::fs::read_dir("/proc/self/task").unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// An engine with lanes to ten others, in a process of its own; it says which threads are its.
#[test]
#[ignore = "run by the test below, in a process of its own"]
fn an_idle_engine() {
    let standin = StandIn::with_adapters(1);
    let targets: Vec<_> =
        (0..10).map(|_| End::new(&standin, 64, |builder| builder).shared()).collect();
    let before = threads();
    let initiator = End::new(&standin, 64, |builder| builder.bulk_lanes(1));
    let own: Vec<_> = threads().into_iter().filter(|thread| !before.contains(thread)).collect();
    let peers: Vec<_> = targets.iter().map(|target| initiator.meet(target)).collect();
    for (peer, remote) in &peers {
        await_lanes(peer, 2);
        let (from, to) = (initiator.layer.blocks(0..64), remote.blocks(0..64));
        let report = peer.write(from, to).submit().unwrap().wait().unwrap();
        assert_eq!(report.transport, "rdma");
    }
    println!("{THREADS} {}", own.join(" "));
    // Until whoever measures has gone.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn an_idle_engine_with_queue_pairs_to_ten_peers_sleeps() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "idle::an_idle_engine", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = lines
        .by_ref()
        .map_while(Result::ok)
        .find_map(|line| line.split_once(THREADS).map(|(_, threads)| threads.to_owned()));
    let said = said.expect("it says which threads are its");
    let own: Vec<_> = said.split_whitespace().collect();
    assert!(own.len() >= 2, "a thread for lanes, and one for what is agreed on: {own:?}");
    let pid = child.id();
    let cpu_ns = || -> u64 {
        let of = |thread: &&str| {
            let path = format!("/proc/{pid}/task/{thread}/schedstat");
            let said = std::fs::read_to_string(path).unwrap();
            said.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        };
        own.iter().map(of).sum()
    };
    let (began, before) = (Instant::now(), cpu_ns());
    std::thread::sleep(Duration::from_secs(6));
    let spent = Duration::from_nanos(cpu_ns() - before);
    let share = spent.as_secs_f64() / began.elapsed().as_secs_f64();
    drop(child.stdin.take());
    let ended = child.wait().unwrap();
    println!("an idle engine with queue pairs to ten peers takes {:.4} % of a core", share * 100.0);
    assert!(ended.success() && share < IDLE_SHARE, "{ended}, {share}");
}
