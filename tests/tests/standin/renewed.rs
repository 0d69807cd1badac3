//! Adapters that fail for good, and work again later: they are opened anew, with all that is registered, and
//! until then nothing of them is kept.

use std::time::Duration;

use kvferry_engine::{Access, Engine, EngineBuilder, Error, Transport, Transports};
use kvferry_tests::own::await_lanes;
use kvferry_transport::memory::{Memory, Pages};

use crate::library::{BLOCK, End, Round, StandIn, await_that};

/// Everything is allowed, and nobody is met on this host; or what these tests use else, RDMA alone.
fn set(standin: &StandIn, is_demanded: bool) -> impl FnOnce(EngineBuilder) -> EngineBuilder {
    let apart = standin.private_directory();
    move |builder| {
        if is_demanded {
            return builder;
        }
        builder.transports(Transports::Auto).run_directory(apart)
    }
}

#[test]
fn an_adapter_that_failed_is_opened_anew_and_transfers_go_over_it_again() {
    for is_demanded in [true, false] {
        let standin = StandIn::with_adapters(1);
        let target = End::new(&standin, 1024, set(&standin, is_demanded)).shared();
        let initiator = End::new(&standin, 1024, set(&standin, is_demanded));
        let (peer, remote) = initiator.meet(&target);
        for round in 0..2 {
            await_lanes(&peer, 2);
            let before =
                (standin.contexts(), standin.registrations(), standin.pairs_on(0), standin.live());
            assert_eq!((before.0, before.1, before.2), (2, 2, 4));
            let moved = Round::new(round, &initiator, &target);
            let report = moved.request(&peer, &remote).submit().unwrap().wait().unwrap();
            assert_eq!(report.transport, "rdma");
            moved.assert_moved();

            standin.break_down(0);
            await_that("nothing is kept of it", || standin.live() == 0);
            let moved = Round::new(round + 10, &initiator, &target);
            let meanwhile = moved.request(&peer, &remote).submit().unwrap().wait();
            if is_demanded {
                let error = meanwhile.unwrap_err();
                assert!(matches!(error.cause, Error::RdmaFailed { .. }), "{error}");
                assert!(error.to_string().contains("it has failed"), "{error}");
            } else {
                assert_eq!(meanwhile.unwrap().transport, "tcp");
                moved.assert_moved();
                let says = || peer.not_rdma().is_some_and(|why| why.contains("it has failed"));
                await_that("the reason is told", says);
            }
            // What comes meanwhile is registered with it, too.
            let later = initiator.registry().allocate(4 * BLOCK).unwrap();
            assert_eq!(standin.registrations(), 0);

            standin.mend(0);
            await_that("it is open at both ends", || {
                (standin.contexts(), standin.registrations()) == (2, 3)
            });
            if !is_demanded {
                let carrier = || peer.status().transport;
                await_that("RDMA is used", || carrier() == Some(Transport::Rdma));
                assert_eq!(peer.not_rdma(), None);
            }
            let moved = Round::new(round + 20, &initiator, &target);
            let report = moved.request(&peer, &remote).submit().unwrap().wait().unwrap();
            assert_eq!(report.transport, "rdma");
            moved.assert_moved();
            drop(later);
            await_that("there is as much as before", || {
                let now = (
                    standin.contexts(),
                    standin.registrations(),
                    standin.pairs_on(0),
                    standin.live(),
                );
                now == before
            });
        }
        initiator.engine().shutdown(Duration::from_millis(100));
        target.engine().shutdown(Duration::from_millis(100));
        await_that("nothing is left", || standin.live() == 0);
    }
}

#[test]
fn lanes_are_spread_over_an_adapter_that_is_back() {
    let standin = StandIn::with_adapters(2);
    let target = End::new(&standin, 1024, |builder| builder).shared();
    let initiator = End::new(&standin, 1024, |builder| builder);
    let (peer, remote) = initiator.meet(&target);
    await_lanes(&peer, 3);
    standin.break_down(1);
    // Three lanes, of which either end has a queue pair.
    await_that("all lanes are on the other", || standin.pairs_on(0) == 6);
    standin.mend(1);
    await_that("both are used", || {
        let on_each = [standin.pairs_on(0), standin.pairs_on(1)];
        peer.status().open_lanes == 3 && on_each == [4, 2]
    });
    let moved = Round::new(0, &initiator, &target);
    moved.request(&peer, &remote).submit().unwrap().wait().unwrap();
    moved.assert_moved();
}

#[test]
fn engines_of_one_registry_open_an_adapter_anew_once() {
    let standin = StandIn::with_adapters(1);
    let target = End::new(&standin, 64, |builder| builder).shared();
    let first = End::new(&standin, 64, |builder| builder);
    let only = Transports::Only(Transport::Rdma);
    let builder = Engine::builder(first.registry().clone()).listen("127.0.0.1:0").transports(only);
    let second = builder.rdma(standin.rdma()).start_blocking().unwrap();
    assert_eq!(standin.contexts(), 2);
    standin.break_down(0);
    await_that("nothing is kept of it", || standin.live() == 0);
    standin.mend(0);
    await_that("it is open again", || standin.contexts() == 2);
    first.fill(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for engine in [first.engine(), &second] {
        let peer = runtime.block_on(async {
            // One of the two may have it a moment later.
            loop {
                match engine.connect(target.engine().address()).await {
                    Ok(peer) => break peer,
                    Err(error) => assert!(matches!(error, Error::RdmaFailed { .. }), "{error}"),
                }
            }
        });
        let remote = peer.layout("cache").unwrap();
        let write = peer.write(first.layer.blocks(first.all()), remote.blocks(target.all()));
        assert_eq!(write.submit().unwrap().wait().unwrap().transport, "rdma");
    }
    assert_eq!(target.first_wrong(1), None);
    assert_eq!((standin.contexts(), standin.registrations()), (2, 2));
}

#[test]
fn an_engine_that_ends_while_its_adapter_is_out_or_is_opened_anew_leaves_nothing() {
    for is_mended in [false, true] {
        let standin = StandIn::with_adapters(1);
        let end = End::new(&standin, 64, |builder| builder);
        let one = || Memory::anonymous(4096, Pages::Small).unwrap();
        let register = |_| end.registry().register(one(), Access::ReadWrite).unwrap();
        let many: Vec<_> = (0..200).map(register).collect();
        standin.break_down(0);
        await_that("nothing is kept of it", || standin.live() == 0);
        if is_mended {
            standin.mend(0);
            await_that("it is being opened", || standin.contexts() > 0);
        }
        end.engine().shutdown(Duration::from_millis(100));
        await_that(&format!("nothing is left, mended: {is_mended}"), || standin.live() == 0);
        drop(many);
    }
}
