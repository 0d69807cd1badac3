//! Several adapters.

use kvferry_engine::{Error, Transport, Transports};
use kvferry_tests::own::{Own, await_lanes};
use kvferry_tests::pattern;

use crate::library::{End, StandIn};

#[test]
fn blocks_go_over_all_adapters_of_two_and_of_sixteen() {
    for adapters in [2, 16] {
        let standin = StandIn::with_adapters(adapters);
        let target = End::new(&standin, 16_384, |builder| builder).shared();
        let initiator = End::new(&standin, 16_384, |builder| builder.bulk_lanes(1));
        initiator.fill(1);
        let (peer, remote) = initiator.meet(&target);
        // As many for what is large as there are adapters, and one for what is small.
        await_lanes(&peer, adapters + 1);
        let blocks = initiator.all();
        let shuffled: Vec<u32> = blocks.iter().map(|block| (block * 4099 + 17) % 16_384).collect();
        let request = peer.write(initiator.layer.blocks(shuffled.clone()), remote.blocks(shuffled));
        let report = request.submit().unwrap().wait().unwrap();
        assert_eq!((report.transport, report.by_reference), ("rdma", true));
        assert_eq!(target.first_wrong(1), None);
        assert_eq!(standin.adapters_used(), adapters, "reads were posted on each");
        target.fill(2);
        let request = peer.read(remote.blocks(blocks.clone()), initiator.layer.blocks(blocks));
        let report = request.submit().unwrap().wait().unwrap();
        assert_eq!(report.transport, "rdma");
        assert_eq!(initiator.first_wrong(2), None);
    }
}

#[test]
fn memory_that_is_longer_than_a_registration_is_registered_in_parts_and_spans_may_cross_them() {
    let standin = StandIn::with_adapters(1);
    standin.limit_registrations(2 << 20);
    let before = standin.live();
    let target = End::new(&standin, 2000, |builder| builder).shared();
    // A context, a domain, and 8,192,000 bytes in four parts.
    assert_eq!(standin.live() - before, 2 + 4);
    let initiator = End::new(&standin, 2000, |builder| builder);
    let (peer, _) = initiator.meet(&target);
    let there = peer.find(target.cache.base(), target.cache.length()).unwrap();
    for (from, to, length) in [(0, 0, 8_192_000), (12_345, 3_000_001, 5_000_000)] {
        initiator.fill(1);
        target.fill(2);
        let local = initiator.cache.span(from, length).unwrap();
        let remote = there.span(to, length).unwrap();
        let report = peer.write(local.clone(), remote).submit().unwrap().wait().unwrap();
        assert_eq!(report.transport, "rdma");
        assert_eq!(pattern::first_wrong(&target.cache, to, length, 1, from).unwrap(), None);
        assert_eq!(pattern::first_wrong(&target.cache, 0, to, 2, 0).unwrap(), None);
        let after = to + length;
        let rest = target.cache.length() - after;
        assert_eq!(pattern::first_wrong(&target.cache, after, rest, 2, after).unwrap(), None);
        initiator.fill(3);
        peer.read(remote, local).submit().unwrap().wait().unwrap();
        assert_eq!(pattern::first_wrong(&initiator.cache, from, length, 1, from).unwrap(), None);
    }
}

#[test]
fn a_peer_without_rdma_is_an_error_that_says_so_where_rdma_is_demanded() {
    let standin = StandIn::with_adapters(1);
    let without = Own::start_with(|builder| builder.transports(Transports::Only(Transport::Tcp)));
    let with = standin.engine(|builder| builder);
    let error = with.connect_to(&without.engine.address().to_string()).unwrap_err();
    assert!(matches!(error, Error::NotRdma { .. }), "{error}");
    assert!(error.to_string().contains("offers no RDMA"), "{error}");
    // And the other way round.
    let error = without.connect_to(&with.engine.address().to_string()).unwrap_err();
    assert!(matches!(error, Error::NoTransport { wanted: "tcp", .. }), "{error}");
}
