//! A request is aborted while its blocks are written: they go to the next request, and what is
//! still on its way must not land in them (sglang#35049, nixl#2067).
//!
//! A writer that is stopped in the middle of a slice and wakes later, a grant that expires in the
//! middle of one, a cancelled writer, and a reader that times out stand in `promises/fence`.

use std::time::Duration;

use kvferry_tests::command::{Answer, Command, Move, Setup};
use kvferry_tests::process::{Cache, Process, pull, push};
use kvferry_tests::proxy::Proxy;

const COUNT: u32 = 1024;

/// How long a write is on its way.
const DELAY: Duration = Duration::from_secs(2);

/// Nothing that a peer does holds up a revocation. The rest is the way to the process and back.
const AT_ONCE: Duration = Duration::from_millis(500);

const CACHE: Cache = Cache { blocks: COUNT as u64, block_bytes: 4096, share: false };

fn shared() -> Process {
    Process::start_with(Setup::default(), Cache { share: true, ..CACHE })
}

#[test]
fn a_delayed_write_does_not_land_in_the_blocks_of_the_next_request() {
    // None of the write has arrived when its grant is revoked, or half a slice has.
    for under_way in [0, 600_000] {
        let proxy = Proxy::start();
        let mut d = Process::start_behind(&proxy, Setup::default(), CACHE);
        let (mut a, mut b) = (shared(), shared());
        a.fill(0..COUNT, 1);
        b.fill(0..COUNT, 2);
        a.connect(&d);
        a.await_held("connected", |held| held.lanes_opened == 2);
        let ticket = Some(d.grant("a", 0..COUNT, &a, true));
        proxy.hold_after(under_way);
        let notify = Some("a is there".to_owned());
        a.submit("a", Move { ticket, notify, ..push(&d, COUNT) });
        proxy.await_held();

        let took = d.revoke("a");
        assert!(took < AT_ONCE, "{took:?}");
        // The same blocks, at once: B's lanes are not held.
        b.connect(&d);
        let ticket = Some(d.grant("b", 0..COUNT, &b, true));
        assert!(b.transfer(Move { ticket, ..push(&d, COUNT) }).is_done());
        d.assert_holds(0..COUNT, 2);

        std::thread::sleep(DELAY);
        proxy.release();
        let end = a.wait("a", Duration::from_secs(10));
        assert_eq!((end.cause(), end.remote()), ("Refused", "fenced"), "{end:?}");
        d.assert_holds(0..COUNT, 2);
        let told = d.tell(&Command::NextNotification { patience_ms: 0, seed: None });
        assert!(matches!(told, Answer::Nothing), "{told:?}");
    }
}

#[test]
fn what_a_lost_lane_still_carries_does_not_land_once_its_transfer_is_through() {
    let proxy = Proxy::start();
    let mut d = Process::start_behind(&proxy, Setup::default(), Cache { share: true, ..CACHE });
    let mut a = shared();
    a.fill(0..COUNT, 1);
    a.connect(&d);
    a.await_held("connected", |held| held.lanes_opened == 2);
    for under_way in [0, 600_000] {
        proxy.hold_after(under_way);
        a.submit("a", push(&d, COUNT));
        proxy.await_held();
        // Lost for A. Its bytes are in buffers on the way, and it sends them again on another lane.
        proxy.lose();
        let end = a.wait("a", Duration::from_secs(10));
        assert!(end.is_done(), "{end:?}");
        d.assert_holds(0..COUNT, 1);
        d.fill(0..COUNT, 2);
        proxy.release();
        d.await_held("through", |held| held.lanes_accepted == 2);
        d.assert_holds(0..COUNT, 2);
    }
}

#[test]
fn a_cancelled_read_does_not_land_in_the_blocks_of_the_next_request() {
    let proxy = Proxy::start();
    let mut a = Process::start_behind(&proxy, Setup::default(), Cache { share: true, ..CACHE });
    let mut b = shared();
    // One lane for large transfers: what comes on it comes in order.
    let setup = Setup { bulk_lanes: Some(1), ..Setup::default() };
    let cache = Cache { blocks: 2 * u64::from(COUNT), share: true, ..CACHE };
    let mut d = Process::start_with(setup, cache);
    a.fill(0..COUNT, 1);
    b.fill(0..COUNT, 2);
    d.connect(&a);
    d.connect(&b);
    d.await_held("connected", |held| held.lanes_opened == 4);
    proxy.hold_replies_after(600_000);
    d.submit("a", pull(&a, COUNT));
    proxy.await_held();
    d.ok(&Command::Cancel { name: "a".into() });
    let end = d.wait("a", AT_ONCE);
    assert_eq!(end.cause(), "Cancelled", "a read is fenced here, and waits for nobody: {end:?}");
    assert!(d.transfer(pull(&b, COUNT)).is_done());
    d.assert_holds(0..COUNT, 2);

    std::thread::sleep(DELAY);
    proxy.release();
    // What was on its way is taken off the lane before this comes.
    let behind = Move { local: (COUNT..2 * COUNT).collect(), ..pull(&a, COUNT) };
    assert!(d.transfer(behind).is_done());
    d.assert_holds(0..COUNT, 2);
    assert!(d.transfer(pull(&a, COUNT)).is_done());
    d.assert_holds(0..COUNT, 1);
}
