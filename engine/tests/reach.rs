//! What holds for every two ports, whatever they are.

use std::net::{IpAddr, Ipv4Addr};

use kvferry_engine::topology::reach::between;
use kvferry_engine::topology::{
    Doubt, Endpoint, EthernetReach, Fabric, Mtu, Obstacle, Overlay, Pairing, PortName, Reach,
    RoceVersion, Sign,
};
use kvferry_transport::rdma::device::{
    DeviceName, Gid, GidIndex, Guid, IpNetwork, Lid, NetdevName, PKey, PKeyIndex, PortNumber,
    SubnetPrefix,
};
use proptest::prelude::*;

fn endpoint(number: u8, gid: Gid, pkey: Option<PKey>, fabric: Fabric) -> Endpoint {
    Endpoint {
        name: PortName { device: DeviceName::new(format!("mlx5_{number}")), port: PortNumber(1) },
        guid: Some(Guid(u64::from(number) + 1)),
        gid,
        gid_index: GidIndex(3),
        pkey,
        pkey_index: PKeyIndex(0),
        mtu: Some(Mtu::B4096),
        rate: None,
        fabric,
    }
}

fn network(address: Ipv4Addr, prefix_len: u8) -> IpNetwork {
    IpNetwork::around(address.into(), prefix_len).expect("a legal length")
}

fn roce(number: u8, address: Ipv4Addr, reach: impl FnOnce(&mut EthernetReach)) -> Endpoint {
    let mut ethernet = EthernetReach {
        version: RoceVersion::V2,
        address: IpAddr::V4(address),
        netdev: NetdevName::new("rdma0"),
        network: Some(network(address, 24)),
        routed: vec![],
        default_route: false,
        tables_complete: true,
        overlay: None,
    };
    reach(&mut ethernet);
    let gid = Gid(address.to_ipv6_mapped().octets());
    endpoint(number, gid, None, Fabric::Ethernet(ethernet))
}

prop_compose! {
    fn any_roce()(
        number in 0_u8..4,
        third in 0_u8..3,
        last in 1_u8..4,
        prefix_len in prop::sample::select(vec![16_u8, 24, 30]),
        known in any::<bool>(),
        routed in any::<bool>(),
        default_route in any::<bool>(),
        tables_complete in any::<bool>(),
        overlay in prop::bool::weighted(0.2),
        v1 in prop::bool::weighted(0.2),
    ) -> Endpoint {
        let address = Ipv4Addr::new(10, 0, third, last);
        roce(number, address, |reach| {
            reach.network = known.then(|| network(address, prefix_len));
            if routed {
                reach.routed.push(network(address, 8));
            }
            reach.default_route = default_route;
            reach.tables_complete = tables_complete;
            if let (true, Some(netdev)) = (overlay, NetdevName::new("docker0")) {
                reach.overlay = Some(Overlay { netdev, sign: Sign::Bridge });
            }
            if v1 {
                reach.version = RoceVersion::V1;
            }
        })
    }
}

prop_compose! {
    fn any_infiniband()(
        number in 0_u8..4,
        subnet in 0_u64..3,
        manager in prop::option::of(1_u16..3),
        pkey in prop::sample::select(vec![0xffff_u16, 0x7fff, 0x8001]),
    ) -> Endpoint {
        let fabric = Fabric::InfiniBand {
            subnet: SubnetPrefix(subnet),
            subnet_manager: manager.map(Lid),
        };
        endpoint(number, Gid([number; 16]), Some(PKey(pkey)), fabric)
    }
}

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    prop_oneof![3 => any_roce(), 1 => any_infiniband()]
}

fn kind(reach: &Reach) -> &'static str {
    match reach {
        Reach::Reachable => "reachable",
        Reach::Undecided(_) => "undecided",
        Reach::Unreachable(_) => "unreachable",
    }
}

proptest! {
    #[test]
    fn reach_is_the_same_both_ways(left in any_endpoint(), right in any_endpoint()) {
        prop_assert_eq!(kind(&between(&left, &right)), kind(&between(&right, &left)));
    }

    #[test]
    fn reachable_is_only_what_tables_on_both_ends_say(left in any_roce(), right in any_roce()) {
        let (Fabric::Ethernet(from), Fabric::Ethernet(to)) = (&left.fabric, &right.fabric) else {
            unreachable!("Ethernet");
        };
        let leads = |from: &EthernetReach, to: IpAddr| {
            let routed = from.version == RoceVersion::V2
                && from.routed.iter().any(|network| network.contains(to));
            from.network.is_some_and(|network| network.contains(to) || routed)
        };
        if between(&left, &right) == Reach::Reachable && left.guid != right.guid {
            prop_assert!(leads(from, to.address) && leads(to, from.address));
            prop_assert!(from.address != to.address && from.version == to.version);
            prop_assert!(from.overlay.is_none() && to.overlay.is_none());
        }
    }

    #[test]
    fn pairs_are_of_ports_that_reach_each_other_and_nobody_who_does_is_left_out(
        local in prop::collection::vec(any_endpoint(), 1..8),
        remote in prop::collection::vec(any_endpoint(), 1..8),
    ) {
        let named = |endpoints: Vec<Endpoint>| -> Vec<Endpoint> {
            let numbered = (1_u8..).zip(endpoints).map(|(number, mut endpoint)| {
                endpoint.name.port = PortNumber(number);
                endpoint
            });
            numbered.collect()
        };
        let (local, remote) = (named(local), named(remote));
        let pairing = Pairing::new(local.clone(), remote.clone()).expect("ports on both ends");
        let reaches = |here: &Endpoint| {
            remote.iter().any(|there| between(here, there) == Reach::Reachable)
        };
        let pairs = match pairing.pairs() {
            Err(_) => {
                prop_assert!(!local.iter().any(reaches));
                return Ok(());
            }
            Ok(pairs) => pairs,
        };
        for pair in &pairs {
            let here = local.iter().find(|end| end.name == pair.local).expect("a port here");
            let there = remote.iter().find(|end| end.name == pair.remote).expect("a port there");
            prop_assert_eq!(between(here, there), Reach::Reachable);
        }
        for here in &local {
            prop_assert_eq!(pairs.iter().any(|pair| pair.local == here.name), reaches(here));
        }
    }
}

#[test]
fn a_default_route_over_the_interface_promises_nothing_and_refuses_nothing() {
    let left = roce(0, Ipv4Addr::new(10, 0, 0, 1), |reach| reach.default_route = true);
    let right = roce(1, Ipv4Addr::new(10, 0, 1, 1), |reach| reach.default_route = true);
    assert!(matches!(between(&left, &right), Reach::Undecided(Doubt::DefaultRoute { .. })));
    let without = roce(1, Ipv4Addr::new(10, 0, 1, 1), |_| {});
    let refused = between(&left, &without);
    assert!(matches!(refused, Reach::Unreachable(Obstacle::NoRoute { .. })), "{refused:?}");
}

#[test]
fn an_address_of_unknown_network_is_probed_where_the_other_end_may_reach_it() {
    let unknown = roce(0, Ipv4Addr::new(10, 0, 0, 1), |reach| reach.network = None);
    let near = roce(1, Ipv4Addr::new(10, 0, 0, 2), |_| {});
    let far = roce(1, Ipv4Addr::new(10, 0, 1, 2), |_| {});
    assert!(matches!(between(&unknown, &near), Reach::Undecided(Doubt::NetworkUnknown { .. })));
    assert!(matches!(between(&unknown, &far), Reach::Unreachable(Obstacle::NoRoute { .. })));
}

#[test]
fn infiniband_and_ethernet_never_meet() {
    let fabric = Fabric::InfiniBand { subnet: SubnetPrefix(1), subnet_manager: None };
    let infiniband = endpoint(0, Gid([1; 16]), Some(PKey(0xffff)), fabric);
    let ethernet = roce(1, Ipv4Addr::new(10, 0, 0, 1), |_| {});
    assert_eq!(between(&infiniband, &ethernet), Reach::Unreachable(Obstacle::Fabrics));
}
