//! Everything together.

use super::adapter::Adapter;
use super::address::InterfaceAddress;
use super::fact::Fact;
use super::gpu::Gpu;
use super::netdev::{Netdev, NetdevName};
use super::root::HostRoot;
use super::route::RoutingTables;

/// All that is read of a host before anything is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// RDMA adapters; an absence means that no RDMA driver is loaded.
    pub adapters: Fact<Vec<Adapter>>,
    /// Network interfaces.
    pub netdevs: Fact<Vec<Netdev>>,
    /// Addresses of the interfaces.
    pub addresses: Fact<Vec<InterfaceAddress>>,
    /// Routes.
    pub routes: RoutingTables,
    /// GPUs.
    pub gpus: Fact<Vec<Gpu>>,
}

impl HostFacts {
    /// Reads a host. Takes a few thousand small reads (a table of 256 GIDs a port) and no lock.
    #[must_use]
    pub fn read(root: &HostRoot) -> Self {
        Self {
            adapters: Adapter::read_all(root),
            netdevs: Netdev::read_all(root),
            addresses: InterfaceAddress::read_all(root),
            routes: RoutingTables::read(root),
            gpus: Gpu::read_all(root),
        }
    }

    /// The interface of this name, where there is one.
    #[must_use]
    pub fn netdev(&self, name: &NetdevName) -> Option<&Netdev> {
        self.netdevs.as_ref().ok()?.iter().find(|netdev| netdev.name == *name)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::rdma::device::Absence;

    #[test]
    fn an_empty_root_is_all_absences_and_no_panic() {
        let empty = tempfile::tempdir().expect("a directory");
        let facts = HostFacts::read(&HostRoot::captured(empty.path()));
        assert!(matches!(facts.adapters, Err(Absence::Missing { .. })));
        assert!(matches!(facts.addresses, Err(Absence::Missing { .. })));
        assert!(facts.gpus.is_err() && facts.netdevs.is_err() && facts.routes.ipv4.is_err());
    }

    #[test]
    fn an_adapter_of_garbage_is_an_adapter_whose_facts_are_absent() {
        let root = tempfile::tempdir().expect("a directory");
        let adapter = root.path().join("sys/class/infiniband/odd0");
        for directory in ["ports/1/gids", "ports/x", "ports/999", "ports/2", "device", "node_guid"]
        {
            fs::create_dir_all(adapter.join(directory)).expect("a directory");
        }
        fs::write(adapter.join("node_type"), b"\xff\xfe\0nonsense").expect("a file");
        fs::write(adapter.join("ports/1/state"), "4").expect("a file");
        fs::write(adapter.join("ports/1/gids/0"), "fe80::1").expect("a file");

        let facts = HostFacts::read(&HostRoot::captured(root.path()));
        let adapters = facts.adapters.expect("a list");
        let [adapter] = &adapters[..] else { panic!("one adapter: {adapters:?}") };
        assert!(matches!(adapter.node_type, Err(Absence::Malformed { .. })));
        assert!(matches!(adapter.guid, Err(Absence::Unreadable { .. })), "{:?}", adapter.guid);
        assert!(adapter.pci.is_err() && adapter.numa_node.is_err());
        let ports = adapter.ports.as_ref().expect("ports");
        assert_eq!(ports.iter().map(|port| port.number.0).collect::<Vec<_>>(), [1, 2]);
        assert!(matches!(ports[0].state, Err(Absence::Malformed { .. })));
        assert_eq!(ports[0].gids.as_deref(), Ok(&[][..]));
        assert!(ports[1].gids.is_err());
    }
}
