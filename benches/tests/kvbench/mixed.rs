//! `kvbench mixed`.

use crate::program::{is_positive, refused, reported};

#[test]
fn small_and_bulk_transfers_are_measured_alone_and_together() {
    let (report, printed) = reported(&[
        "mixed",
        "--transport=tcp",
        "--total=1MiB",
        "--block-size=64KiB",
        "--small=1000B",
        "--small-transfers=20",
        "--iterations=2",
    ]);
    let mixed = report["mixed"].as_array().unwrap();
    let ops: Vec<_> = mixed.iter().map(|mixed| mixed["op"].as_str().unwrap()).collect();
    assert_eq!(ops, ["write", "read"]);
    for mixed in mixed {
        assert_eq!(mixed["verified"], true);
        assert_eq!(mixed["transport"], "tcp");
        assert_eq!((&mixed["small_bytes"], &mixed["bulk_bytes"]), (&1000.into(), &1048576.into()));
        for when in ["small_alone", "small_loaded"] {
            let times = ["p50_us", "p99_us", "p999_us"].map(|name| &mixed[when][name]);
            assert!(times.iter().all(|time| is_positive(time)), "{mixed}");
            assert!(times.is_sorted_by_key(|time| time.as_f64().unwrap()), "{mixed}");
        }
        assert!(is_positive(&mixed["bulk_alone_gbps"]), "{mixed}");
        assert!(is_positive(&mixed["bulk_loaded_gbps"]), "{mixed}");
    }
    for words in ["every byte verified", "small p99.9", "bulk GB/s", "under load"] {
        assert!(printed.contains(words), "{words} is not in {printed}");
    }
}

#[test]
fn mixtures_that_cannot_be_are_refused() {
    let said = refused(&["mixed", "--total=4KiB", "--block-size=64KiB"]);
    assert!(said.contains("--total 4KiB") && said.contains("nothing to move"), "{said}");
    let said = refused(&["mixed", "--small=1GiB", "--small-transfers=100000"]);
    assert!(said.contains("free"), "{said}");
}
