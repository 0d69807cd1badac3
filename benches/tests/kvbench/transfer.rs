//! `kvbench transfer` and `kvbench quickstart`, between two processes of this host.

use serde_json::Value;

use crate::program::{is_positive, kvbench, measured, refused};

/// What every run has.
const FIGURES: [&str; 14] = [
    "gbps",
    "gbps_min",
    "gbps_max",
    "p50_us",
    "p99_us",
    "p999_us",
    "post_us",
    "planning_share",
    "block_us",
    "initiator_cpu_s_per_gib",
    "target_cpu_s_per_gib",
    "page_kib",
    "slices",
    "lanes",
];

#[test]
fn every_combination_is_measured_and_verified() {
    let (runs, printed) = measured(&[
        "transfer",
        "--block-size=4KiB,64KB,100000",
        "--total=1MiB,2MiB",
        "--iterations=3",
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
        for name in FIGURES {
            assert!(is_positive(&run[name]), "{name} of {run}");
        }
        let in_order = |names: &[&str]| names.is_sorted_by_key(|name| run[name].as_f64().unwrap());
        assert!(in_order(&["gbps_min", "gbps", "gbps_max"]), "{run}");
        assert!(in_order(&["post_us", "p50_us", "p99_us", "p999_us"]), "{run}");
        assert!(in_order(&["block_us", "p50_us"]), "{run}");
        assert!(run["planning_share"].as_f64().unwrap() < 1.0, "{run}");
        for name in ["floor_gbps", "floor_ratio", "floor_strategy", "iperf3_gbps"] {
            assert!(run.as_object().unwrap()[name].is_null(), "{name} of {run}");
        }
    }
    assert!(printed.contains("every byte verified"), "{printed}");
    assert_eq!(printed.lines().count(), 6 + 2 * expected.len(), "{printed}");
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
fn quickstart_moves_a_models_cache_both_ways_and_shows_a_pool() {
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
    for words in
        ["Llama 3.1 8B", "push", "pull", "128MiB", "every byte", "32 are there", "gave way"]
    {
        assert!(printed.contains(words), "{words} is not in: {printed}");
    }
}

#[test]
fn what_was_demanded_is_what_carries() {
    for transport in ["local", "tcp"] {
        let demanded = format!("--transport={transport}");
        let (runs, _) = measured(&["transfer", "--total=1MiB", "--iterations=1", &demanded]);
        for run in &runs {
            assert_eq!(run["transport"], transport);
            assert_eq!(run["verified"], true);
        }
    }
}

#[test]
fn the_floor_within_one_host_copies_the_same_blocks_in_one_process_whatever_they_lie_in() {
    for memory in ["shared", "foreign", "foreign-huge"] {
        let (runs, _) = measured(&[
            "transfer",
            "--transport=local",
            &format!("--memory={memory}"),
            "--block-size=4KiB,100000",
            "--total=3MiB",
            "--threads=1,2",
            "--iterations=1",
            "--floor",
        ]);
        assert_eq!(runs.len(), 8);
        for run in &runs {
            assert_eq!((&run["transport"], &run["verified"]), (&"local".into(), &true.into()));
            assert!(is_positive(&run["floor_gbps"]) && is_positive(&run["floor_ratio"]), "{run}");
            assert_eq!(run["memory"], memory.replace('-', "_"));
            assert!(run["floor_strategy"].as_str().unwrap().starts_with("one process"), "{run}");
        }
    }
}

#[test]
fn the_ways_within_one_host_are_compared_for_each_kind_of_memory() {
    let output = kvbench(&["ways", "--total=1MiB", "--iterations=1", "--block-size=4KiB,64KiB"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(table.lines().count(), 1 + 2 * (2 + 2 + 1), "{table}");
    for words in ["process_vm_readv", "a Unix socket", "copied from a mapping", "foreign-huge"] {
        assert!(table.contains(words), "{words} is not in: {table}");
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
    let said = refused(&["transfer", "--transport", "local", "--floor", "--pace", "hot"]);
    assert!(said.contains("--floor") && said.contains("--transport local"), "{said}");
    let said = refused(&["transfer", "--blocks", "65537"]);
    assert!(said.contains("65537") && said.contains("65536"), "{said}");
    let said = refused(&["transfer", "--blocks", "65536", "--block-size", "64MiB"]);
    assert!(said.contains("4398046511104 bytes") || said.contains("8796093022208"), "{said}");
    assert!(said.contains("free") && said.contains("--blocks"), "{said}");
    let said = refused(&["transfer", "--total", "1GiB", "--block-size", "16B"]);
    assert!(said.contains("67108864 blocks") && said.contains("--block-size"), "{said}");
    let said = refused(&["transfer", "--pace", "hot", "--iterations", "1000000"]);
    assert!(said.contains("100000000 transfers") && said.contains("--iterations"), "{said}");
    let said = refused(&["transfer", "--pace", "hot", "--total", "1GiB", "--block-size", "64B"]);
    assert!(said.contains("16777216 blocks") && said.contains("--total"), "{said}");
    let said = refused(&["transfer", "--pace", "hot", "--in-flight", "2"]);
    assert!(said.contains("--pace hot") && said.contains("--in-flight 1"), "{said}");
    let said = refused(&["transfer", "--threads", "0"]);
    assert!(said.contains("--threads"), "{said}");
    let said = refused(&["transfer", "--json", "/nowhere/to/be/found.json"]);
    assert!(said.contains("/nowhere/to/be/found.json"), "{said}");
}

#[test]
fn blocks_of_a_transfer_threads_and_open_transfers_are_swept() {
    let (runs, _) = measured(&[
        "transfer",
        "--op=read",
        "--block-size=1KiB",
        "--blocks=1,7",
        "--threads=1,2",
        "--in-flight=1,3",
        "--iterations=1",
    ]);
    let number = |run: &Value, name: &str| run[name].as_u64().unwrap();
    let names = ["threads", "in_flight", "transfer_blocks", "transfers", "total_bytes"];
    let found: Vec<_> = runs.iter().map(|run| names.map(|name| number(run, name))).collect();
    let mut expected = Vec::new();
    for threads in [1, 2] {
        for in_flight in [1, 3] {
            for blocks in [1, 7] {
                let transfers = threads * in_flight;
                expected.push([threads, in_flight, blocks, transfers, transfers * blocks * 1024]);
            }
        }
    }
    assert_eq!(found, expected);
    assert!(runs.iter().all(|run| run["verified"] == true));
}

#[test]
fn transfers_one_after_another_are_timed_beside_a_floor_that_waits_alike() {
    let (runs, printed) = measured(&[
        "transfer",
        "--pace=hot,cold",
        "--block-size=4KiB",
        "--total=80KiB",
        "--iterations=2",
        "--floor",
    ]);
    let kinds: Vec<_> = runs.iter().map(|run| (&run["pace"], &run["op"])).collect();
    let pairs = [("hot", "write"), ("hot", "read"), ("cold", "write"), ("cold", "read")];
    let pairs = pairs.map(|(pace, op)| (Value::from(pace), Value::from(op)));
    assert_eq!(kinds, pairs.iter().map(|(pace, op)| (pace, op)).collect::<Vec<_>>());
    for run in &runs {
        assert_eq!((&run["transfers"], &run["transfer_blocks"]), (&20.into(), &1.into()));
        assert_eq!(run["verified"], true);
        for name in FIGURES.iter().chain(&["floor_p50_us", "p50_of_floor", "p99_of_floor"]) {
            assert!(is_positive(&run[name]), "{name} of {run}");
        }
        let ratios = ["p50_of_floor_min", "p50_of_floor", "p50_of_floor_max"];
        assert!(ratios.is_sorted_by_key(|name| run[name].as_f64().unwrap()), "{run}");
        assert!(run["floor_counts"].is_null(), "these are no streams: {run}");
        let strategy = run["floor_strategy"].as_str().unwrap();
        assert!(strategy.contains("1 connection") && strategy.contains("spins"), "{run}");
    }
    assert!(printed.contains("p50 x (range)"), "{printed}");
}
