//! What is given back, and when.

use std::time::Duration;

use kvferry_engine::Access;
use kvferry_transport::memory::{Memory, Pages};

use crate::library::{End, StandIn, await_that};

#[test]
fn after_shutdown_nothing_is_held_with_work_under_way_too() {
    let standin = StandIn::with_adapters(2);
    for is_busy in [false, true] {
        assert_eq!(standin.live(), 0);
        let target = End::new(&standin, 256, |builder| builder).shared();
        let initiator = End::new(&standin, 256, |builder| builder);
        let (peer, remote) = initiator.meet(&target);
        let write =
            || peer.write(initiator.layer.blocks(initiator.all()), remote.blocks(target.all()));
        write().submit().unwrap().wait().unwrap();
        standin.hold(is_busy);
        let transfer = write().submit().unwrap();
        if is_busy {
            await_that("requests are under way", || standin.waiting() > 0);
        } else {
            transfer.wait().unwrap();
        }
        initiator.engine().shutdown(Duration::from_millis(100));
        target.engine().shutdown(Duration::from_millis(100));
        // Whatever handles there are hold nothing.
        assert_eq!(standin.live(), 0, "busy: {is_busy}");
        standin.hold(false);
        standin.release(usize::MAX);
    }
}

#[test]
fn queue_pairs_go_with_idle_lanes_and_registrations_with_their_regions() {
    let standin = StandIn::with_adapters(1);
    let target = End::new(&standin, 64, |builder| builder).shared();
    let initiator =
        End::new(&standin, 64, |builder| builder.idle_after(Duration::from_millis(100)));
    let at_rest = standin.live();
    let (peer, remote) = initiator.meet(&target);
    let write = || peer.write(initiator.layer.blocks(initiator.all()), remote.blocks(target.all()));
    write().submit().unwrap().wait().unwrap();
    assert!(standin.live() > at_rest);
    await_that("idle lanes are closed", || standin.live() == at_rest);
    // The next transfer opens them again.
    write().submit().unwrap().wait().unwrap();
    await_that("idle lanes are closed", || standin.live() == at_rest);
    let memory = Memory::anonymous(1 << 20, Pages::Small).unwrap();
    let region = initiator.registry().register(memory, Access::ReadWrite).unwrap();
    assert_eq!(standin.live(), at_rest + 1);
    drop(region);
    assert_eq!(standin.live(), at_rest);
}
