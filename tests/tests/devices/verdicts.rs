//! How each port of each host is used, or why not.

use kvferry_engine::topology::{Topology, Wishes};
use kvferry_transport::rdma::device::{HostFacts, HostRoot};

use crate::expect::{assert_verdicts, topology};

#[test]
fn sixteen_adapters_are_all_used_and_lie_on_two_rails() {
    let found = topology("two-rails-16-adapters", &[]);
    assert_verdicts(
        &found,
        &[
            "mlx5_0:1: GID 3 ::ffff:172.16.10.1, 172.16.0.0/13",
            "mlx5_1:1: GID 3 ::ffff:172.24.10.1, 172.24.0.0/13",
            "mlx5_6:1: GID 3 ::ffff:172.16.11.1, 172.16.0.0/13",
            "mlx5_7:1: GID 3 ::ffff:172.24.11.1, 172.24.0.0/13",
            "mlx5_10:1: GID 3 ::ffff:172.16.12.1, 172.16.0.0/13",
            "mlx5_11:1: GID 3 ::ffff:172.24.12.1, 172.24.0.0/13",
            "mlx5_12:1: GID 3 ::ffff:172.16.13.1, 172.16.0.0/13",
            "mlx5_13:1: GID 3 ::ffff:172.24.13.1, 172.24.0.0/13",
            "mlx5_14:1: GID 3 ::ffff:172.16.14.1, 172.16.0.0/13",
            "mlx5_15:1: GID 3 ::ffff:172.24.14.1, 172.24.0.0/13",
            "mlx5_16:1: GID 3 ::ffff:172.16.15.1, 172.16.0.0/13",
            "mlx5_17:1: GID 3 ::ffff:172.24.15.1, 172.24.0.0/13",
            "mlx5_20:1: GID 3 ::ffff:172.16.16.1, 172.16.0.0/13",
            "mlx5_21:1: GID 3 ::ffff:172.24.16.1, 172.24.0.0/13",
            "mlx5_22:1: GID 3 ::ffff:172.16.17.1, 172.16.0.0/13",
            "mlx5_23:1: GID 3 ::ffff:172.24.17.1, 172.24.0.0/13",
        ],
    );
    let sizes: Vec<_> = found.groups.iter().map(|group| group.members.len()).collect();
    assert_eq!(sizes, [8, 8]);
    for (gpu, nearest) in found.gpus.iter().zip([
        ["mlx5_0:1", "mlx5_1:1"],
        ["mlx5_6:1", "mlx5_7:1"],
        ["mlx5_10:1", "mlx5_11:1"],
        ["mlx5_12:1", "mlx5_13:1"],
        ["mlx5_14:1", "mlx5_15:1"],
        ["mlx5_16:1", "mlx5_17:1"],
        ["mlx5_20:1", "mlx5_21:1"],
        ["mlx5_22:1", "mlx5_23:1"],
    ]) {
        let found: Vec<_> = gpu.nearest.iter().map(ToString::to_string).collect();
        assert_eq!(found, nearest, "GPU {}", gpu.index);
    }
}

#[test]
fn devices_that_carry_no_traffic_are_refused_each_for_its_own_reason() {
    assert_verdicts(
        &topology("unusable-devices", &[]),
        &[
            "ibp1:1: not used: partition key 0x7fff at index 0 is a limited member's: two of them \
             cannot talk; no entry is a full member's, ask the fabric's administrator",
            "ibp2:1: not used: partition key 0x7fff at index 0 is a limited member's: two of them \
             cannot talk; index 1 has 0x8003, a full member's: KVFERRY_RDMA_PKEY_INDEX=1 takes it",
            "ibp3:1: not used: partition key 0x0000 at index 0 names no partition; no entry is a \
             full member's, ask the fabric's administrator",
            "ibp4:1: not used: partition key 0x8000 at index 0 names no partition; no entry is a \
             full member's, ask the fabric's administrator",
            "ibp5:1: not used: /sys/class/infiniband/ibp5/ports/1/pkeys/0 says \"not a key\", \
             which is not a partition key",
            "ibp6:1: not used: the port is INIT, not ACTIVE: check cable, switch port and, on \
             InfiniBand, the subnet manager",
            "irdma0:1: not used: node type 4: RNIC (iWARP), which is not supported",
            "mlx5_0:1: GID 3 ::ffff:10.14.1.72, 10.14.1.64/26",
            "mlx5_1:1: not used: node type 7: unspecified, not a channel adapter",
            "mlx5_2:1: not used: link layer \"Unknown\", neither InfiniBand nor Ethernet",
            "mlx5_3:1: not used: the port is DOWN, not ACTIVE: check cable, switch port and, on \
             InfiniBand, the subnet manager",
            "odd0:0: not used: the adapter has no port",
        ],
    );
}

#[test]
fn the_gid_that_reaches_furthest_is_chosen_and_never_a_containers_while_there_is_a_better() {
    let own_link = "only a link-local GID: reaches its own link only, a probe decides with whom";
    assert_verdicts(
        &topology("gid-choices", &[]),
        &[
            "bridged:1: GID 5 fd93:16d3:59b6::18, fd93:16d3:59b6::/64",
            &format!("bridgedll:1: GID 1 fe80::19, link of bridgedll:1; {own_link}"),
            "dualstack:1: GID 3 ::ffff:192.0.2.7, 192.0.2.0/24",
            "empty:1: not used: all 16 GIDs are empty: give the interface an address",
            "fabric10:1: GID 3 ::ffff:10.14.1.72, 10.14.1.64/26",
            "foreign:1: GID 3 ::ffff:26.208.9.250, link of foreign:1; the GID's interface is not \
             visible here: a probe decides with whom",
            "halfforeign:1: GID 5 fd93:16d3:59b6::22, fd93:16d3:59b6::/64",
            &format!(
                "linklocal:1: GID 1 fe80::2802:5caf:eedf:e65c, link of linklocal:1; {own_link}"
            ),
            "onlyv1:1: not used: no RoCE v2 GID among 1: give the interface an address, or enable \
             RoCE v2",
            "overlayonly:1: GID 2 ::ffff:10.244.3.1, link of overlayonly:1; only a GID of cni0 \
             (by its name a container's): a probe decides with whom",
            "shared:1: GID 7 ::ffff:26.208.8.252, 26.208.8.0/24",
            "ulaonly:1: GID 3 fd93:16d3:59b6::17, fd93:16d3:59b6::/64",
            &format!("zeroconf:1: GID 3 ::ffff:169.254.3.1, link of zeroconf:1; {own_link}"),
        ],
    );
}

#[test]
fn virtual_devices_without_a_place_are_used_at_an_unknown_distance() {
    let found = topology("virtual-devices", &[]);
    assert_verdicts(
        &found,
        &[
            "rxe_a0:1: GID 3 ::ffff:10.77.0.1, 10.77.0.0/24",
            "rxe_b0:1: GID 3 ::ffff:10.77.0.2, 10.77.0.0/24",
        ],
    );
    assert!(found.ports.iter().all(|port| port.distances[0].as_str() == "-"));
    assert_eq!(found.gpus[0].nearest.len(), 2, "no device is nearer than another");
}

#[test]
fn a_bonded_device_is_used_by_its_bonds_address() {
    assert_verdicts(
        &topology("bonds", &[]),
        &[
            "bnxt_re0:1: GID 1 fe80::31, link of bnxt_re0:1; only a link-local GID: reaches its \
             own link only, a probe decides with whom",
            "mlx5_bond_0:1: GID 3 ::ffff:10.30.0.5, 10.30.0.0/24",
        ],
    );
}

#[test]
fn infiniband_ports_are_grouped_by_subnet_and_its_manager() {
    assert_verdicts(
        &topology("infiniband-two-subnets", &[]),
        &[
            "ib0:1: GID 0 fec0::1:b83f:d203:a:1, fec0:0000:0000:0001 (SM 1), 0xffff",
            "ib1:1: GID 0 fec0::2:b83f:d203:a:2, fec0:0000:0000:0002 (SM 2), 0xffff",
            "ib2:1: GID 0 fec0::1:b83f:d203:a:3, fec0:0000:0000:0001 (SM 1), 0xffff",
            "ib3:1: GID 0 fec0::2:b83f:d203:a:4, fec0:0000:0000:0002 (SM 2), 0xffff",
            "ib4:1: GID 0 fe80::b83f:d203:a:5, fe80:0000:0000:0000 (SM 3), 0xffff",
            "ib5:1: GID 0 fec0::1:b83f:d203:a:6, fec0:0000:0000:0001 (SM 1) partition 0x0001, 0x8001",
        ],
    );
}

#[test]
fn gpus_are_at_the_distance_that_the_pcie_tree_shows() {
    let found = topology("gpu-distances", &[]);
    let distances = |gpu: usize| -> Vec<_> {
        found.ports.iter().map(|port| port.distances[gpu].as_str()).collect()
    };
    assert_eq!(distances(0), ["PIX", "PXB", "PHB", "NODE", "SYS", "-"]);
    assert_eq!(distances(1), ["SYS", "SYS", "SYS", "SYS", "NODE", "-"]);
    let nearest = |gpu: usize| -> Vec<_> {
        found.gpus[gpu].nearest.iter().map(ToString::to_string).collect()
    };
    assert_eq!(nearest(0), ["mlx5_0:1"]);
    assert_eq!(nearest(1), ["mlx5_4:1"]);
}

#[test]
fn a_host_without_an_rdma_driver_says_which_directory_is_missing() {
    let empty = tempfile::tempdir().expect("a directory");
    let root = HostRoot::captured(empty.path());
    let facts = HostFacts::read(&root);
    let found = Topology::choose(&facts, &Wishes::default());
    let absence = found.no_adapters.expect("an absence").to_string();
    assert_eq!(absence, "/sys/class/infiniband does not exist");
    assert!(found.ports.is_empty() && found.groups.is_empty());
}
