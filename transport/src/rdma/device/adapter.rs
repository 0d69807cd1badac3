//! Adapters: what stands under `/sys/class/infiniband`.

use std::fmt;

use super::fact::Fact;
use super::name::DeviceName;
use super::pci::{self, NumaNode, PciPath};
use super::port::{Numbered, Port, PortNumber};
use super::root::HostRoot;

/// What kind of RDMA device this is: `node_type`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NodeType {
    /// `1: CA`: a channel adapter, InfiniBand or RoCE.
    ChannelAdapter,
    /// `4: RNIC`: iWARP.
    Rnic,
    /// A switch, a router, `7: unspecified`, or something newer.
    Other(Numbered),
}

/// An adapter's globally unique identifier: the same device has the same one, seen from wherever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Guid(pub u64);

/// What the kernel says about an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Its name.
    pub name: DeviceName,
    /// `node_type`.
    pub node_type: Fact<NodeType>,
    /// `node_guid`.
    pub guid: Fact<Guid>,
    /// `device/numa_node`; virtual devices have none.
    pub numa_node: Fact<NumaNode>,
    /// Where `device` leads; virtual devices have none.
    pub pci: Fact<PciPath>,
    /// Its ports, by number.
    pub ports: Fact<Vec<Port>>,
}

const ADAPTERS: &str = "/sys/class/infiniband";

impl Adapter {
    /// All adapters, ordered by name.
    ///
    /// # Errors
    /// [`Absence`](super::Absence) where the kernel has no list of them: no RDMA driver is loaded.
    pub fn read_all(root: &HostRoot) -> Fact<Vec<Self>> {
        let names = root.names(ADAPTERS)?;
        let mut adapters: Vec<_> = names.iter().map(|name| Self::read(root, name)).collect();
        adapters.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(adapters)
    }

    fn read(root: &HostRoot, name: &str) -> Self {
        let path = format!("{ADAPTERS}/{name}");
        Self {
            name: DeviceName::new(name),
            node_type: root.parsed(&format!("{path}/node_type"), "a node type", node_type),
            guid: root.parsed(&format!("{path}/node_guid"), "a GUID", guid),
            numa_node: pci::read_numa_node(root, &format!("{path}/device/numa_node")),
            pci: PciPath::read(root, &format!("{path}/device")),
            ports: read_ports(root, &path),
        }
    }
}

fn read_ports(root: &HostRoot, adapter: &str) -> Fact<Vec<Port>> {
    let names = root.names(&format!("{adapter}/ports"))?;
    let numbers = names.iter().filter_map(|name| name.parse().ok().map(PortNumber));
    let mut ports: Vec<_> = numbers.map(|number| Port::read(root, adapter, number)).collect();
    ports.sort_by_key(|port| port.number);
    Ok(ports)
}

fn node_type(text: &str) -> Option<NodeType> {
    let numbered = Numbered::parse(text)?;
    Some(match numbered.number {
        1 => NodeType::ChannelAdapter,
        4 => NodeType::Rnic,
        _ => NodeType::Other(numbered),
    })
}

/// Four groups of four hexadecimal digits. All zeros is a driver's way to say that it has none.
fn guid(text: &str) -> Option<Guid> {
    let groups: Vec<_> = text.split(':').collect();
    if groups.len() != 4 || groups.iter().any(|group| group.len() != 4) {
        return None;
    }
    match u64::from_str_radix(&groups.concat(), 16) {
        Ok(guid) if guid != 0 => Some(Guid(guid)),
        _ => None,
    }
}

impl fmt::Display for NodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChannelAdapter => f.pad("CA"),
            Self::Rnic => f.pad("RNIC"),
            Self::Other(numbered) => f.pad(&numbered.label),
        }
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:016x}", self.0);
        f.pad(&format!("{}:{}:{}:{}", &digits[..4], &digits[4..8], &digits[8..12], &digits[12..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guid_is_four_groups_and_not_zero() {
        let found = guid("b83f:d203:00e2:8bb4").expect("a GUID");
        assert_eq!(found.to_string(), "b83f:d203:00e2:8bb4");
        for text in ["0000:0000:0000:0000", "b83f:d203:00e2", "b83f:d203:00e2:8bb45", "x"] {
            assert_eq!(guid(text), None, "{text}");
        }
    }

    #[test]
    fn node_types_other_than_adapters_keep_their_name() {
        assert_eq!(node_type("1: CA"), Some(NodeType::ChannelAdapter));
        assert_eq!(node_type("4: RNIC"), Some(NodeType::Rnic));
        let Some(NodeType::Other(other)) = node_type("7: unspecified") else { panic!("other") };
        assert_eq!(other.to_string(), "7: unspecified");
    }
}
