//! `kvbench master`.

use crate::program::{is_positive, refused, reported};

#[test]
fn a_master_is_filled_and_asked_and_every_figure_is_there() {
    let (report, printed) =
        reported(&["master", "--keys=2000", "--batch=10", "--in-flight=2", "--seconds=1"]);
    let [figures] = &report["master"].as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!((&figures["keys"], &figures["key_bytes"]), (&2000.into(), &118.into()));
    for name in [
        "keys_per_s",
        "keys_per_server_cpu_s",
        "bare_keys_per_cpu_s",
        "p50_us",
        "p99_us",
        "bytes_per_object",
        "recovery_s",
    ] {
        assert!(is_positive(&figures[name]), "{name} in {figures}");
    }
    for words in ["keys looked up per second", "memory per object", "recovery"] {
        assert!(printed.contains(words), "{words} is not in {printed}");
    }
}

#[test]
fn keys_that_are_too_short_for_their_digits_are_refused() {
    assert!(refused(&["master", "--key-bytes=90"]).contains("key-bytes"));
}
