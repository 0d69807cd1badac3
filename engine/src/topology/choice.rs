//! A host's topology: everything together.

use kvferry_transport::rdma::device::{
    Absence, Adapter, DeviceName, Fact, GpuIndex, HostFacts, LinkLayer, LinkRate, NodeType,
    PciAddress, Port, PortNumber, PortState,
};

use super::affinity::{Distance, Place, nearest};
use super::assess;
use super::endpoint::{Endpoint, PortName};
use super::group::{self, RouteGroup};
use super::selection::{Selection, SelectionError};
use super::verdict::{Caution, Refusal};
use super::wishes::{Unheeded, Wishes};

/// Which ports of a host are used, and why the others are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Every port of every adapter, by name; an adapter without ports has one entry, port 0.
    pub ports: Vec<PortReport>,
    /// The ports that are used, by whom they reach on this host.
    pub groups: Vec<RouteGroup>,
    /// The GPUs.
    pub gpus: Vec<GpuPlace>,
    /// Why there is no list of adapters, where there is none.
    pub no_adapters: Option<Absence>,
    /// Wishes that cannot be granted. Where there are any, the transport must not start.
    pub errors: Vec<SelectionError>,
    /// Wishes that do not decide.
    pub unheeded: Vec<Unheeded>,
}

/// A port and the verdict on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortReport {
    /// Which port.
    pub name: PortName,
    /// What kind of device the adapter says it is.
    pub node_type: Fact<NodeType>,
    /// What the port is doing.
    pub state: Option<PortState>,
    /// What it is connected to.
    pub link_layer: Option<LinkLayer>,
    /// How fast.
    pub rate: Option<LinkRate>,
    /// Where it is.
    pub place: Place,
    /// How far each GPU is, in the order of [`Topology::gpus`].
    pub distances: Vec<Distance>,
    /// How it is used, or why not.
    pub verdict: Result<Endpoint, Refusal>,
    /// What to mind where it is used.
    pub cautions: Vec<Caution>,
}

/// A GPU and the ports that serve it best.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuPlace {
    /// Which.
    pub index: GpuIndex,
    /// Its PCI address.
    pub address: PciAddress,
    /// Where it is.
    pub place: Place,
    /// The used ports that are nearest to it.
    pub nearest: Vec<PortName>,
}

impl Topology {
    /// Chooses. Never fails: what cannot be had is among [`Self::errors`], what cannot be used has
    /// its [`Refusal`].
    #[must_use]
    pub fn choose(facts: &HostFacts, wishes: &Wishes) -> Self {
        let mut gpus = gpus(facts);
        let selection = Selection::new(wishes);
        let adapters = facts.adapters.as_deref().unwrap_or_default();
        let ports: Vec<_> = adapters
            .iter()
            .flat_map(|adapter| report_adapter(facts, wishes, &selection, adapter, &gpus))
            .collect();
        let (errors, more) = selection.check(&ports);
        let used: Vec<_> = ports.iter().filter_map(|port| port.verdict.as_ref().ok()).collect();
        let groups = group::of_host(&used);
        for (at, gpu) in gpus.iter_mut().enumerate() {
            gpu.nearest = nearest_ports(at, &ports);
        }
        Self {
            groups,
            gpus,
            no_adapters: facts.adapters.as_ref().err().cloned(),
            errors,
            unheeded: wishes.unheeded.iter().cloned().chain(more).collect(),
            ports,
        }
    }

    /// The ports that are used, as a peer needs to know them, by name.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.ports.iter().filter_map(|port| port.verdict.as_ref().ok().cloned()).collect()
    }

    /// The route group of a port, as a position in [`Self::groups`].
    #[must_use]
    pub fn group_of(&self, port: &PortName) -> Option<usize> {
        self.groups.iter().position(|group| group.members.contains(port))
    }
}

fn report_adapter(
    facts: &HostFacts,
    wishes: &Wishes,
    selection: &Selection<'_>,
    adapter: &Adapter,
    gpus: &[GpuPlace],
) -> Vec<PortReport> {
    let place = Place {
        pci: adapter.pci.as_ref().ok().cloned(),
        numa_node: adapter.numa_node.as_ref().ok().copied(),
    };
    let report = |port: Option<&Port>, verdict, cautions| PortReport {
        name: name(&adapter.name, port),
        node_type: adapter.node_type.clone(),
        state: port.and_then(|port| port.state.as_ref().ok().cloned()),
        link_layer: port.and_then(|port| port.link_layer.as_ref().ok().cloned()),
        rate: port.and_then(|port| port.rate.as_ref().ok().copied()),
        distances: gpus.iter().map(|gpu| gpu.place.distance(&place)).collect(),
        place: place.clone(),
        verdict,
        cautions,
    };
    let ports = match &adapter.ports {
        Ok(ports) if !ports.is_empty() => ports,
        absent => {
            let no_port = absent
                .as_ref()
                .err()
                .map_or(Refusal::NoPort, |absence| Refusal::Unknown { absence: absence.clone() });
            let refusal = assess::check_adapter(adapter).err().unwrap_or(no_port);
            return vec![report(None, Err(refusal), vec![])];
        }
    };
    let reports = ports.iter().map(|port| {
        let mut cautions = Vec::new();
        let admitted = selection.admit(&name(&adapter.name, Some(port)));
        let verdict =
            admitted.and_then(|()| assess::assess(facts, wishes, adapter, port, &mut cautions));
        if verdict.is_err() {
            cautions.clear();
        }
        report(Some(port), verdict, cautions)
    });
    reports.collect()
}

fn name(device: &DeviceName, port: Option<&Port>) -> PortName {
    PortName { device: device.clone(), port: port.map_or(PortNumber(0), |port| port.number) }
}

fn gpus(facts: &HostFacts) -> Vec<GpuPlace> {
    let gpus = facts.gpus.as_deref().unwrap_or_default();
    let placed = gpus.iter().map(|gpu| GpuPlace {
        index: gpu.index,
        address: gpu.address,
        place: Place {
            pci: gpu.pci.as_ref().ok().cloned(),
            numa_node: gpu.numa_node.as_ref().ok().copied(),
        },
        nearest: vec![],
    });
    placed.collect()
}

fn nearest_ports(gpu: usize, ports: &[PortReport]) -> Vec<PortName> {
    let used: Vec<_> = ports.iter().filter(|port| port.verdict.is_ok()).collect();
    let distances: Vec<_> = used.iter().map(|port| port.distances[gpu]).collect();
    nearest(&distances).into_iter().map(|at| used[at].name.clone()).collect()
}
