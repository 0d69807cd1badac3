//! What adapters tell of their own accord. Requests are held back throughout, so that nothing is learnt by
//! their ends.

use kvferry_engine::{Transport, Transports};
use kvferry_tests::own::await_lanes;

use crate::library::{End, Round, StandIn, await_that};

#[test]
fn lanes_of_a_port_that_goes_down_move_to_another_at_once() {
    let standin = StandIn::with_adapters(2);
    let target = End::new(&standin, 8192, |builder| builder).shared();
    // So many that more than the one for what is small is on each.
    let initiator = End::new(&standin, 8192, |builder| builder.bulk_lanes(4));
    let (peer, remote) = initiator.meet(&target);
    await_lanes(&peer, 5);
    for round in 0..4 {
        let moved = Round::new(round, &initiator, &target);
        standin.hold(true);
        let transfer = moved.request(&peer, &remote).submit().unwrap();
        await_that("requests are under way", || standin.waiting() > 12);
        let down = usize::try_from(round / 2).unwrap();
        standin.set_port(down, false);
        // What is under way on the other goes on.
        await_that("it is done", || {
            standin.release(usize::MAX);
            transfer.poll().is_some() && standin.waiting() == 0
        });
        let report = transfer.wait().unwrap();
        assert_eq!(report.transport, "rdma");
        assert!(report.repeated_slices > 0, "round {round}");
        moved.assert_moved();
        await_that("its queue pairs are gone", || standin.pairs_on(down) == 0);
        standin.set_port(down, true);
        standin.hold(false);
        // Lanes are spread over both again: five, of which either end has a queue pair.
        await_that("both are used", || {
            let on_each = [standin.pairs_on(0), standin.pairs_on(1)];
            peer.status().open_lanes == 5
                && on_each.iter().min() == Some(&4)
                && on_each.iter().sum::<usize>() == 10
        });
    }
}

#[test]
fn a_port_that_goes_down_is_replaced_by_tcp_and_used_again_when_it_is_up() {
    let standin = StandIn::with_adapters(1);
    let apart = [standin.private_directory(), standin.private_directory()];
    let end = |at: usize| {
        let apart = apart[at].clone();
        End::new(&standin, 1024, |b| b.transports(Transports::Auto).run_directory(apart))
    };
    let (target, initiator) = (end(0).shared(), end(1));
    let (peer, remote) = initiator.meet(&target);
    let carrier = || peer.status().transport;
    await_lanes(&peer, 2);
    initiator.fill(1);
    standin.hold(true);
    let write = || peer.write(initiator.layer.blocks(initiator.all()), remote.blocks(target.all()));
    let transfer = write().submit().unwrap();
    await_that("requests are under way", || standin.waiting() > 0);
    standin.set_port(0, false);
    assert!(transfer.wait().unwrap().transport.ends_with("tcp"));
    assert_eq!(target.first_wrong(1), None);
    assert_eq!(carrier(), Some(Transport::Tcp));
    let says = |what: &'static str| {
        await_that(what, || peer.not_rdma().is_some_and(|why| why.contains(what)));
    };
    says("standin0:1: its link is down");
    standin.hold(false);
    standin.set_port(0, true);
    await_that("RDMA is used", || carrier() == Some(Transport::Rdma));
    // An address that is another takes it out as well, until it is as it was.
    standin.set_moved(0, true);
    await_that("its queue pairs are gone", || standin.pairs_on(0) == 0);
    assert_eq!(write().submit().unwrap().wait().unwrap().transport, "tcp");
    assert_eq!(carrier(), Some(Transport::Tcp));
    says("is another now");
    standin.set_moved(0, false);
    await_that("RDMA is used", || carrier() == Some(Transport::Rdma));
    assert_eq!(write().submit().unwrap().wait().unwrap().transport, "rdma");
}

#[test]
fn an_adapter_that_has_failed_for_good_is_given_up_with_its_registrations() {
    let standin = StandIn::with_adapters(2);
    let target = End::new(&standin, 1024, |builder| builder).shared();
    let initiator = End::new(&standin, 1024, |builder| builder);
    let (peer, remote) = initiator.meet(&target);
    await_lanes(&peer, 3);
    assert_eq!(standin.registrations(), 4);
    standin.break_down(1);
    await_that("registrations are given back", || standin.registrations() == 2);
    // Three lanes, of which either end has a queue pair: those that were on the other are closed by then.
    await_that("all lanes are on the other", || standin.pairs_on(0) == 6);
    await_lanes(&peer, 3);
    initiator.fill(1);
    let write = peer.write(initiator.layer.blocks(initiator.all()), remote.blocks(target.all()));
    assert_eq!(write.submit().unwrap().wait().unwrap().transport, "rdma");
    assert_eq!(target.first_wrong(1), None);
    // Memory that comes later is registered with the one that is left.
    let later = initiator.registry().allocate(1 << 20).unwrap();
    assert_eq!(standin.registrations(), 3);
    drop(later);
}
