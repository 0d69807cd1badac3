//! One peer of several is behind a rail that drops everything, from some moment on after it was connected:
//! those behind the other rail do not wait for it, whether they are connected already or connect only now
//! (Mooncake#828, vllm#49221; over TCP: `recipes/bad_peer`).

use std::time::{Duration, Instant};

use kvferry_engine::{Error, Peer, Region, Transport, Transports};
use kvferry_tests::own::{Own, adapters};
use kvferry_tests::pattern;
use kvferry_tests::process::{Cache, Process};

use super::rails::{NEAR, PATIENCE, blackhole, side};

const BYTES: u64 = 1 << 20;

const CACHE: Cache = Cache { blocks: BYTES / 4096, block_bytes: 4096, share: true };

const BLOCKS: u32 = 256;

/// What a transfer of a megabyte may take, and connecting before it, on an emulated machine. Whatever waits
/// for the bad one waits for its seconds.
const NO_WAIT: Duration = Duration::from_millis(1500);

const DEADLINE: Duration = Duration::from_secs(8);

fn write(peer: &Peer, here: &Region) -> kvferry_engine::Request {
    peer.write(here.whole(), peer.regions().remove(0).span(0, BYTES).unwrap())
}

fn assert_served(own: &Own, process: &mut Process, here: &Region) {
    let began = Instant::now();
    let peer = own.connect(process);
    let report = write(&peer, here).submit().unwrap().wait().unwrap();
    let took = began.elapsed();
    assert_eq!(report.transport, "rdma");
    assert!(took < NO_WAIT, "{took:?}");
    process.assert_holds(0..BLOCKS, 1);
}

#[test]
fn while_the_rail_of_one_drops_everything_the_others_transfer_by_theirs() {
    let bad = side("rxe_b0", CACHE);
    let mut good: Vec<_> = (0..3).map(|_| side("rxe_b1", CACHE)).collect();
    let own = Own::start_with(|builder| {
        builder.transports(Transports::Only(Transport::Rdma)).rdma(adapters(NEAR))
    });
    let here = own.registry.allocate(BYTES).unwrap();
    pattern::fill(&here, 0, BYTES, 1, 0).unwrap();
    let peer = own.connect(&bad);
    write(&peer, &here).submit().unwrap().wait().unwrap();
    good.iter_mut().for_each(|process| assert_served(&own, process, &here));

    let fault = blackhole();
    let began = Instant::now();
    let far = peer.regions().remove(0).span(0, BYTES).unwrap();
    let into = own.registry.allocate(BYTES).unwrap();
    let waiting: Vec<_> = (0..8)
        .map(|index| match index % 2 {
            0 => peer.write(here.whole(), far),
            _ => peer.read(far, into.whole()),
        })
        .map(|request| request.deadline(DEADLINE).submit().unwrap())
        .collect();
    for _ in 0..3 {
        good.iter_mut().for_each(|process| {
            process.fill(0..BLOCKS, 9);
            assert_served(&own, process, &here);
        });
    }
    // And one that is connected to only now.
    assert_served(&own, &mut side("rxe_b1", CACHE), &here);
    for transfer in waiting {
        let cause = transfer.wait().unwrap_err().cause;
        let is_told = matches!(cause, Error::RdmaFailed { .. } | Error::Deadline { .. });
        assert!(is_told && cause.is_retryable(), "{cause}");
    }
    assert!(began.elapsed() < DEADLINE + NO_WAIT, "{:?}", began.elapsed());
    drop(fault);
    // Its rail is back, and so is it.
    let began = Instant::now();
    while write(&peer, &here).submit().unwrap().wait().is_err() {
        assert!(began.elapsed() < PATIENCE, "it stays away");
    }
}
