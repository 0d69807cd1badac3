//! The fence, while reads are under way and do not end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvferry_engine::{Access, Error, Remote, RemoteGrant};
use kvferry_tests::own::await_lanes;

use crate::library::{End, StandIn, await_that};

/// A fence waits for what is under way for 50 ms, then tears it down; the rest is for the machine.
const SOON: Duration = Duration::from_secs(2);

const BLOCKS: u64 = 256;

#[test]
fn what_is_revoked_while_it_is_read_never_lands_however_late_the_adapter_is() {
    let standin = StandIn::with_adapters(1);
    let target = End::new(&standin, BLOCKS, |builder| builder);
    let initiator = End::new(&standin, BLOCKS, |builder| builder);
    initiator.fill(1);
    let peer = initiator.own.connect_to(&target.engine().address().to_string()).unwrap();
    for round in 0..4 {
        target.fill(2);
        let span = [target.cache.whole()];
        let incarnation = initiator.engine().incarnation();
        let grant = target
            .engine()
            .grant(span, incarnation, Access::Write, Duration::from_secs(60))
            .unwrap();
        let ticket = target.engine().ticket(&grant);
        let remote = Arc::new(RemoteGrant::from_ticket(&ticket).unwrap());
        standin.hold(true);
        let whole = initiator.cache.whole();
        let request = peer.write(whole, &remote);
        let transfer = request.submit().unwrap();
        await_that("requests are under way", || standin.waiting() > 0);
        let began = Instant::now();
        grant.revoke();
        let took = began.elapsed();
        assert!(took < SOON, "{took:?}");
        // From here on the memory is the target's alone.
        target.fill(3);
        standin.hold(false);
        standin.release(usize::MAX);
        let error = transfer.wait().unwrap_err();
        assert!(matches!(error.cause, Error::Refused { .. }), "round {round}: {error}");
        assert_eq!(error.remote, Remote::Fenced);
        assert_eq!(target.first_wrong(3), None, "round {round}");
    }
}

#[test]
fn what_waits_its_turn_when_it_is_revoked_is_refused_and_what_is_under_way_is_none_the_worse() {
    let standin = StandIn::with_adapters(1);
    let target = End::new(&standin, BLOCKS, |builder| builder).shared();
    let later = target.registry().allocate(1 << 20).unwrap();
    let initiator = End::new(&standin, BLOCKS, |builder| builder.bulk_lanes(1));
    initiator.fill(1);
    let (peer, remote) = initiator.meet(&target);
    await_lanes(&peer, 2);
    let incarnation = initiator.engine().incarnation();
    let minute = Duration::from_secs(60);
    let permit = || {
        let span = [later.whole()];
        let grant = target.engine().grant(span, incarnation, Access::Write, minute).unwrap();
        let ticket = target.engine().ticket(&grant);
        (grant, Arc::new(RemoteGrant::from_ticket(&ticket).unwrap()))
    };
    let ((grant, granted), (gone, gone_granted)) = (permit(), permit());
    gone.revoke();
    standin.hold(true);
    // As much as may be under way at once.
    let (from, to) = (initiator.layer.blocks(initiator.all()), remote.blocks(target.all()));
    let first = peer.write(from, to).submit().unwrap();
    await_that("requests are under way", || standin.waiting() > 0);
    let second = peer.write(initiator.cache.whole(), &granted).submit().unwrap();
    // It has reached the target once what was said behind it, on the one lane for what is large, is
    // answered.
    peer.write(initiator.cache.whole(), &gone_granted).submit().unwrap().wait().unwrap_err();
    grant.revoke();
    later.write_at(0, &[7; 1 << 20]).unwrap();
    standin.hold(false);
    standin.release(usize::MAX);
    first.wait().unwrap();
    assert_eq!(target.first_wrong(1), None);
    let error = second.wait().unwrap_err();
    assert!(matches!(error.cause, Error::Refused { .. }), "{error}");
    let mut now = vec![0; 1 << 20];
    later.read_at(0, &mut now).unwrap();
    assert!(now.iter().all(|byte| *byte == 7));
}

#[test]
fn a_write_that_is_cancelled_is_fenced_and_nothing_lands_after_it() {
    let standin = StandIn::with_adapters(1);
    let target = End::new(&standin, BLOCKS, |builder| builder).shared();
    let initiator = End::new(&standin, BLOCKS, |builder| builder);
    initiator.fill(1);
    target.fill(2);
    let (peer, remote) = initiator.meet(&target);
    standin.hold(true);
    let request = peer.write(initiator.layer.blocks(initiator.all()), remote.blocks(target.all()));
    let transfer = request.submit().unwrap();
    await_that("requests are under way", || standin.waiting() > 0);
    transfer.cancel();
    let error = transfer.wait().unwrap_err();
    assert!(error.is_cancelled(), "{error}");
    assert_eq!(error.remote, Remote::Fenced);
    target.fill(3);
    standin.hold(false);
    standin.release(usize::MAX);
    assert_eq!(target.first_wrong(3), None);
    // The next one works, on a lane that is none the worse or a new one.
    let request = peer.write(initiator.layer.blocks(initiator.all()), remote.blocks(target.all()));
    request.submit().unwrap().wait().unwrap();
    assert_eq!(target.first_wrong(1), None);
}

#[test]
fn a_read_that_has_ended_by_its_deadline_lands_no_more() {
    let standin = StandIn::with_adapters(1);
    let source = End::new(&standin, BLOCKS, |builder| builder).shared();
    let reader = End::new(&standin, BLOCKS, |builder| builder);
    source.fill(1);
    reader.fill(2);
    let (peer, remote) = reader.meet(&source);
    standin.hold(true);
    let request = peer.read(remote.blocks(source.all()), reader.layer.blocks(reader.all()));
    let transfer = request.deadline(Duration::from_millis(200)).submit().unwrap();
    let error = transfer.wait().unwrap_err();
    assert!(matches!(error.cause, Error::Deadline { .. }), "{error}");
    reader.fill(3);
    standin.hold(false);
    standin.release(usize::MAX);
    assert_eq!(reader.first_wrong(3), None);
    let request = peer.read(remote.blocks(source.all()), reader.layer.blocks(reader.all()));
    request.submit().unwrap().wait().unwrap();
    assert_eq!(reader.first_wrong(1), None);
}

#[test]
fn memory_that_is_unregistered_while_it_is_written_is_touched_no_more() {
    let standin = StandIn::with_adapters(1);
    let source = End::new(&standin, BLOCKS, |builder| builder).shared();
    let reader = End::new(&standin, BLOCKS, |builder| builder);
    source.fill(1);
    let memory = reader.cache.memory().unwrap();
    let (peer, remote) = reader.meet(&source);
    standin.hold(true);
    let request = peer.read(remote.blocks(source.all()), reader.layer.blocks(reader.all()));
    let transfer = request.submit().unwrap();
    await_that("requests are under way", || standin.waiting() > 0);
    let End { cache, own: _own, .. } = reader;
    let began = Instant::now();
    let released = cache.unregister(Duration::from_millis(50));
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!(released.cut.len(), 1);
    memory.copy_in(0, &[7; 1 << 20]).unwrap();
    standin.hold(false);
    standin.release(usize::MAX);
    assert!(matches!(transfer.wait().unwrap_err().cause, Error::RegionWithdrawn));
    let mut now = vec![0; 1 << 20];
    memory.copy_out(0, &mut now).unwrap();
    assert!(now.iter().all(|byte| *byte == 7));
}

#[test]
fn a_source_that_is_taken_back_while_it_is_read_is_never_reported_done() {
    let standin = StandIn::with_adapters(1);
    let source = End::new(&standin, BLOCKS, |builder| builder);
    let reader = End::new(&standin, BLOCKS, |builder| builder);
    source.fill(1);
    let peer = reader.own.connect_to(&source.engine().address().to_string()).unwrap();
    let incarnation = reader.engine().incarnation();
    let span = [source.cache.whole()];
    let grant =
        source.engine().grant(span, incarnation, Access::Read, Duration::from_secs(60)).unwrap();
    let remote = Arc::new(RemoteGrant::from_ticket(&source.engine().ticket(&grant)).unwrap());
    standin.hold(true);
    let transfer = peer.read(&remote, reader.cache.whole()).submit().unwrap();
    await_that("requests are under way", || standin.waiting() > 0);
    grant.revoke();
    source.fill(2);
    standin.hold(false);
    standin.release(usize::MAX);
    let error = transfer.wait().unwrap_err();
    assert!(matches!(error.cause, Error::SourceReleased { .. }), "{error}");
}

#[test]
fn a_source_that_is_unregistered_while_it_is_read_fails_and_its_neighbours_are_read_again() {
    let standin = StandIn::with_adapters(1);
    let source = End::new(&standin, BLOCKS, |builder| builder).shared();
    let reader = End::new(&standin, BLOCKS, |builder| builder);
    let other = source.registry().allocate(1 << 20).unwrap();
    other.share(Access::ReadWrite).unwrap();
    other.write_at(0, &[9; 1 << 20]).unwrap();
    let into = reader.registry().allocate(1 << 20).unwrap();
    let (peer, remote) = reader.meet(&source);
    let neighbour = peer.find(other.base(), 1 << 20).unwrap();
    standin.hold(true);
    let (blocks, all) = (remote.blocks(source.all()), reader.layer.blocks(reader.all()));
    let lost = peer.read(blocks, all).submit().unwrap();
    await_that("requests are under way", || standin.waiting() > 0);
    let kept = peer.read(neighbour.whole(), into.whole()).submit().unwrap();
    let End { cache, own: _own, .. } = source;
    cache.unregister(Duration::ZERO);
    standin.hold(false);
    standin.release(usize::MAX);
    let error = lost.wait().unwrap_err();
    assert!(matches!(error.cause, Error::Refused { .. } | Error::SourceReleased { .. }), "{error}");
    kept.wait().unwrap();
    let mut landed = vec![0; 1 << 20];
    into.read_at(0, &mut landed).unwrap();
    assert!(landed.iter().all(|byte| *byte == 9));
}
