//! `kvbench model`.

use std::fs;

use crate::program::{kvbench, measured, refused};

fn said(arguments: &[&str]) -> String {
    let output = kvbench(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_dry_run_says_what_would_be_moved() {
    let mut arguments =
        vec!["model", "--model=deepseek-r1", "--dtype=fp8", "--isl=10000", "--dry-run"];
    arguments.extend(["--pattern=block", "--pp=8", "--page=512", "--requests=10"]);
    let said = said(&arguments);
    assert!(said.contains("2359296 bytes an I/O, 1490 I/Os"), "{said}");
    assert!(said.contains("61 layers"), "{said}");
}

#[test]
fn the_ios_of_a_model_are_moved_and_verified() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tiny.toml");
    let attention = "[attention]\nkind = 'gqa'\nkv_heads = 4\nhead_dim = 16\n";
    fs::write(&path, format!("name = 'tiny'\nlayers = 3\n{attention}")).unwrap();
    let path = path.to_str().unwrap();
    let arguments =
        ["model", "--model", path, "--isl=100", "--page=16", "--tp=2", "--iterations=1"];
    let (runs, printed) = measured(&[&arguments[..], &["--pattern=layer", "--floor"]].concat());
    assert_eq!(runs.len(), 2);
    for run in &runs {
        // 2 x 2 heads x 16 x 2 bytes x 16 tokens, for 100 tokens in 3 layers: 18.75 of them.
        assert_eq!((&run["block_bytes"], &run["total_bytes"]), (&2048.into(), &38_912.into()));
        assert_eq!((&run["verified"], &run["transfers"]), (&true.into(), &1.into()));
    }
    assert!(printed.contains("tiny: 3 layers, 4 KV heads of 16, bf16"), "{printed}");
}

#[test]
fn models_that_cannot_be_moved_are_refused_by_name() {
    let said = refused(&["model", "--model=gpt-5"]);
    assert!(said.contains("gpt-5") && said.contains("llama3.1-70b"), "{said}");
    let said = refused(&["model", "--model=llama3.1-70b", "--tp=3"]);
    assert!(said.contains("--tp 3"), "{said}");
    let said = refused(&["model", "--model=llama3.1-70b", "--requests=100000"]);
    assert!(said.contains("--requests"), "{said}");
}
