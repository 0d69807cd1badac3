//! `kvbench matrix`: many processes of this host.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::program::{
    Process, child_of, command, is_alive, is_positive, refused, reported, send, until,
};

/// Files of these texts, which go with the directory.
fn files(texts: &[&str]) -> (TempDir, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let path = |number: usize| -> PathBuf { directory.path().join(format!("{number}.txt")) };
    for (number, text) in texts.iter().enumerate() {
        fs::write(path(number), text).unwrap();
    }
    let paths = (0..texts.len()).map(|number| path(number).to_str().unwrap().to_owned()).collect();
    (directory, paths)
}

#[test]
fn patterns_are_moved_alone_and_at_once_and_verified() {
    let ring = "# a ring\n0 64K 0\n0 0 100000\n1 0 0\n";
    let fan_in = "0 0 0\n256K 0 0\n256K 0 0\n";
    let (_directory, paths) = files(&[ring, fan_in]);
    let (report, printed) = reported(&["matrix", &paths[0], &paths[1], "--iterations=3"]);
    let patterns = report["patterns"].as_array().unwrap();
    let sizes: Vec<_> = patterns.iter().map(|pattern| pattern["total_bytes"].as_u64()).collect();
    assert_eq!(sizes, [Some(65_536 + 100_000 + 1), Some(524_288)]);
    for (pattern, senders) in patterns.iter().zip([3, 2]) {
        assert_eq!((&pattern["ranks"], &pattern["senders"]), (&3.into(), &senders.into()));
        assert_eq!(pattern["verified"], true);
        for when in ["alone", "loaded"] {
            assert!(is_positive(&pattern[when]["p50_us"]), "{pattern}");
        }
    }
    assert!(printed.contains("3 processes") && printed.contains("every byte"), "{printed}");
    assert!(printed.contains("at once p50"), "{printed}");
}

#[test]
fn a_single_pattern_has_no_load_beside_it() {
    let (_directory, paths) = files(&["0 1K\n0 0\n"]);
    let (report, printed) = reported(&["matrix", &paths[0], "--iterations=1"]);
    assert!(report["patterns"][0]["loaded"].is_null(), "{report}");
    assert!(!printed.contains("at once"), "{printed}");
}

#[test]
fn matrices_that_cannot_be_are_refused_by_name() {
    let wide = vec!["0 ".repeat(33); 33].join("\n");
    let cases =
        [("0 1X\n0 0", "`1X`"), ("0 1\n", "no square"), (&wide, "33"), ("0 900000G\n0 0", "free")];
    for (text, words) in cases {
        let (_directory, paths) = files(&[text]);
        let said = refused(&["matrix", &paths[0]]);
        assert!(said.contains(words), "{said}");
    }
    let (_directory, paths) = files(&["0 1\n0 0", "0 1 0\n0 0 0\n0 0 0"]);
    let said = refused(&["matrix", &paths[0], &paths[1]]);
    assert!(said.contains("same ranks"), "{said}");
    let said = refused(&["matrix", "/nowhere/matrix.txt"]);
    assert!(said.contains("/nowhere/matrix.txt"), "{said}");
}

/// Two ranks for hours, and the process of one of them.
fn endless(more: &[&str]) -> (TempDir, Process, u32) {
    let (directory, paths) = files(&["0 1M\n1M 0\n"]);
    let arguments = ["matrix", &paths[0], "--iterations=100000"];
    let all: Vec<&str> = arguments.iter().chain(more).copied().collect();
    let run = command(&all).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let rank = child_of(run.id());
    (directory, Process(run), rank)
}

#[test]
fn a_rank_that_dies_is_reported() {
    let (_directory, run, rank) = endless(&[]);
    send(rank, Signal::KILL);
    let (code, said) = run.ended();
    assert_eq!(code, Some(1));
    assert!(said.contains("target process"), "{said}");
}

#[test]
fn a_rank_that_stops_is_waited_for_a_limited_time() {
    let (_directory, run, rank) = endless(&["--patience=1"]);
    send(rank, Signal::STOP);
    let (code, said) = run.ended();
    assert_eq!(code, Some(1));
    assert!(said.contains("target process"), "{said}");
    assert!(!is_alive(rank), "the stopped rank was left behind");
}

#[test]
fn ranks_die_with_the_one_that_started_them() {
    let (_directory, run, rank) = endless(&[]);
    run.signal(Signal::KILL);
    run.ended();
    until("the rank to follow", || !is_alive(rank));
}
