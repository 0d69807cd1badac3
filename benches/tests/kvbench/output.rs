//! Figures for programs, and the picture.

use std::fs;

use serde_json::Value;

use crate::program::{kvbench, refused};

const SMALL: [&str; 4] =
    ["transfer", "--total=256KiB", "--block-size=4KiB,16KiB", "--iterations=1"];

fn with(more: &[&str]) -> Vec<String> {
    SMALL.iter().chain(more).map(|&argument| argument.to_owned()).collect()
}

fn printed(more: &[&str]) -> String {
    let all = with(more);
    let output = kvbench(&all.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn json_on_standard_output_is_all_there_is() {
    let report: Value = serde_json::from_str(&printed(&["--json", "-"])).unwrap();
    assert_eq!(report["runs"].as_array().unwrap().len(), 4);
}

#[test]
fn comma_separated_values_have_a_heading_and_a_line_for_each_run() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("runs.json");
    let text = printed(&["--csv", "-", "--json", json.to_str().unwrap(), "--floor"]);
    let mut lines = csv::Reader::from_reader(text.as_bytes());
    let headings = lines.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = lines.records().collect::<Result<_, _>>().unwrap();
    let report: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(rows.len(), runs.len());
    for (row, run) in rows.iter().zip(runs) {
        assert_eq!(headings.len(), run.as_object().unwrap().len());
        for (heading, cell) in headings.iter().zip(row) {
            let expected = match &run[heading] {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                Value::Number(number) if number.is_f64() => {
                    let cell: f64 = cell.parse().unwrap();
                    // The last digit is the reader's.
                    let difference = (cell / number.as_f64().unwrap() - 1.0).abs();
                    assert!(difference < 1e-12, "{heading}: {cell} and {number}");
                    continue;
                }
                other => other.to_string(),
            };
            assert_eq!(cell, expected, "{heading}");
        }
    }
}

#[test]
fn standard_output_takes_one_kind_of_figures() {
    let all = with(&["--csv", "-", "--json", "-"]);
    let said = refused(&all.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(said.contains("--json -") && said.contains("--csv -"), "{said}");
}

/// The text of every element of a picture, which is well formed as far as its elements go.
fn texts(svg: &str) -> Vec<String> {
    let mut open = Vec::new();
    let mut texts = Vec::new();
    for part in svg.split('<').skip(1) {
        let (tag, text) = part.split_once('>').unwrap();
        let name = tag.split_whitespace().next().unwrap();
        if tag.starts_with('?') || tag.ends_with('/') {
            continue;
        }
        if let Some(closed) = name.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(closed), "{tag}");
        } else {
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            open.push(name.to_owned());
            texts.extend((name == "text").then(|| text.to_owned()));
        }
    }
    assert!(open.is_empty(), "{open:?}");
    texts
}

#[test]
fn a_picture_shows_every_system_with_units() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (json, direct, both) = (path("runs.json"), path("direct.svg"), path("both.svg"));
    printed(&["--plot", &direct, "--json", &json, "--floor", "--pace=bulk,hot"]);
    let seen = texts(&fs::read_to_string(&direct).unwrap());
    for words in ["kvferry", "floor", "4KiB", "block size [bytes]", "write, all blocks together"] {
        assert!(seen.iter().any(|text| text == words), "{words} is not in {seen:?}");
    }
    assert!(seen.iter().any(|text| text.contains("GB/s")), "{seen:?}");
    assert!(seen.iter().any(|text| text.contains("µs")), "{seen:?}");

    // Another system's figures, with less in them, and a name that looks like markup.
    let others = path("others.json");
    let run = r#"{"system":"<peer>","op":"write","pace":"bulk","block_bytes":4096,
                  "total_bytes":262144,"gbps":1.5}"#;
    fs::write(&others, format!(r#"{{"runs":[{run}]}}"#)).unwrap();
    let output = kvbench(&["plot", &json, &others, "--output", &both]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let seen = texts(&fs::read_to_string(&both).unwrap());
    for words in ["kvferry", "floor", "&lt;peer&gt;"] {
        assert!(seen.iter().any(|text| text == words), "{words} is not in {seen:?}");
    }
}

#[test]
fn a_picture_that_cannot_be_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let empty = directory.path().join("empty.json");
    fs::write(&empty, r#"{"runs":[]}"#).unwrap();
    let said = refused(&["plot", empty.to_str().unwrap(), "--output=/nowhere/x.svg"]);
    assert!(said.contains("no figures"), "{said}");
    let said = refused(&["plot", "/nowhere/x.json", "--output=/nowhere/x.svg"]);
    assert!(said.contains("/nowhere/x.json"), "{said}");
    let all = with(&["--plot", "/nowhere/x.svg"]);
    let said = refused(&all.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(said.contains("/nowhere/x.svg"), "{said}");
}
