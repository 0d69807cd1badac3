//! Adapters that refuse, fail, or lose what they were given.

use std::time::Duration;

use kvferry_engine::{Access, Error};
use kvferry_transport::memory::{Memory, Pages};

use crate::library::{End, Round, StandIn, await_that};

#[test]
fn slices_of_a_queue_pair_that_failed_are_read_again_by_another() {
    let standin = StandIn::with_adapters(2);
    let target = End::new(&standin, 8192, |builder| builder).shared();
    let initiator = End::new(&standin, 8192, |builder| builder);
    let (peer, remote) = initiator.meet(&target);
    for round in 0..6 {
        let moved = Round::new(round, &initiator, &target);
        standin.fail_in_the_middle(moved.request(&peer, &remote));
        moved.assert_moved();
    }
}

#[test]
fn a_completion_that_never_comes_ends_at_the_deadline_and_harms_nobody_else() {
    let standin = StandIn::with_adapters(1);
    let target = End::new(&standin, 64, |builder| builder).shared();
    let initiator = End::new(&standin, 64, |builder| builder);
    initiator.fill(1);
    let (peer, remote) = initiator.meet(&target);
    let write = || peer.write(initiator.layer.blocks(initiator.all()), remote.blocks(target.all()));
    standin.hold(true);
    let lost = write().deadline(Duration::from_millis(300)).submit().unwrap();
    await_that("requests are under way", || standin.waiting() > 0);
    let error = lost.wait().unwrap_err();
    assert!(matches!(error.cause, Error::Deadline { .. }), "{error}");
    standin.hold(false);
    write().submit().unwrap().wait().unwrap();
    assert_eq!(target.first_wrong(1), None);
}

#[test]
fn memory_that_no_adapter_takes_is_not_registered_and_the_error_says_why() {
    let standin = StandIn::with_adapters(1);
    let end = End::new(&standin, 64, |builder| builder);
    let before = (standin.live(), end.registry().region_count());
    standin.refuse(c"ibv_reg_mr");
    let memory = Memory::anonymous(1 << 20, Pages::Small).unwrap();
    let error = end.registry().register(memory, Access::ReadWrite).unwrap_err();
    assert!(matches!(error, Error::Rdma(_)), "{error}");
    assert!(error.to_string().contains("cannot be reached by RDMA"), "{error}");
    assert_eq!((standin.live(), end.registry().region_count()), before);
}

#[test]
fn lanes_for_which_there_is_no_queue_pair_are_tried_again() {
    let standin = StandIn::with_adapters(1);
    let target = End::new(&standin, 64, |builder| builder).shared();
    let initiator = End::new(&standin, 64, |builder| builder);
    initiator.fill(1);
    // The first is the initiator's, the second the target's.
    for refused in 1..=2 {
        for _ in 0..refused {
            standin.refuse(c"ibv_create_qp");
        }
    }
    let (peer, remote) = initiator.meet(&target);
    let request = peer.write(initiator.layer.blocks(initiator.all()), remote.blocks(target.all()));
    request.submit().unwrap().wait().unwrap();
    assert_eq!(target.first_wrong(1), None);
}

#[test]
fn files_and_what_carries_checksums_go_by_the_stream_and_the_report_says_so() {
    let standin = StandIn::with_adapters(1);
    let target = End::new(&standin, 64, |builder| builder).shared();
    let initiator = End::new(&standin, 64, |builder| builder);
    initiator.fill(1);
    let map_file = |end: &End| {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 * 4096).unwrap();
        end.registry().register(Memory::map_file(file).unwrap(), Access::ReadWrite).unwrap()
    };
    let their_file = map_file(&target);
    their_file.share(Access::ReadWrite).unwrap();
    let (peer, remote) = initiator.meet(&target);
    let write = || peer.write(initiator.layer.blocks(initiator.all()), remote.blocks(target.all()));
    let report = write().checksum(true).submit().unwrap().wait().unwrap();
    assert_eq!((report.transport, report.by_reference), ("tcp", false));
    assert_eq!(target.first_wrong(1), None);

    let file = map_file(&initiator);
    let whole = peer.find(target.cache.base(), 64 * 4096).unwrap();
    let span = whole.span(0, 64 * 4096).unwrap();
    let report = peer.write(file.whole(), span).submit().unwrap().wait().unwrap();
    assert_eq!((report.transport, report.by_reference), ("tcp", false));
    let mut zeros = vec![1; 64 * 4096];
    target.cache.read_at(0, &mut zeros).unwrap();
    assert!(zeros.iter().all(|byte| *byte == 0));

    // Nor does an adapter write to one, at either end.
    target.fill(2);
    let span = whole.span(0, 64 * 4096).unwrap();
    let report = peer.read(span, file.whole()).submit().unwrap().wait().unwrap();
    assert_eq!((report.transport, report.by_reference), ("tcp", false));
    let (mut there, mut here) = (zeros, vec![0; 64 * 4096]);
    target.cache.read_at(0, &mut there).unwrap();
    file.read_at(0, &mut here).unwrap();
    assert!(there == here && here.iter().any(|byte| *byte != 0));
    let whole = peer.find(their_file.base(), 64 * 4096).unwrap();
    let span = whole.span(0, 64 * 4096).unwrap();
    let report = peer.write(initiator.cache.whole(), span).submit().unwrap().wait().unwrap();
    assert_eq!((report.transport, report.by_reference), ("tcp", false));
    their_file.read_at(0, &mut there).unwrap();
    initiator.cache.read_at(0, &mut here).unwrap();
    assert!(there == here);
}
