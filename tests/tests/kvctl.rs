//! What `kvctl` says of the fixture hosts.

use std::fs;
use std::path::{Path, PathBuf};

use kvctl::cli::Machine;
use kvctl::{Environment, Outcome, doctor, topology};
use kvferry_tests::hosts::{self, Host};
use serde_json::Value;

fn host(name: &str) -> Host {
    Host::build(name).expect("a fixture host")
}

fn topology_of(
    host: &Host,
    json: bool,
    peer_topology: Option<PathBuf>,
    environment: &Environment,
) -> Outcome {
    let machine = Machine { root: Some(host.path().to_owned()) };
    let arguments = topology::Arguments { json, peer_topology, machine };
    topology::run(&arguments, environment).expect("a topology")
}

fn doctor_of(host: &Host) -> Outcome {
    let machine = Machine { root: Some(host.path().to_owned()) };
    let arguments = doctor::Arguments { machine, ..doctor::Arguments::default() };
    doctor::run(&arguments, &Environment::default()).expect("findings")
}

/// Writes a host's own report where the other host can read it.
fn report(host: &Host, environment: &Environment, directory: &Path) -> PathBuf {
    let file = directory.join("peer.json");
    fs::write(&file, topology_of(host, true, None, environment).text).expect("a file");
    file
}

#[test]
fn the_table_of_sixteen_adapters_shows_ports_groups_and_distances() {
    let found = topology_of(&host("two-rails-16-adapters"), false, None, &Environment::default());
    assert!(found.success);
    let lines: Vec<_> = found.text.lines().collect();
    assert_eq!(lines[0], "PORT       STATE   SPEED     NUMA  GID  ADDRESS      PKEY  GROUP  USED");
    assert_eq!(lines[1], "mlx5_0:1   ACTIVE  400 Gb/s  0     3    172.16.10.1  -     0      used");
    assert_eq!(lines[16], "mlx5_23:1  ACTIVE  400 Gb/s  1     3    172.24.17.1  -     1      used");
    assert_eq!(lines[17..19], ["", "Route groups"]);
    assert_eq!(
        lines[20],
        "  1  172.24.0.0/13: mlx5_1:1 mlx5_7:1 mlx5_11:1 mlx5_13:1 mlx5_15:1 mlx5_17:1 mlx5_21:1 \
         mlx5_23:1"
    );
    assert_eq!(lines[22], "Distance to GPUs");
    assert_eq!(lines[26], "mlx5_6:1   NODE  PIX   NODE  NODE  SYS   SYS   SYS   SYS");
    assert_eq!(lines.len(), 40);
}

#[test]
fn every_page_fits_a_hundred_columns() {
    for name in hosts::names().expect("manifests") {
        let host = host(&name);
        let directory = tempfile::tempdir().expect("a directory");
        let peer = report(&host, &Environment::default(), directory.path());
        let pages = [
            topology_of(&host, false, Some(peer), &Environment::default()).text,
            doctor_of(&host).text,
        ];
        for line in pages.iter().flat_map(|page| page.lines()) {
            assert!(line.chars().count() <= 100, "{name}: {line}");
        }
    }
}

#[test]
fn every_port_is_in_the_table_with_its_reason_where_it_is_not_used() {
    let host = host("unusable-devices");
    let page = topology_of(&host, false, None, &Environment::default()).text;
    let words: Vec<_> = page.split_whitespace().collect();
    let page = words.join(" ");
    let json = topology_of(&host, true, None, &Environment::default()).text;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let ports = json["ports"].as_array().expect("ports");
    assert_eq!(ports.len(), 12);
    for port in ports {
        let name = port["name"].as_str().expect("a name");
        match port["reason"].as_str() {
            None => assert_eq!((name, &port["used"]), ("mlx5_0:1", &Value::Bool(true))),
            Some(reason) => {
                assert_eq!(port["endpoint"], Value::Null);
                assert!(page.contains(&format!("{name} {reason}")), "{name} {reason}\n{page}");
            }
        }
    }
}

#[test]
fn the_json_has_all_that_the_table_has() {
    let json = topology_of(&host("two-rails-16-adapters"), true, None, &Environment::default());
    let json: Value = serde_json::from_str(&json.text).expect("JSON");
    let port = &json["ports"][2];
    for (field, expected) in [
        ("name", Value::from("mlx5_6:1")),
        ("node_type", Value::from("CA")),
        ("state", Value::from("ACTIVE")),
        ("link_layer", Value::from("Ethernet")),
        ("rate_mbit_per_s", Value::from(400_000)),
        ("numa_node", Value::from(0)),
        ("pci", Value::from("0000:29:00.0")),
        ("gpu_distances", ["NODE", "PIX", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"].into()),
        ("used", Value::from(true)),
        ("route_group", Value::from(0)),
    ] {
        assert_eq!(port[field], expected, "{field}");
    }
    assert_eq!(port["endpoint"]["gid"], "::ffff:172.16.11.1");
    assert_eq!(port["endpoint"]["fabric"]["network"], "172.16.0.0/13");
    assert_eq!(json["gpus"][1]["nearest"], Value::from(["mlx5_6:1", "mlx5_7:1"].as_slice()));
    assert_eq!(json["route_groups"][1]["labels"], Value::from(["172.24.0.0/13"].as_slice()));
}

#[test]
fn a_peers_report_is_paired_within_rails() {
    let directory = tempfile::tempdir().expect("a directory");
    let peer =
        report(&host("two-rails-16-adapters-peer"), &Environment::default(), directory.path());
    let here = host("two-rails-16-adapters");
    let page = topology_of(&here, false, Some(peer.clone()), &Environment::default());
    assert!(page.success);
    assert!(page.text.contains("\nmlx5_23:1  mlx5_23:1  4096\n"), "{}", page.text);
    let json = topology_of(&here, true, Some(peer), &Environment::default()).text;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["pairing"]["pairs"].as_array().map(Vec::len), Some(16));
    assert_eq!(json["pairing"]["refused"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_peer_on_another_rail_is_a_failure_that_shows_both_tables() {
    let directory = tempfile::tempdir().expect("a directory");
    let only = |name| Environment::of([("KVFERRY_RDMA_DEVICES", name)]);
    let peer = report(&host("two-rails-16-adapters-peer"), &only("mlx5_1"), directory.path());
    let page = topology_of(&host("two-rails-16-adapters"), false, Some(peer), &only("mlx5_0"));
    assert!(!page.success);
    for line in [
        "No pair",
        "    here:",
        "      mlx5_0:1 GID ::ffff:172.16.10.1, group 172.16.0.0/13",
        "    there:",
        "      mlx5_1:1 GID ::ffff:172.24.10.101, group 172.24.0.0/13",
    ] {
        assert!(page.text.lines().any(|found| found == line), "{line}\n{}", page.text);
    }
}

#[test]
fn what_tables_do_not_tell_is_left_to_the_handshake() {
    let directory = tempfile::tempdir().expect("a directory");
    let peer = report(&host("policy-routed-rails-peer"), &Environment::default(), directory.path());
    let here = host("policy-routed-rails");
    let page = topology_of(&here, false, Some(peer), &Environment::default());
    assert!(page.success, "a probe may find pairs");
    assert!(page.text.contains("probed at the handshake"), "{}", page.text);
}

#[test]
fn a_report_crosses_from_host_to_host_unharmed() {
    let directory = tempfile::tempdir().expect("a directory");
    for name in hosts::names().expect("manifests") {
        let host = host(&name);
        let peer = report(&host, &Environment::default(), directory.path());
        let json = topology_of(&host, true, Some(peer), &Environment::default());
        let json: Value = serde_json::from_str(&json.text).expect("JSON");
        // A host reaches itself by every port whose network tables know.
        let known = |port: &&Value| {
            port["used"] == true
                && port["cautions"].as_array().is_some_and(|cautions| {
                    !cautions
                        .iter()
                        .any(|caution| caution.as_str().is_some_and(|c| c.contains("probe")))
                })
        };
        let known = json["ports"].as_array().expect("ports").iter().filter(known).count();
        let pairs = json["pairing"]["pairs"].as_array().expect("pairs");
        let own: Vec<_> = pairs.iter().filter(|pair| pair["local"] == pair["remote"]).collect();
        assert!(own.len() >= known, "{name}: {} of {known}", own.len());
    }
}

#[test]
fn a_file_that_is_no_report_is_refused_by_its_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = host("two-mtus");
    let good = report(&here, &Environment::default(), directory.path());
    let good = fs::read_to_string(good).expect("a report");
    let long = "f".repeat(40);
    for (what, text) in [
        ("empty", String::new()),
        ("another format", good.replace("\"format\": 1", "\"format\": 2")),
        ("a network that is none", good.replace("10.14.1.0/24", "10.14.1.0/99")),
        ("a packet size that is none", good.replace("4096", "4097")),
        ("an interface that is none", good.replace("\"rdma0\"", &format!("\"{long}\""))),
        ("a RoCE that is none", good.replace("\"roce_version\": 2", "\"roce_version\": 3")),
    ] {
        assert_ne!(text, good, "{what}");
        let file = directory.path().join("bad.json");
        fs::write(&file, text).expect("a file");
        let machine = Machine { root: Some(here.path().to_owned()) };
        let arguments = topology::Arguments { json: false, peer_topology: Some(file), machine };
        let error = topology::run(&arguments, &Environment::default()).expect_err(what);
        assert!(format!("{error:#}").contains("bad.json"), "{error:#}");
    }
}

#[test]
fn a_device_that_was_asked_for_and_cannot_be_used_is_a_failure() {
    let environment = Environment::of([("MOONCAKE_DEVICE", "mlx5_0,mlx5_3")]);
    let page = topology_of(&host("unusable-devices"), false, None, &environment);
    assert!(!page.success);
    assert!(page.text.contains("Asked for and impossible\n  MOONCAKE_DEVICE lists mlx5_3"));
}

#[test]
fn a_machine_without_devices_says_so() {
    let empty = tempfile::tempdir().expect("a directory");
    let machine = Machine { root: Some(empty.path().to_owned()) };
    let arguments = topology::Arguments { machine, ..topology::Arguments::default() };
    let page = topology::run(&arguments, &Environment::default()).expect("a topology");
    let expected = "This host has no RDMA devices: /sys/class/infiniband does not exist.\n";
    assert_eq!((page.text.as_str(), page.success), (expected, true));
}

#[test]
fn the_doctor_finds_sixteen_adapters_well() {
    let found = doctor_of(&host("two-rails-16-adapters"));
    assert!(found.success);
    let expected = "rdma           ok         16 of 16 ports are used, in 2 route groups: \
                    172.16.0.0/13, 172.24.0.0/13\n";
    assert!(found.text.starts_with(expected), "{}", found.text);
    assert!(found.text.ends_with("\n0 failures, 1 warning, 3 things not checked\n"));
}
