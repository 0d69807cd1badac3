//! The program as people and scripts run it: two real processes, small totals, no speed asserted.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// What no wait here should come near.
const PATIENCE: Duration = Duration::from_secs(60);

fn kvbench(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvbench"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// What it wrote with `--json`, and printed.
fn measured(arguments: &[&str]) -> (Vec<Value>, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("runs.json");
    let mut all = arguments.to_vec();
    all.extend(["--json", file.to_str().unwrap()]);
    let output = kvbench(&all);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?} failed: {said}");
    let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let runs = report["runs"].as_array().unwrap().clone();
    (runs, String::from_utf8(output.stdout).unwrap())
}

/// Its complaint about these arguments.
fn refused(arguments: &[&str]) -> String {
    let output = kvbench(arguments);
    assert!(!output.status.success(), "{arguments:?} was accepted");
    assert!(output.stdout.is_empty(), "figures were printed for {arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn is_positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number > 0.0 && number.is_finite())
}

#[test]
fn every_combination_is_measured_and_verified() {
    let (runs, printed) = measured(&[
        "transfer",
        "--block-size=4KiB,64KB,100000",
        "--total=1MiB,2MiB",
        "--iterations=2",
        "--transport=tcp",
    ]);
    let mut expected = Vec::new();
    for total in [1_u64 << 20, 2 << 20] {
        for block in [4096, 64_000, 100_000] {
            // Cut to whole blocks.
            let total = total / block * block;
            expected.extend([("write", block, total), ("read", block, total)]);
        }
    }
    let found: Vec<_> = runs
        .iter()
        .map(|run| {
            let number = |name: &str| run[name].as_u64().unwrap();
            (run["op"].as_str().unwrap(), number("block_bytes"), number("total_bytes"))
        })
        .collect();
    assert_eq!(found, expected);
    for run in &runs {
        assert_eq!(run["transport"], "tcp");
        assert_eq!(run["verified"], true);
        for name in ["gbps", "p50_us", "p99_us", "cpu_s_per_gib", "page_kib", "slices"] {
            assert!(is_positive(&run[name]), "{name} of {run}");
        }
        assert!(run["p50_us"].as_f64() <= run["p99_us"].as_f64());
        for name in ["floor_gbps", "floor_ratio", "floor_strategy", "iperf3_gbps"] {
            assert!(run.as_object().unwrap()[name].is_null(), "{name} of {run}");
        }
    }
    assert!(printed.contains("every byte verified"), "{printed}");
    assert_eq!(printed.lines().count(), 2 + expected.len(), "{printed}");
    assert!(printed.lines().all(|line| line.len() <= 110), "{printed}");
}

#[test]
fn the_floor_stands_beside_every_run() {
    let (runs, printed) = measured(&[
        "transfer",
        "--floor",
        "--block-size=4KiB",
        "--total=1MiB",
        "--iterations=3",
        "--threads=2",
        "--in-flight=3",
    ]);
    assert_eq!(runs.len(), 2);
    for run in &runs {
        assert_eq!(run["verified"], true);
        assert_eq!((&run["threads"], &run["transfers"]), (&Value::from(2), &Value::from(6)));
        for name in ["floor_gbps", "floor_ratio", "floor_cpu_s_per_gib"] {
            assert!(is_positive(&run[name]), "{name} of {run}");
        }
        let ratio = |name: &str| run[name].as_f64().unwrap();
        assert!(ratio("floor_ratio_min") <= ratio("floor_ratio"));
        assert!(ratio("floor_ratio") <= ratio("floor_ratio_max"));
        let strategy = run["floor_strategy"].as_str().unwrap();
        assert!(printed.contains(strategy), "{printed}");
    }
    assert!(printed.contains("iperf3"), "{printed}");
    assert!(printed.contains("fewer than 9 iterations"), "{printed}");
    assert!(printed.lines().all(|line| line.len() <= 110), "{printed}");
}

#[test]
fn scattered_blocks_do_not_coalesce_and_contiguous_ones_do() {
    let arguments = ["transfer", "--op=write", "--block-size=4KiB", "--total=4MiB"];
    let descriptors = |more: &[&str]| {
        let all: Vec<&str> = arguments.iter().chain(more).copied().collect();
        measured(&all).0[0]["descriptors"].as_u64().unwrap()
    };
    let scattered = descriptors(&["--iterations=1"]);
    let contiguous = descriptors(&["--iterations=1", "--contiguous"]);
    // Of 1,024. Two that happen to lead forward at both ends share a descriptor, as a strided run.
    assert!(scattered > 512, "{scattered} descriptors");
    assert!(contiguous <= 4, "{contiguous} descriptors");
}

#[test]
fn more_transfers_than_blocks_are_as_many_as_there_are_blocks() {
    let (runs, _) = measured(&[
        "transfer",
        "--block-size=4KiB",
        "--total=12KiB",
        "--threads=2",
        "--in-flight=8",
        "--iterations=1",
        "--floor",
    ]);
    for run in runs {
        assert_eq!((&run["transfers"], &run["verified"]), (&Value::from(3), &Value::from(true)));
        assert!(run["floor_counts"].is_null(), "12 KiB are no stream: {run}");
    }
}

#[test]
fn the_floor_has_connections_for_as_many_threads_as_there_can_be() {
    let (runs, _) = measured(&[
        "transfer",
        "--op=read",
        "--block-size=4KiB",
        "--total=2MiB",
        "--threads=256",
        "--iterations=1",
        "--floor",
    ]);
    assert_eq!((&runs[0]["transfers"], &runs[0]["verified"]), (&256.into(), &true.into()));
    assert!(is_positive(&runs[0]["floor_gbps"]));
}

#[test]
fn quickstart_moves_a_models_cache_both_ways() {
    let (runs, printed) = measured(&["quickstart"]);
    assert_eq!(runs.len(), 2);
    for run in &runs {
        assert_eq!(run["verified"], true);
        assert_eq!(
            (&run["block_bytes"], &run["total_bytes"]),
            (&65_536.into(), &134_217_728.into())
        );
        assert_eq!(run["transfers"], 1);
    }
    for words in ["Llama 3.1 8B", "push", "pull", "128MiB", "every byte"] {
        assert!(printed.contains(words), "{words} is not in: {printed}");
    }
}

#[test]
fn settings_that_cannot_be_are_refused_by_name() {
    for size in ["4K", "1.5MiB", "potato", "0"] {
        let said = refused(&["transfer", "--block-size", size]);
        assert!(said.contains(&format!("`{size}`")) && said.contains("--block-size"), "{said}");
    }
    let said = refused(&["transfer", "--total", "4KiB", "--block-size", "64KiB"]);
    assert!(said.contains("--total 4KiB") && said.contains("--block-size 64KiB"), "{said}");
    let said = refused(&["transfer", "--threads", "256", "--in-flight", "4096"]);
    assert!(said.contains("1048576") && said.contains("16384"), "{said}");
    let said = refused(&["transfer", "--op", "push"]);
    assert!(said.contains("push") && said.contains("write"), "{said}");
    let said = refused(&["transfer", "--transport", "pigeon"]);
    assert!(said.contains("pigeon") && said.contains("tcp"), "{said}");
    let said = refused(&["transfer", "--threads", "0"]);
    assert!(said.contains("--threads"), "{said}");
    let said = refused(&["transfer", "--json", "/nowhere/to/be/found.json"]);
    assert!(said.contains("/nowhere/to/be/found.json"), "{said}");
}

/// A benchmark that would run for hours, and its target's process id.
#[expect(clippy::zombie_processes, reason = "both callers wait; a panic here ends the test")]
fn endless() -> (Child, u32) {
    let run = command(&["transfer", "--total=4MiB", "--iterations=1000000"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(target) = child_of(run.id()) {
            return (run, target);
        }
        assert!(Instant::now() < deadline, "no target was started");
        thread::sleep(Duration::from_millis(5));
    }
}

/// State and parent of a process, as `/proc/PID/stat` says.
fn state_and_parent(process: &Path) -> Option<(char, u32)> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    // The name before it is in parentheses and may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn child_of(parent: u32) -> Option<u32> {
    fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let process = entry.file_name().to_str()?.parse().ok()?;
        let (_, found) = state_and_parent(&entry.path())?;
        (found == parent).then_some(process)
    })
}

fn kill(process: u32) {
    let status = Command::new("kill").args(["-9", &process.to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn a_target_that_dies_is_reported() {
    let (run, target) = endless();
    kill(target);
    let output = run.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(said.contains("target process ended early"), "{said}");
    assert!(said.contains("signal: 9"), "{said}");
}

#[test]
fn a_target_dies_with_its_initiator() {
    let (mut run, target) = endless();
    kill(run.id());
    run.wait().unwrap();
    let process = Path::new("/proc").join(target.to_string());
    let deadline = Instant::now() + PATIENCE;
    // Whoever inherits it may leave it a zombie.
    while state_and_parent(&process).is_some_and(|(state, _)| state != 'Z') {
        assert!(Instant::now() < deadline, "the target goes on without its initiator");
        thread::sleep(Duration::from_millis(5));
    }
}
