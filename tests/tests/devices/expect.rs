//! How expectations are written.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use kvferry_engine::topology::{PortReport, Topology, Wishes};
use kvferry_tests::hosts::Host;
use kvferry_transport::rdma::device::HostFacts;

/// What is decided of a host where the environment says `variables`.
pub(crate) fn topology(host: &str, variables: &[(&str, &str)]) -> Topology {
    let wishes = Wishes::from_environment(|name| {
        let found = variables.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| (*value).to_owned())
    });
    Topology::choose(&facts(host), &wishes.expect("wishes that say something"))
}

/// What a fixture host says; its tree is built once for all tests.
fn facts(host: &str) -> HostFacts {
    static KNOWN: Mutex<BTreeMap<String, HostFacts>> = Mutex::new(BTreeMap::new());
    let build = || Host::build(host).expect("a fixture host").facts();
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(host.to_owned()).or_insert_with(build).clone()
}

/// A port's verdict in a line: how it is used, or why not.
pub(crate) fn verdict(topology: &Topology, port: &PortReport) -> String {
    let endpoint = match &port.verdict {
        Err(refusal) => return format!("{}: not used: {refusal}", port.name),
        Ok(endpoint) => endpoint,
    };
    let group = topology.group_of(&port.name).map(|at| topology.groups[at].to_string());
    let (index, gid) = (endpoint.gid_index.0, endpoint.gid);
    let mut line = format!("{}: GID {index} {gid}, {}", port.name, group.unwrap_or_default());
    if let Some(pkey) = endpoint.pkey {
        write!(line, ", {pkey}").expect("a string");
    }
    for caution in &port.cautions {
        write!(line, "; {caution}").expect("a string");
    }
    line
}

pub(crate) fn assert_verdicts(topology: &Topology, expected: &[&str]) {
    let found: Vec<_> = topology.ports.iter().map(|port| verdict(topology, port)).collect();
    assert_eq!(found, expected, "\n{}", found.join("\n"));
}
