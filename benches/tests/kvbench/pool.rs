//! `kvbench pool`.

use crate::program::{is_positive, refused, reported};

#[test]
fn batches_are_put_and_got_by_several_clients_beside_the_same_bytes_without_the_pool() {
    for transport in ["local", "tcp"] {
        let (report, printed) = reported(&[
            "pool",
            "--object=4KiB,100KiB",
            "--batch=5",
            "--clients=2",
            "--replicas=2",
            "--checksum",
            "--iterations=3",
            "--calls=40",
            &format!("--transport={transport}"),
        ]);
        let runs = report["pool"].as_array().unwrap();
        let what: Vec<_> = runs.iter().map(|run| (&run["op"], &run["object_bytes"])).collect();
        let sizes = [4096, 102_400].map(serde_json::Value::from);
        let (put, get) = ("put".into(), "get".into());
        assert_eq!(
            what,
            [(&put, &sizes[0]), (&get, &sizes[0]), (&put, &sizes[1]), (&get, &sizes[1])]
        );
        for run in runs {
            assert_eq!(run["verified"], true);
            for figure in ["p50_us", "gbps", "raw_gbps", "of_raw"] {
                assert!(is_positive(&run[figure]), "{figure}: {run}");
            }
        }
        let calls = report["calls"].as_array().unwrap();
        let kinds: Vec<_> = calls.iter().map(|one| (&one["op"], &one["in_flight"])).collect();
        let (one, some) = (1.into(), 32.into());
        let exists = "exists".into();
        assert_eq!(
            kinds,
            [
                (&put, &one),
                (&get, &one),
                (&exists, &one),
                (&put, &some),
                (&get, &some),
                (&exists, &some)
            ]
        );
        for one in calls {
            assert_eq!(one["verified"], true);
            for figure in ["per_s", "p50_us", "p99_us"] {
                assert!(is_positive(&one[figure]), "{figure}: {one}");
            }
        }
        for words in ["of raw (range)", "every byte", "100KiB", "in flight"] {
            assert!(printed.contains(words), "{words} is not in {printed}");
        }
    }
}

#[test]
fn pools_that_cannot_be_are_refused() {
    let said = refused(&["pool", "--object=1GiB", "--batch=4096", "--clients=64"]);
    assert!(said.contains("free"), "{said}");
    let said = refused(&["pool", "--replicas=0"]);
    assert!(said.contains("--replicas"), "{said}");
}
