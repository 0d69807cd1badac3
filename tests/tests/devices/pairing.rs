//! Which ports of two hosts work together, and what is asked where tables do not tell.

use kvferry_engine::topology::{
    Answer, Answers, Doubt, Endpoint, Fabric, Mtu, Obstacle, Pair, Pairing, PairingError, Probe,
    RefusedReason,
};
use kvferry_proto::Incarnation;
use kvferry_transport::rdma::device::PKey;

use crate::expect::{assert_verdicts, topology};

fn pairing(local: &str, remote: &str) -> Pairing {
    let endpoints = |host| topology(host, &[]).endpoints();
    Pairing::new(endpoints(local), endpoints(remote)).expect("two hosts with devices")
}

fn names(pairs: &[Pair]) -> Vec<String> {
    pairs.iter().map(|pair| format!("{} - {}", pair.local, pair.remote)).collect()
}

/// A probe that answers by a rule and keeps what it was asked.
struct Network<F> {
    rule: F,
    asked: Vec<String>,
}

impl<F: Fn(&Endpoint, &Endpoint) -> Answer> Probe for Network<F> {
    fn probe(&mut self, local: &Endpoint, remote: &Endpoint) -> Answer {
        self.asked.push(format!("{} - {}", local.name, remote.name));
        (self.rule)(local, remote)
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
fn infiniband_subnets_pair_with_themselves_and_doubtful_fabrics_are_probed_once() {
    let mut pairing = pairing("infiniband-two-subnets", "infiniband-two-subnets-peer");
    let question = pairing.next_question().expect("one prefix, two managers");
    assert!(matches!(question.doubt, Doubt::Managers { .. }), "{:?}", question.doubt);
    let mut fabric = Network { rule: |_: &Endpoint, _: &Endpoint| Answer::Silent, asked: vec![] };
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
    let mut fabric = Network { rule: same_rail, asked: vec![] };
    answers.settle(&mut first, peer, &mut fabric);
    let expected = ["mlx5_0:1 - mlx5_0:1", "mlx5_1:1 - mlx5_1:1"];
    assert_eq!(fabric.asked, expected);
    assert_eq!(names(&first.pairs().expect("pairs")), expected);

    let again = |answers: &mut Answers, peer| {
        let mut pairing = pairing("policy-routed-rails", "policy-routed-rails-peer");
        let mut fabric = Network { rule: same_rail, asked: vec![] };
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
fn what_looks_alike_on_every_host_is_probed_and_never_taken_for_granted() {
    let only = |name: &str| topology("gid-choices", &[("KVFERRY_RDMA_DEVICES", name)]).endpoints();
    let doubt = |here: &str, there: &str| {
        let pairing = Pairing::new(only(here), only(there)).expect("devices");
        assert!(pairing.pairs().is_err(), "{here} - {there}");
        pairing.next_question().map(|question| question.doubt.to_string())
    };
    assert_eq!(
        doubt("linklocal", "bridgedll").as_deref(),
        Some("link-local addresses do not tell which link")
    );
    assert_eq!(
        doubt("overlayonly", "fabric10").as_deref(),
        Some(
            "the address is that of cni0 (by its name a container's), which other hosts may have \
             as well"
        )
    );
    assert_eq!(doubt("linklocal", "fabric10"), None, "of different kinds: no probe helps");
}

#[test]
fn rails_cabled_the_other_way_round_are_found_by_further_probes() {
    let mut pairing = pairing("policy-routed-rails", "policy-routed-rails-peer");
    let crossed = |local: &Endpoint, remote: &Endpoint| {
        if local.name == remote.name { Answer::Silent } else { Answer::Acknowledged }
    };
    let mut fabric = Network { rule: crossed, asked: vec![] };
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
            let Fabric::Ethernet(reach) = &mut port.fabric else { panic!("Ethernet") };
            let address = std::net::Ipv4Addr::new(10, host, number, 1);
            reach.address = address.into();
            port.gid.0 = address.to_ipv6_mapped().octets();
            reach.network = format!("10.{host}.{number}.0/24").parse().ok();
            port
        };
        (1..=20).map(port).collect::<Vec<_>>()
    };
    let mut pairing = Pairing::new(many(1), many(2)).expect("devices");
    let mut fabric = Network { rule: |_: &Endpoint, _: &Endpoint| Answer::Silent, asked: vec![] };
    Answers::default().settle(&mut pairing, Incarnation(7), &mut fabric);
    assert_eq!(fabric.asked.len(), Pairing::PROBES);
    let reasons = pairing.refused();
    assert_eq!(reasons.len(), 400);
    let not_probed = RefusedReason::Unreachable(Obstacle::NotProbed { limit: Pairing::PROBES });
    assert!(reasons.iter().any(|refused| refused.reason == not_probed));
}
