//! Which RDMA devices are used, with whom, and why the others are not: on every fixture host.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use kvferry_engine::topology::{
    Answer, Answers, Doubt, Endpoint, Mtu, Obstacle, Pair, Pairing, PairingError, PortReport,
    Probe, RefusedReason, SelectionError, Topology, Wishes,
};
use kvferry_proto::Incarnation;
use kvferry_tests::hosts::{self, Host};
use kvferry_transport::rdma::device::{HostFacts, HostRoot, PKey};

/// What is decided of a host where the environment says `variables`.
fn topology(host: &str, variables: &[(&str, &str)]) -> Topology {
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
fn verdict(topology: &Topology, port: &PortReport) -> String {
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

fn assert_verdicts(topology: &Topology, expected: &[&str]) {
    let found: Vec<_> = topology.ports.iter().map(|port| verdict(topology, port)).collect();
    assert_eq!(found, expected, "\n{}", found.join("\n"));
}

fn pairing(local: &str, remote: &str) -> Pairing {
    let endpoints = |host| topology(host, &[]).endpoints();
    Pairing::new(endpoints(local), endpoints(remote)).expect("two hosts with devices")
}

fn names(pairs: &[Pair]) -> Vec<String> {
    pairs.iter().map(|pair| format!("{} - {}", pair.local, pair.remote)).collect()
}

/// A probe that answers by a rule and keeps what it was asked.
struct Fabric<F> {
    rule: F,
    asked: Vec<String>,
}

impl<F: Fn(&Endpoint, &Endpoint) -> Answer> Probe for Fabric<F> {
    fn probe(&mut self, local: &Endpoint, remote: &Endpoint) -> Answer {
        self.asked.push(format!("{} - {}", local.name, remote.name));
        (self.rule)(local, remote)
    }
}

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
fn devices_pair_within_their_rail_and_never_across() {
    let pairing = pairing("two-rails-16-adapters", "two-rails-16-adapters-peer");
    assert!(pairing.next_question().is_none(), "tables decide everything");
    let pairs = pairing.pairs().expect("pairs");
    let same: Vec<_> = pairing_names().iter().map(|name| format!("{name} - {name}")).collect();
    assert_eq!(names(&pairs), same);
    assert!(pairs.iter().all(|pair| pair.mtu == Some(Mtu::B4096)));
    let across: Vec<_> = pairing.refused().into_iter().map(|refused| refused.reason).collect();
    assert_eq!(across.len(), 2, "each rail here with the other there");
    let no_route = |reason: &RefusedReason| {
        matches!(reason, RefusedReason::Unreachable(Obstacle::NoRoute { .. }))
    };
    assert!(across.iter().all(no_route), "{across:?}");
}

fn pairing_names() -> Vec<String> {
    let numbers = [0, 1, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22, 23];
    numbers.iter().map(|number| format!("mlx5_{number}:1")).collect()
}

#[test]
fn hosts_of_two_rails_are_refused_with_both_tables_before_anything_is_sent() {
    let rail = |host, name| topology(host, &[("KVFERRY_RDMA_DEVICES", name)]).endpoints();
    let here = rail("two-rails-16-adapters", "mlx5_0,mlx5_6");
    let there = rail("two-rails-16-adapters-peer", "mlx5_1");
    let error = Pairing::new(here, there).expect("devices").pairs().expect_err("two rails");
    assert_eq!(
        error.to_string(),
        "no RDMA device here and there share a route group\n\
         \x20 here:\n\
         \x20   mlx5_0:1       GID ::ffff:172.16.10.1, group 172.16.0.0/13\n\
         \x20   mlx5_6:1       GID ::ffff:172.16.11.1, group 172.16.0.0/13\n\
         \x20 there:\n\
         \x20   mlx5_1:1       GID ::ffff:172.24.10.101, group 172.24.0.0/13\n\
         \x20 why not:\n\
         \x20   mlx5_0:1 - mlx5_1:1: no route from 172.16.10.1 to 172.24.10.101 over the \
         device's interface"
    );
}

#[test]
fn a_host_without_usable_devices_is_refused_by_its_side() {
    let here = topology("two-mtus", &[]).endpoints();
    let empty = Pairing::new(here.clone(), vec![]).expect_err("no device there");
    assert_eq!(empty, PairingError::NoDevice { local: false });
    let crowd = vec![here[0].clone(); Pairing::PORTS + 1];
    assert!(matches!(Pairing::new(here, crowd), Err(PairingError::TooManyPorts { .. })));
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
fn a_partition_key_that_is_asked_for_is_used_where_it_names_a_partition() {
    let found = topology("unusable-devices", &[("MC_PKEY_INDEX", "1")]);
    let line = |name: &str| {
        let port = found.ports.iter().find(|port| port.name.to_string() == name);
        verdict(&found, port.expect("a port"))
    };
    assert_eq!(
        line("ibp2:1"),
        "ibp2:1: GID 0 fe80::b83f:d203:e2:8bb2, fe80:0000:0000:0000 partition 0x0003, 0x8003"
    );
    assert!(line("ibp1:1").contains("partition key 0x0000 at index 1 names no partition"));
    assert!(line("ibp3:1").contains("no partition key at index 1, the table has 1"));
}

#[test]
fn limited_members_that_are_asked_for_reach_full_members_and_not_each_other() {
    let limited = topology("unusable-devices", &[("MC_PKEY_INDEX", "0")]).endpoints();
    let limited: Vec<_> = limited.into_iter().filter(|end| end.pkey.is_some()).collect();
    assert_eq!(limited.len(), 2, "0x7fff twice");
    let mut full = limited[1].clone();
    full.pkey = Some(PKey(0xffff));
    let pair = |there: &Endpoint| Pairing::new(vec![limited[0].clone()], vec![there.clone()]);
    assert!(pair(&full).expect("devices").pairs().is_ok());
    let error = pair(&limited[1]).expect("devices").pairs().expect_err("limited").to_string();
    assert!(error.contains("0x7fff and 0x7fff are both limited members'"), "{error}");
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
fn a_gid_index_that_is_asked_for_wins_and_is_checked() {
    for variable in ["KVFERRY_RDMA_GID_INDEX", "MC_GID_INDEX", "NCCL_IB_GID_INDEX"] {
        let found = topology("gid-choices", &[(variable, "1")]);
        let line = |name: &str| {
            let port = found.ports.iter().find(|port| port.name.to_string() == name);
            verdict(&found, port.expect("a port"))
        };
        assert!(line("fabric10:1").starts_with("fabric10:1: GID 1 fe80::"), "{variable}");
        assert_eq!(
            line("onlyv1:1"),
            format!(
                "onlyv1:1: not used: GID index 1 asked for by {variable}: that entry is empty, the \
                 first that is not is 0"
            )
        );
    }
    let beyond = topology("two-mtus", &[("MC_GID_INDEX", "16")]);
    assert_verdicts(
        &beyond,
        &["mlx5_0", "mlx5_1"]
            .map(|name| {
                format!(
                    "{name}:1: not used: GID index 16 asked for by MC_GID_INDEX: the table has 16 \
                     entries"
                )
            })
            .each_ref()
            .map(String::as_str),
    );
    let v1 = topology("two-mtus", &[("MC_GID_INDEX", "2")]);
    assert!(verdict(&v1, &v1.ports[0]).contains("GID index 2 speaks RoCE v1"));
    let v2 = topology("two-mtus", &[]);
    let mixed = Pairing::new(v1.endpoints(), v2.endpoints()).expect("devices").pairs();
    assert!(mixed.expect_err("v1 and v2").to_string().contains("one speaks RoCE v1, the other v2"));
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
fn both_ends_agree_on_the_smaller_packet_size() {
    let found = topology("two-mtus", &[]);
    assert_verdicts(
        &found,
        &[
            "mlx5_0:1: GID 3 ::ffff:10.14.1.8, 10.14.1.0/24",
            "mlx5_1:1: GID 3 ::ffff:10.14.1.9, 10.14.1.0/24; packets of 1024 bytes: rdma1 has MTU \
             1500, 4192 and more give 4096",
        ],
    );
    let [large, small] = &found.endpoints()[..] else { panic!("two endpoints") };
    let pairs = Pairing::new(vec![large.clone()], vec![small.clone()]).expect("devices").pairs();
    assert_eq!(pairs.expect("a pair")[0].mtu, Some(Mtu::B1024));
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
fn infiniband_subnets_pair_with_themselves_and_doubtful_fabrics_are_probed_once() {
    let mut pairing = pairing("infiniband-two-subnets", "infiniband-two-subnets-peer");
    let question = pairing.next_question().expect("one prefix, two managers");
    assert!(matches!(question.doubt, Doubt::Managers { .. }), "{:?}", question.doubt);
    let mut fabric = Fabric { rule: |_: &Endpoint, _: &Endpoint| Answer::Silent, asked: vec![] };
    Answers::default().settle(&mut pairing, Incarnation(7), &mut fabric);
    assert_eq!(fabric.asked, ["ib4:1 - ib4:1"]);
    let pairs = pairing.pairs().expect("pairs");
    assert_eq!(
        names(&pairs),
        ["ib0:1 - ib0:1", "ib1:1 - ib1:1", "ib2:1 - ib2:1", "ib3:1 - ib3:1"],
        "neither the silent fabric nor the partition that the peer is not in"
    );
    assert!(pairs.iter().all(|pair| pair.mtu.is_none()), "devices have not been asked yet");
    let reason = |local: &str, remote: &str| {
        let mut refused = pairing.refused().into_iter();
        let found = refused
            .find(|found| found.local.to_string() == local && found.remote.to_string() == remote);
        found.expect("a reason").reason.to_string()
    };
    let silent = "probed: a READ of 8 bytes was not acknowledged in 1000 ms";
    assert_eq!(reason("ib4:1", "ib4:1"), silent);
    let partitions = "partition keys 0x8001 and 0x8002 are of two partitions";
    assert_eq!(reason("ib5:1", "ib5:1"), partitions);
}

#[test]
fn routes_over_the_devices_own_interfaces_join_networks() {
    let found = topology("routed-rails", &[]);
    assert_verdicts(
        &found,
        &[
            "mlx5_0:1: GID 3 ::ffff:10.14.1.8, 10.14.1.0/26 +1",
            "mlx5_1:1: GID 3 ::ffff:10.14.1.72, 10.14.1.0/26 +1",
        ],
    );
    let pairs = pairing("routed-rails", "routed-rails-peer").pairs().expect("pairs");
    assert_eq!(names(&pairs), ["mlx5_0:1 - mlx5_0:1", "mlx5_1:1 - mlx5_1:1"]);
    let one_way =
        pairing("routed-rails-peer", "unusable-devices").pairs().expect_err("no way back");
    assert!(one_way.to_string().contains("no route from 10.14.1.72 to 10.14.5."), "{one_way}");
}

#[test]
fn an_address_that_both_hosts_have_is_no_way_between_them() {
    let pairing = pairing("routed-rails", "two-mtus");
    let pairs = pairing.pairs().expect("the other addresses differ");
    assert_eq!(names(&pairs), ["mlx5_0:1 - mlx5_1:1", "mlx5_1:1 - mlx5_0:1"]);
    let here = topology("routed-rails", &[]).endpoints();
    let itself = Pairing::new(here.clone(), here).expect("devices").pairs().expect("one host");
    assert_eq!(names(&itself), ["mlx5_0:1 - mlx5_0:1", "mlx5_1:1 - mlx5_1:1"]);
}

#[test]
fn where_other_routing_tables_decide_each_rail_is_probed_once_and_remembered() {
    let mut first = pairing("policy-routed-rails", "policy-routed-rails-peer");
    let doubt = first.next_question().expect("a question").doubt.clone();
    assert!(matches!(doubt, Doubt::OtherTables { .. }), "{doubt:?}");
    assert!(first.pairs().is_err(), "nothing is taken for granted");

    let same_rail = |local: &Endpoint, remote: &Endpoint| {
        if local.name == remote.name { Answer::Acknowledged } else { Answer::Silent }
    };
    let (mut answers, peer) = (Answers::default(), Incarnation(7));
    let mut fabric = Fabric { rule: same_rail, asked: vec![] };
    answers.settle(&mut first, peer, &mut fabric);
    let expected = ["mlx5_0:1 - mlx5_0:1", "mlx5_1:1 - mlx5_1:1"];
    assert_eq!(fabric.asked, expected);
    assert_eq!(names(&first.pairs().expect("pairs")), expected);

    let again = |answers: &mut Answers, peer| {
        let mut pairing = pairing("policy-routed-rails", "policy-routed-rails-peer");
        let mut fabric = Fabric { rule: same_rail, asked: vec![] };
        answers.settle(&mut pairing, peer, &mut fabric);
        assert_eq!(names(&pairing.pairs().expect("pairs")), expected);
        fabric.asked.len()
    };
    assert_eq!(again(&mut answers, peer), 0, "remembered for the incarnation");
    assert_eq!(again(&mut answers, Incarnation(8)), 2, "another incarnation is somebody else");
    answers.forget(peer);
    assert_eq!(again(&mut answers, peer), 2, "forgotten");
}

#[test]
fn rails_cabled_the_other_way_round_are_found_by_further_probes() {
    let mut pairing = pairing("policy-routed-rails", "policy-routed-rails-peer");
    let crossed = |local: &Endpoint, remote: &Endpoint| {
        if local.name == remote.name { Answer::Silent } else { Answer::Acknowledged }
    };
    let mut fabric = Fabric { rule: crossed, asked: vec![] };
    Answers::default().settle(&mut pairing, Incarnation(7), &mut fabric);
    let pairs = pairing.pairs().expect("pairs");
    assert_eq!(names(&pairs), ["mlx5_0:1 - mlx5_1:1", "mlx5_1:1 - mlx5_0:1"]);
    assert_eq!(fabric.asked.len(), 4);
}

#[test]
fn probes_of_a_peer_that_never_answers_are_bounded() {
    let many = |host: u8| {
        let mut endpoints = topology("policy-routed-rails", &[]).endpoints();
        let template = endpoints.remove(0);
        let port = |number: u8| {
            let mut port = template.clone();
            port.name.port.0 = number;
            let kvferry_engine::topology::Fabric::Ethernet(reach) = &mut port.fabric else {
                panic!("Ethernet")
            };
            let address = std::net::Ipv4Addr::new(10, host, number, 1);
            reach.address = address.into();
            port.gid.0 = address.to_ipv6_mapped().octets();
            reach.network = format!("10.{host}.{number}.0/24").parse().ok();
            port
        };
        (1..=20).map(port).collect::<Vec<_>>()
    };
    let mut pairing = Pairing::new(many(1), many(2)).expect("devices");
    let mut fabric = Fabric { rule: |_: &Endpoint, _: &Endpoint| Answer::Silent, asked: vec![] };
    Answers::default().settle(&mut pairing, Incarnation(7), &mut fabric);
    assert_eq!(fabric.asked.len(), Pairing::PROBES);
    let reasons = pairing.refused();
    assert_eq!(reasons.len(), 400);
    let not_probed = RefusedReason::Unreachable(Obstacle::NotProbed { limit: Pairing::PROBES });
    assert!(reasons.iter().any(|refused| refused.reason == not_probed));
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
fn a_list_of_devices_is_taken_as_given_and_each_is_checked() {
    for variable in ["KVFERRY_RDMA_DEVICES", "MOONCAKE_DEVICE", "MC_TE_FILTERS", "MC_MS_FILTERS"] {
        let found = topology("two-rails-16-adapters", &[(variable, "mlx5_6, mlx5_1:1")]);
        assert_eq!(found.errors, []);
        let used: Vec<_> = found.endpoints().iter().map(|end| end.name.to_string()).collect();
        assert_eq!(used, ["mlx5_1:1", "mlx5_6:1"]);
        let other = verdict(&found, &found.ports[0]);
        assert_eq!(other, format!("mlx5_0:1: not used: not among the devices of {variable}"));
    }
    let found = topology(
        "unusable-devices",
        &[("KVFERRY_RDMA_DEVICES", "mlx5_0,mlx5_1,mlx5_3,mlx5_9,mlx5_0:2")],
    );
    let errors: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
    let present = "; there are ibp1, ibp2, ibp3, ibp4, ibp5, ibp6, irdma0, mlx5_0 and 4 more";
    assert_eq!(
        errors,
        [
            "KVFERRY_RDMA_DEVICES lists mlx5_1, which cannot be used: node type 7: unspecified, \
             not a channel adapter"
                .to_owned(),
            "KVFERRY_RDMA_DEVICES lists mlx5_3, which cannot be used: the port is DOWN, not \
             ACTIVE: check cable, switch port and, on InfiniBand, the subnet manager"
                .to_owned(),
            format!("KVFERRY_RDMA_DEVICES lists mlx5_9, and there is no such device{present}"),
            format!("KVFERRY_RDMA_DEVICES lists mlx5_0:2, and there is no such device{present}"),
        ]
    );
}

#[test]
fn a_list_by_gpu_gives_a_process_the_devices_of_its_gpus() {
    let list = "mlx5_0,mlx5_0,mlx5_10,mlx5_12";
    let of = |gpus| {
        let variables = [("KVFERRY_RDMA_DEVICES_BY_GPU", list), ("CUDA_VISIBLE_DEVICES", gpus)];
        topology("two-rails-16-adapters", &variables)
    };
    let used = |found: &Topology| -> Vec<_> {
        found.endpoints().iter().map(|end| end.name.to_string()).collect()
    };
    assert_eq!(used(&of("0,1")), ["mlx5_0:1"]);
    assert_eq!(used(&of("3,1")), ["mlx5_0:1", "mlx5_12:1"]);
    assert_eq!(used(&of("GPU-5f2c")), ["mlx5_0:1", "mlx5_10:1", "mlx5_12:1"]);
    let short = of("4");
    assert!(matches!(short.errors[..], [SelectionError::GpuNotListed { listed: 4, .. }]));
    assert_eq!(short.endpoints(), []);
}

#[test]
fn patterns_of_nccl_choose_and_exclude_devices() {
    let with = |patterns| topology("two-rails-16-adapters", &[("NCCL_IB_HCA", patterns)]);
    assert_eq!(with("mlx5_1").endpoints().len(), 9, "mlx5_1 and mlx5_10 to mlx5_17");
    assert_eq!(with("=mlx5_1").endpoints().len(), 1);
    let excluded = with("^mlx5_1,mlx4");
    assert_eq!(excluded.endpoints().len(), 7);
    assert_eq!(
        excluded.unheeded.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["NCCL_IB_HCA excludes mlx4, and there is no such device"]
    );
    assert!(matches!(with("mlx4").errors[..], [SelectionError::NoSuchDevice { .. }]));
    assert!(matches!(with("^mlx5").errors[..], [SelectionError::NothingLeft { .. }]));
}

#[test]
fn a_port_that_is_asked_for_is_the_only_one_of_its_adapter() {
    let found = topology("two-mtus", &[("MC_IB_PORT", "2")]);
    assert!(verdict(&found, &found.ports[0]).ends_with("not used: MC_IB_PORT asks for port 2"));
    let named = topology("two-mtus", &[("MC_IB_PORT", "2"), ("MOONCAKE_DEVICE", "mlx5_0:1")]);
    assert_eq!(named.endpoints().len(), 1, "a port that is named is meant");
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

#[test]
fn every_fixture_host_is_looked_at_here() {
    let source = include_str!("devices.rs");
    for name in hosts::names().expect("manifests") {
        assert!(source.contains(&format!("\"{name}\"")), "{name} has no expectation");
    }
}
