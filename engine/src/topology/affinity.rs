//! How far GPUs and memory are from ports.

use std::fmt;

use kvferry_transport::rdma::device::{NumaNode, PciPath};

/// How far two PCIe devices are from each other, the nearest first; the names are those that
/// `nvidia-smi topo -m` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Distance {
    /// `PIX`: below one PCIe switch, or one device.
    Switch,
    /// `PXB`: over several switches, without leaving the tree of one root port.
    Switches,
    /// `PHB`: over the host bridge.
    HostBridge,
    /// `NODE`: over two host bridges of one NUMA node.
    Node,
    /// `SYS`: over the link between NUMA nodes.
    System,
    /// One of them has no known place, as virtual devices have none.
    Unknown,
}

/// Where a device is, as far as the kernel tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The way from its host bridge.
    pub pci: Option<PciPath>,
    /// The memory node that it is near.
    pub numa_node: Option<NumaNode>,
}

impl Place {
    /// How far another place is from here. The same in both directions.
    #[must_use]
    pub fn distance(&self, other: &Self) -> Distance {
        if let (Some(left), Some(right)) = (&self.pci, &other.pci)
            && left.host_bridge == right.host_bridge
        {
            return within_host_bridge(left, right);
        }
        match (self.numa_node, other.numa_node) {
            (Some(left), Some(right)) if left == right => Distance::Node,
            (Some(_), Some(_)) => Distance::System,
            _ => Distance::Unknown,
        }
    }
}

fn within_host_bridge(left: &PciPath, right: &PciPath) -> Distance {
    let (left, right) = (&left.functions, &right.functions);
    let common = left.iter().zip(right).take_while(|(left, right)| left == right).count();
    if common == 0 {
        return Distance::HostBridge;
    }
    // Of a switch's ports the upstream one is shared and one downstream port lies on each side.
    let bridges = |path: &[_]| path.len().saturating_sub(common + 1);
    if bridges(left) <= 1 && bridges(right) <= 1 { Distance::Switch } else { Distance::Switches }
}

/// The positions of those that are nearest: what serves a GPU best. All of them where no distance
/// is known, and none of an empty list.
#[must_use]
pub fn nearest(distances: &[Distance]) -> Vec<usize> {
    let best = distances.iter().min();
    let all = distances.iter().enumerate();
    all.filter(|(_, distance)| Some(*distance) == best).map(|(at, _)| at).collect()
}

/// The positions of those on a memory node: what serves host memory there best. All of them where
/// none is known to be on it.
#[must_use]
pub fn on_node(node: NumaNode, places: &[Place]) -> Vec<usize> {
    let near: Vec<usize> =
        (0..places.len()).filter(|at| places[*at].numa_node == Some(node)).collect();
    if near.is_empty() { (0..places.len()).collect() } else { near }
}

impl Distance {
    /// The name that `nvidia-smi topo -m` prints; `-` where it is not known.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Switch => "PIX",
            Self::Switches => "PXB",
            Self::HostBridge => "PHB",
            Self::Node => "NODE",
            Self::System => "SYS",
            Self::Unknown => "-",
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn place(path: &str, node: u32) -> Place {
        let pci = PciPath::parse(Path::new(&format!("/sys/devices/{path}")));
        assert!(pci.is_some(), "{path}");
        Place { pci, numa_node: Some(NumaNode(node)) }
    }

    #[test]
    fn distance_grows_with_what_lies_between() {
        let gpu = place("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", 0);
        for (path, node, expected) in [
            ("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0", 0, Distance::Switch),
            (
                "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1a:00.0/0000:1b:00.0/0000:1c:00.0",
                0,
                Distance::Switches,
            ),
            ("pci0000:15/0000:15:02.0/0000:20:00.0", 0, Distance::HostBridge),
            ("pci0000:37/0000:37:01.0/0000:38:00.0", 0, Distance::Node),
            ("pci0000:97/0000:97:01.0/0000:98:00.0", 1, Distance::System),
        ] {
            let other = place(path, node);
            assert_eq!(gpu.distance(&other), expected, "{path}");
            assert_eq!(other.distance(&gpu), expected, "{path}, the other way");
        }
        assert_eq!(gpu.distance(&Place::default()), Distance::Unknown);
    }

    #[test]
    fn two_functions_of_one_card_are_as_near_as_can_be() {
        let port = |function| place(&format!("pci0000:15/0000:15:01.0/0000:16:00.{function}"), 0);
        assert_eq!(port(0).distance(&port(1)), Distance::Switch);
    }

    #[test]
    fn memory_of_a_node_without_ports_may_use_all() {
        let places = [place("pci0000:15/0000:15:01.0", 0), place("pci0000:97/0000:97:01.0", 1)];
        assert_eq!(on_node(NumaNode(1), &places), [1]);
        assert_eq!(on_node(NumaNode(7), &places), [0, 1]);
    }

    proptest! {
        #[test]
        fn the_nearest_are_all_of_the_smallest_distance(
            picks in proptest::collection::vec(0_usize..6, 0..20)
        ) {
            use Distance::{HostBridge, Node, Switch, Switches, System, Unknown};
            let order = [Switch, Switches, HostBridge, Node, System, Unknown];
            let distances: Vec<_> = picks.iter().map(|at| order[*at]).collect();
            let found = nearest(&distances);
            prop_assert_eq!(found.is_empty(), distances.is_empty());
            for (at, distance) in distances.iter().enumerate() {
                let smaller = distances.iter().any(|other| other < distance);
                prop_assert_eq!(found.contains(&at), !smaller);
            }
        }
    }
}
