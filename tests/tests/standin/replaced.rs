//! RDMA where other transports are allowed too: TCP in its place while it fails, and why.

use std::time::Duration;

use kvferry_engine::{Access, EngineBuilder, Error, Peer, Rdma, Transport, Transports};
use kvferry_tests::own::await_lanes;
use kvferry_transport::memory::{Memory, Pages};

use crate::library::{End, Round, StandIn, await_that};

/// Everything is allowed, and nobody is met on this host.
pub(crate) fn auto(standin: &StandIn) -> impl FnOnce(EngineBuilder) -> EngineBuilder {
    let apart = standin.private_directory();
    move |builder| builder.transports(Transports::Auto).run_directory(apart)
}

pub(crate) fn carrier(peer: &Peer) -> Option<Transport> {
    peer.status().transport
}

#[test]
fn tcp_finishes_what_adapters_that_die_have_begun_and_rdma_is_used_again_when_they_are_back() {
    let standin = StandIn::with_adapters(2);
    let target = End::new(&standin, 8192, auto(&standin)).shared();
    let initiator = End::new(&standin, 8192, auto(&standin));
    let (peer, remote) = initiator.meet(&target);
    for round in 0..2 {
        await_that("RDMA is used", || carrier(&peer) == Some(Transport::Rdma));
        assert_eq!(peer.not_rdma(), None);
        await_lanes(&peer, 3);
        let moved = Round::new(round, &initiator, &target);
        standin.hold(true);
        let transfer = moved.request(&peer, &remote).notify(format!("{round}")).submit().unwrap();
        await_that("requests are under way", || standin.waiting() > 1);
        standin.release(1);
        standin.cut_off(0, true);
        standin.cut_off(1, true);
        standin.hold(false);
        let report = transfer.wait().unwrap();
        assert!(report.repeated_slices > 0, "round {round}");
        assert!(report.transport.ends_with("tcp"), "round {round}: {}", report.transport);
        moved.assert_moved();
        assert_eq!(carrier(&peer), Some(Transport::Tcp));
        await_that("the reason is told", || {
            peer.not_rdma().is_some_and(|why| why.contains("no packet comes through"))
        });
        standin.cut_off(0, false);
        standin.cut_off(1, false);
        let told = target.engine().wait_notification(Duration::from_secs(5)).unwrap();
        assert_eq!(&*told.bytes, format!("{round}").as_bytes());
    }
    await_that("RDMA is used", || carrier(&peer) == Some(Transport::Rdma));
    let write = peer.write(initiator.layer.blocks(initiator.all()), remote.blocks(target.all()));
    assert_eq!(write.submit().unwrap().wait().unwrap().transport, "rdma");
    // Lanes of the spare are not kept.
    await_that("lanes of TCP are closed", || {
        initiator.engine().status().lanes_opened == 3
            && target.engine().status().lanes_accepted == 3
    });
}

#[test]
fn one_adapter_of_two_that_dies_is_no_reason_to_replace_rdma() {
    let standin = StandIn::with_adapters(2);
    let target = End::new(&standin, 1024, auto(&standin)).shared();
    let initiator = End::new(&standin, 1024, auto(&standin));
    let (peer, remote) = initiator.meet(&target);
    await_lanes(&peer, 3);
    for round in 0..3 {
        initiator.fill(round);
        standin.hold(true);
        let (from, to) = (initiator.layer.blocks(initiator.all()), remote.blocks(target.all()));
        let transfer = peer.write(from, to).submit().unwrap();
        await_that("requests are under way", || standin.waiting() > 1);
        standin.cut_off(round as usize % 2, true);
        standin.hold(false);
        standin.release(usize::MAX);
        assert_eq!(transfer.wait().unwrap().transport, "rdma");
        assert_eq!(target.first_wrong(round), None);
        standin.cut_off(round as usize % 2, false);
    }
}

#[test]
fn demanded_rdma_that_fails_is_an_error_that_says_so() {
    let standin = StandIn::with_adapters(1);
    let target = End::new(&standin, 1024, auto(&standin)).shared();
    let initiator = End::new(&standin, 1024, |builder| builder);
    let (peer, remote) = initiator.meet(&target);
    standin.hold(true);
    let (from, to) = (initiator.layer.blocks(initiator.all()), remote.blocks(target.all()));
    let transfer = peer.write(from, to).submit().unwrap();
    await_that("requests are under way", || standin.waiting() > 0);
    standin.cut_off(0, true);
    standin.hold(false);
    let error = transfer.wait().unwrap_err();
    assert!(matches!(error.cause, Error::RdmaFailed { .. }), "{error}");
    assert!(error.to_string().contains("nothing else takes its place"), "{error}");
    assert_ne!(carrier(&peer), Some(Transport::Tcp));
}

#[test]
fn without_adapters_tcp_is_used_at_once_and_the_reason_is_told() {
    let standin = StandIn::with_adapters(1);
    let target = End::new(&standin, 64, auto(&standin)).shared();
    let bare = StandIn::with_adapters(0);
    let none = Rdma::default().host(bare.host_root());
    let initiator = End::new(&standin, 64, |builder| auto(&standin)(builder).rdma(none));
    initiator.fill(1);
    let (peer, remote) = initiator.meet(&target);
    assert_eq!(carrier(&peer), Some(Transport::Tcp));
    let why = peer.not_rdma().unwrap();
    assert!(why.contains("no RDMA port that can be used"), "{why}");
    let write = peer.write(initiator.layer.blocks(initiator.all()), remote.blocks(target.all()));
    assert_eq!(write.submit().unwrap().wait().unwrap().transport, "tcp");
    assert_eq!(target.first_wrong(1), None);
    // The other way round the peer is the one that has none.
    let initiator = initiator.shared();
    let (peer, _) = target.meet(&initiator);
    assert_eq!(peer.not_rdma().as_deref(), Some("it offers no RDMA"));
    // Where it is demanded there is no engine without one.
    let none = Rdma::default().verbs(bare.verbs()).host(bare.host_root());
    let only = Transports::Only(Transport::Rdma);
    let registry = kvferry_engine::Registry::new();
    let builder = kvferry_engine::Engine::builder(registry).listen("127.0.0.1:0").transports(only);
    let error = builder.rdma(none).start_blocking().unwrap_err();
    assert!(error.to_string().contains("no RDMA port that can be used"), "{error}");
}

#[test]
fn a_peer_that_may_use_tcp_only_is_reached_so_and_one_that_may_use_rdma_only_too() {
    let standin = StandIn::with_adapters(1);
    for (demanded, carried) in [(Transport::Tcp, "tcp"), (Transport::Rdma, "rdma")] {
        let only = Transports::Only(demanded);
        let target = End::new(&standin, 64, |builder| builder.transports(only)).shared();
        let initiator = End::new(&standin, 64, auto(&standin));
        initiator.fill(1);
        let (peer, remote) = initiator.meet(&target);
        let (from, to) = (initiator.layer.blocks(initiator.all()), remote.blocks(target.all()));
        assert_eq!(peer.write(from, to).submit().unwrap().wait().unwrap().transport, carried);
        assert_eq!(peer.not_rdma().is_some(), demanded == Transport::Tcp);
    }
}

#[test]
fn processes_of_one_host_use_the_local_transport_before_rdma() {
    let standin = StandIn::with_adapters(1);
    let met = standin.private_directory();
    let start =
        |builder: EngineBuilder| builder.transports(Transports::Auto).run_directory(met.clone());
    let target = End::new(&standin, 64, start).shared();
    let initiator = End::new(&standin, 64, start);
    let (peer, _) = initiator.meet(&target);
    assert_eq!(carrier(&peer), Some(Transport::Local));
}

#[test]
fn memory_that_an_adapter_does_not_take_goes_by_tcp_where_that_is_allowed() {
    let standin = StandIn::with_adapters(1);
    let target = End::new(&standin, 64, auto(&standin)).shared();
    let initiator = End::new(&standin, 64, auto(&standin));
    let (peer, _) = initiator.meet(&target);
    await_that("RDMA is used", || carrier(&peer) == Some(Transport::Rdma));
    // And when it is opened anew.
    standin.refuse(c"ibv_reg_mr");
    standin.refuse(c"ibv_reg_mr");
    let memory = Memory::anonymous(1 << 20, Pages::Small).unwrap();
    let region = initiator.registry().register(memory, Access::ReadWrite).unwrap();
    region.write_at(0, &[7; 64 * 4096]).unwrap();
    let there = peer.find(target.cache.base(), 64 * 4096).unwrap().span(0, 64 * 4096).unwrap();
    let here = region.span(0, 64 * 4096).unwrap();
    assert_eq!(peer.write(here, there).submit().unwrap().wait().unwrap().transport, "tcp");
    let mut landed = vec![0; 64 * 4096];
    target.cache.read_at(0, &mut landed).unwrap();
    assert!(landed.iter().all(|byte| *byte == 7));
    await_that("the reason is told", || {
        peer.not_rdma().is_some_and(|why| why.contains("cannot be reached by RDMA"))
    });
    assert_eq!(carrier(&peer), Some(Transport::Tcp));
    // In time the adapter takes it.
    await_that("RDMA is used", || carrier(&peer) == Some(Transport::Rdma));
    let here = region.span(0, 64 * 4096).unwrap();
    assert_eq!(peer.write(here, there).submit().unwrap().wait().unwrap().transport, "rdma");
}

#[test]
fn adapters_that_connect_and_carry_nothing_give_way_to_tcp_until_a_port_comes_back() {
    for pushes in [true, false] {
        let standin = StandIn::with_adapters(1);
        // It is seen that the peer is there while nothing comes through.
        let watchful = |builder: EngineBuilder| {
            auto(&standin)(builder).liveness(Duration::from_millis(100), Duration::from_secs(30))
        };
        let target = End::new(&standin, 64, watchful).shared();
        let initiator = End::new(&standin, 64, watchful);
        let (peer, remote) = initiator.meet(&target);
        // Queue pairs connect: what moves no bytes is answered.
        standin.hold(true);
        initiator.fill(1);
        target.fill(1);
        let submit = || {
            let here = initiator.layer.blocks(initiator.all());
            let there = remote.blocks(target.all());
            let request = if pushes { peer.write(here, there) } else { peer.read(there, here) };
            request.deadline(Duration::from_millis(1600)).submit().unwrap()
        };
        for round in 0..3 {
            await_that("RDMA is used", || carrier(&peer) == Some(Transport::Rdma));
            await_lanes(&peer, 2);
            let error = submit().wait().unwrap_err();
            assert!(matches!(error.cause, Error::Deadline { .. }), "round {round}: {error}");
        }
        await_that("TCP is used", || carrier(&peer) == Some(Transport::Tcp));
        assert_eq!(submit().wait().unwrap().transport, "tcp");
        let why = peer.not_rdma().unwrap();
        assert!(why.contains("carried nothing"), "{why}");
        await_that("its queue pairs are gone", || standin.pairs_on(0) == 0);
        standin.hold(false);
        standin.set_port(0, false);
        standin.set_port(0, true);
        await_that("RDMA is used", || carrier(&peer) == Some(Transport::Rdma));
        assert_eq!(submit().wait().unwrap().transport, "rdma");
    }
}

#[test]
fn adapters_of_which_nothing_is_heard_are_a_failure_of_rdma_and_not_of_the_peer() {
    let standin = StandIn::with_adapters(1);
    let target = End::new(&standin, 64, |builder| builder).shared();
    let hasty = |builder: EngineBuilder| builder.connect_timeout(Duration::from_millis(600));
    let initiator = End::new(&standin, 64, hasty);
    standin.hold(true);
    standin.hold_all(true);
    let connect = || initiator.own.connect_to(&target.engine().address().to_string());
    let error = connect().unwrap_err();
    assert!(matches!(error, Error::RdmaFailed { .. }), "{error}");
    assert!(error.to_string().contains("no packet came through within"), "{error}");
    standin.hold(false);
    standin.release(usize::MAX);
    connect().unwrap();
    // Nor is it the peer's where that has no queue pair to offer.
    let other = StandIn::with_adapters(1);
    let target = End::new(&other, 64, |builder| builder).shared();
    other.break_down(0);
    await_that("nothing is kept of it", || other.live() == 0);
    let error = initiator.own.connect_to(&target.engine().address().to_string()).unwrap_err();
    assert!(matches!(error, Error::RdmaFailed { .. }), "{error}");
    assert!(error.to_string().contains("it refused a lane"), "{error}");
    // Where nobody accepts lanes any more it is.
    let address = target.engine().address().to_string();
    drop(target);
    let error = initiator.own.connect_to(&address).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}
