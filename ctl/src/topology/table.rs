//! A topology for people.

use kvferry_engine::topology::{Endpoint, Fabric, PortReport, Topology};

use crate::page::{Table, hanging};

const UNKNOWN: &str = "-";

/// All of it.
pub(super) fn render(topology: &Topology) -> String {
    let mut text = String::new();
    match (&topology.no_adapters, topology.ports.is_empty()) {
        (Some(absence), _) => {
            text.push_str(&hanging("", &format!("This host has no RDMA devices: {absence}.")));
        }
        (None, true) => text.push_str("This host has no RDMA devices.\n"),
        (None, false) => text.push_str(&ports(topology)),
    }
    text.push_str(&section("Route groups", groups(topology)));
    text.push_str(&section("Not used", refused(topology)));
    text.push_str(&section("To mind", cautions(topology)));
    if !topology.gpus.is_empty() && !topology.ports.is_empty() {
        text.push_str(&distances(topology));
    }
    let plain = |text: String| (String::new(), text);
    let errors = topology.errors.iter().map(|error| plain(error.to_string()));
    text.push_str(&section("Asked for and impossible", errors));
    let unheeded = topology.unheeded.iter().map(|wish| plain(wish.to_string()));
    text.push_str(&section("Asked for and not decisive", unheeded));
    text
}

fn ports(topology: &Topology) -> String {
    let heading = ["PORT", "STATE", "SPEED", "NUMA", "GID", "ADDRESS", "PKEY", "GROUP", "USED"];
    let mut table = Table::new(&heading);
    for port in &topology.ports {
        table.row(port_row(topology, port));
    }
    table.render()
}

fn port_row(topology: &Topology, port: &PortReport) -> [String; 9] {
    let endpoint = port.verdict.as_ref().ok();
    let of = |show: fn(&Endpoint) -> Option<String>| shown(endpoint.and_then(show));
    let group = topology.group_of(&port.name).map(|at| at.to_string());
    [
        port.name.to_string(),
        shown(port.state.as_ref().map(ToString::to_string)),
        shown(port.rate.map(|rate| rate.to_string())),
        shown(port.place.numa_node.map(|node| node.0.to_string())),
        of(|endpoint| Some(endpoint.gid_index.0.to_string())),
        of(|endpoint| {
            Some(match &endpoint.fabric {
                Fabric::Ethernet(reach) => reach.address.to_string(),
                Fabric::InfiniBand { .. } => endpoint.gid.to_string(),
            })
        }),
        of(|endpoint| endpoint.pkey.map(|key| key.to_string())),
        shown(group),
        if endpoint.is_some() { "used" } else { "no" }.to_owned(),
    ]
}

fn shown(text: Option<String>) -> String {
    text.unwrap_or_else(|| UNKNOWN.to_owned())
}

fn groups(topology: &Topology) -> impl Iterator<Item = (String, String)> {
    let words = |items: &[_]| items.iter().map(ToString::to_string).collect::<Vec<String>>();
    let named = topology.groups.iter().map(move |group| {
        let labels: Vec<String> = group.labels.iter().map(ToString::to_string).collect();
        format!("{}: {}", labels.join(", "), words(&group.members).join(" "))
    });
    (0_usize..).map(|at| at.to_string()).zip(named)
}

fn refused(topology: &Topology) -> impl Iterator<Item = (String, String)> {
    let refused =
        topology.ports.iter().filter_map(|port| Some((port, port.verdict.as_ref().err()?)));
    refused.map(|(port, refusal)| (port.name.to_string(), refusal.to_string()))
}

fn cautions(topology: &Topology) -> impl Iterator<Item = (String, String)> {
    let each = |port: &PortReport| {
        let name = port.name.to_string();
        port.cautions.iter().map(|caution| (name.clone(), caution.to_string())).collect::<Vec<_>>()
    };
    topology.ports.iter().flat_map(each)
}

fn distances(topology: &Topology) -> String {
    let names: Vec<_> = topology.gpus.iter().map(|gpu| format!("GPU{}", gpu.index)).collect();
    let heading: Vec<&str> =
        std::iter::once("PORT").chain(names.iter().map(String::as_str)).collect();
    let mut table = Table::new(&heading);
    for port in &topology.ports {
        let distances = port.distances.iter().map(ToString::to_string);
        table.row(std::iter::once(port.name.to_string()).chain(distances));
    }
    format!("\nDistance to GPUs\n{}", table.render())
}

/// A headed list, or nothing where there is nothing to list.
pub(super) fn section(heading: &str, items: impl IntoIterator<Item = (String, String)>) -> String {
    let items: Vec<_> = items.into_iter().collect();
    if items.is_empty() {
        return String::new();
    }
    let width = items.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
    let lines = items.iter().map(|(label, text)| {
        let label = if width == 0 { "  ".to_owned() } else { format!("  {label:<width$}  ") };
        hanging(&label, text)
    });
    format!("\n{heading}\n{}", lines.collect::<String>())
}
