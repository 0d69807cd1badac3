//! A topology for programs.
//!
//! The form is versioned: fields may be added, none changes its meaning without a new `format`.

use kvferry_engine::topology::{PortReport, Topology};
use serde::Serialize;

use super::endpoint::EndpointRow;
use super::peer::{Meeting, MeetingRow};

/// The version of the form.
pub(super) const FORMAT: u32 = 1;

#[derive(Serialize)]
struct Report<'a> {
    format: u32,
    /// Why there is no list of adapters, where there is none.
    no_adapters: Option<String>,
    ports: Vec<PortRow>,
    route_groups: Vec<GroupRow>,
    gpus: Vec<GpuRow>,
    errors: Vec<String>,
    unheeded: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pairing: Option<&'a MeetingRow>,
}

#[derive(Serialize)]
struct PortRow {
    name: String,
    node_type: Option<String>,
    state: Option<String>,
    link_layer: Option<String>,
    rate_mbit_per_s: Option<u64>,
    numa_node: Option<u32>,
    pci: Option<String>,
    /// In the order of `gpus`.
    gpu_distances: Vec<&'static str>,
    used: bool,
    /// Why not.
    reason: Option<String>,
    cautions: Vec<String>,
    /// A position in `route_groups`.
    route_group: Option<usize>,
    endpoint: Option<EndpointRow>,
}

#[derive(Serialize)]
struct GroupRow {
    labels: Vec<String>,
    ports: Vec<String>,
}

#[derive(Serialize)]
struct GpuRow {
    index: u32,
    pci: String,
    numa_node: Option<u32>,
    nearest: Vec<String>,
}

/// The JSON text.
pub(super) fn render(topology: &Topology, meeting: Option<&Meeting>) -> anyhow::Result<String> {
    let report = Report {
        format: FORMAT,
        no_adapters: topology.no_adapters.as_ref().map(ToString::to_string),
        ports: topology.ports.iter().map(|port| port_row(topology, port)).collect(),
        route_groups: topology
            .groups
            .iter()
            .map(|group| GroupRow { labels: texts(&group.labels), ports: texts(&group.members) })
            .collect(),
        gpus: topology
            .gpus
            .iter()
            .map(|gpu| GpuRow {
                index: gpu.index.0,
                pci: gpu.address.to_string(),
                numa_node: gpu.place.numa_node.map(|node| node.0),
                nearest: texts(&gpu.nearest),
            })
            .collect(),
        errors: texts(&topology.errors),
        unheeded: texts(&topology.unheeded),
        pairing: meeting.map(Meeting::row),
    };
    Ok(format!("{}\n", serde_json::to_string_pretty(&report)?))
}

fn port_row(topology: &Topology, port: &PortReport) -> PortRow {
    let device = port.place.pci.as_ref().and_then(|path| path.device());
    PortRow {
        name: port.name.to_string(),
        node_type: port.node_type.as_ref().ok().map(ToString::to_string),
        state: port.state.as_ref().map(ToString::to_string),
        link_layer: port.link_layer.as_ref().map(ToString::to_string),
        rate_mbit_per_s: port.rate.map(|rate| rate.mbit_per_s),
        numa_node: port.place.numa_node.map(|node| node.0),
        pci: device.map(|device| device.to_string()),
        gpu_distances: port.distances.iter().map(|distance| distance.as_str()).collect(),
        used: port.verdict.is_ok(),
        reason: port.verdict.as_ref().err().map(ToString::to_string),
        cautions: texts(&port.cautions),
        route_group: topology.group_of(&port.name),
        endpoint: port.verdict.as_ref().ok().map(EndpointRow::from),
    }
}

fn texts(items: &[impl ToString]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}
