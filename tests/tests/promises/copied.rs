//! What holds of every copy that a receiver makes by itself of what another process has, mapped or read
//! where it lies: who may stop it, and when, and what is left then.

use std::time::Duration;

use kvferry_tests::command::{Answer, Command, End, Move, Setup, Way};
use kvferry_tests::process::{Cache, Process, blocks, pull, push};

use super::{OWN_MEMFDS, start_with};

/// A revocation waits for one piece of a copy at most. The rest is for the way to the process.
const AT_ONCE: Duration = Duration::from_millis(500);

/// Blocks of a cache that takes a while to copy: 32 MiB.
pub(super) const COUNT: u32 = 512;

pub(super) fn large(share: bool) -> Cache {
    Cache { blocks: COUNT.into(), block_bytes: 64 << 10, share }
}

pub(super) fn pairs(blocks: std::ops::Range<u32>) -> Vec<(u32, u32)> {
    blocks.map(|block| (block, block)).collect()
}

/// As much as a slice takes: a copy that is stopped is stopped in the middle of one. And two lanes, so
/// that two are copied at once.
fn large_slices() -> Setup {
    Setup { slice_bytes: Some(16 << 20), bulk_lanes: Some(2), ..Setup::default() }
}

/// The first and the last block of each such slice.
const EDGES: [u32; 4] = [0, 255, 256, 511];

/// Which of the edges do not hold `seed` yet. Asked so, because to look at all blocks takes longer
/// than to copy them.
fn missing(process: &mut Process, seed: u64) -> Vec<u32> {
    process.wrong(&EDGES.map(|block| (block, block)), seed)
}

/// Whether a slice has begun to land and its end has not.
fn is_in_the_middle(missing: &[u32]) -> bool {
    [(0, 255), (256, 511)]
        .iter()
        .any(|(first, last)| !missing.contains(first) && missing.contains(last))
}

/// Rounds until what is to be met in the middle was; far more than are needed.
const ROUNDS: u32 = 300;

#[test]
fn a_target_that_revokes_while_it_copies_keeps_its_blocks() {
    let mut target = start_with(Setup::default(), large(false));
    let mut initiator = start_with(large_slices(), large(false));
    initiator.connect(&target);
    initiator.fill(0..COUNT, 1);
    let mut met = false;
    for round in 0..ROUNDS {
        let ticket = Some(target.grant("g", 0..COUNT, &initiator, true));
        target.fill(0..COUNT, 2);
        initiator.submit("t", Move { ticket, ..push(&target, COUNT) });
        std::thread::sleep(Duration::from_micros(u64::from(round % 20) * 200));
        let took = target.revoke("g");
        assert!(took < AT_ONCE, "{took:?}");
        let missed = missing(&mut target, 1);
        let end = initiator.wait("t", Duration::from_secs(20));
        assert_eq!(missing(&mut target, 1), missed, "more has landed since");
        match end {
            End::Done { .. } => assert_eq!(missed, [0_u32; 0], "done means there"),
            _ => assert_eq!((end.cause(), end.remote()), ("Refused", "fenced"), "{end:?}"),
        }
        met = is_in_the_middle(&missed);
        if met {
            break;
        }
    }
    assert!(met, "never in the middle of a copy");
    // The lane is none the worse.
    let again = Some(target.grant("again", 0..COUNT, &initiator, true));
    assert!(initiator.transfer(Move { ticket: again, ..push(&target, COUNT) }).is_done());
    target.assert_holds(0..COUNT, 1);
}

#[test]
fn a_source_that_is_taken_back_while_it_is_copied_is_never_reported_done() {
    let mut source = start_with(Setup::default(), large(false));
    let two_lanes = Setup { bulk_lanes: Some(2), ..Setup::default() };
    let mut reader = start_with(two_lanes, large(false));
    reader.connect(&source);
    let mut met = false;
    for round in 0..ROUNDS {
        source.fill(0..COUNT, 1);
        let ticket = Some(source.grant("g", 0..COUNT, &reader, false));
        reader.submit("t", Move { ticket, ..pull(&source, COUNT) });
        std::thread::sleep(Duration::from_micros(u64::from(round % 20) * 500));
        assert!(source.revoke("g") < AT_ONCE);
        source.fill(0..COUNT, 2);
        let end = reader.wait("t", Duration::from_secs(20));
        match end.cause() {
            "SourceReleased" => met = true,
            "Refused" => {}
            _ => {
                assert!(end.is_done(), "{end:?}");
                reader.assert_holds(0..COUNT, 1);
            }
        }
        if met {
            break;
        }
    }
    assert!(met, "never in the middle of a copy");
}

#[test]
fn a_reader_whose_transfer_has_ended_copies_no_more_of_it() {
    let mut source = start_with(Setup::default(), large(true));
    let mut reader = start_with(large_slices(), large(true));
    reader.connect(&source);
    source.fill(0..COUNT, 1);
    let mut met = false;
    for round in 0..ROUNDS {
        reader.fill(0..COUNT, 2);
        reader.submit("t", pull(&source, COUNT));
        std::thread::sleep(Duration::from_micros(u64::from(round % 20) * 200));
        assert!(matches!(reader.tell(&Command::Cancel { name: "t".into() }), Answer::Ok));
        let end = reader.wait("t", Duration::from_secs(20));
        // From its end on the blocks are the reader's alone.
        let missed = missing(&mut reader, 1);
        assert!(end.is_done() || end.cause() == "Cancelled", "{end:?}");
        met = is_in_the_middle(&missed);
        if met {
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(missing(&mut reader, 1), missed, "more has landed since");
            break;
        }
    }
    assert!(met, "never in the middle of a copy");
    assert!(reader.transfer(pull(&source, COUNT)).is_done());
    reader.assert_holds(0..COUNT, 1);
}

#[test]
fn a_target_that_wakes_after_the_deadline_copies_nothing_of_what_has_changed_since() {
    let mut target = start_with(Setup::default(), large(true));
    let mut initiator = start_with(Setup::default(), large(true));
    initiator.connect(&target);
    target.fill(0..COUNT, 9);
    initiator.fill(0..COUNT, 1);
    target.stop();
    let what = Move { deadline_ms: Some(400), ..push(&target, COUNT) };
    let end = initiator.transfer(Move { notify: Some("there".into()), ..what });
    assert_eq!((end.cause(), end.remote()), ("Deadline", "unknown"), "{end:?}");
    // The source is free to change, and what the target would copy now is not what was asked for.
    initiator.fill(0..COUNT, 2);
    target.wake();
    initiator.connect(&target);
    assert!(initiator.transfer(Move { notify: Some("next".into()), ..push(&target, 0) }).is_done());
    let next = target.tell(&Command::NextNotification { patience_ms: 10_000, seed: None });
    assert!(matches!(next, Answer::Notification { text, .. } if text == "next"));
    assert_eq!(target.wrong(&pairs(0..COUNT), 2).len(), COUNT as usize);
}

#[test]
fn a_region_that_is_unregistered_while_it_is_copied_ends_its_transfers_and_harms_nobody() {
    for round in 0..8_u32 {
        let mut target = start_with(Setup::default(), large(true));
        let mut initiator = start_with(Setup::default(), large(true));
        initiator.connect(&target);
        initiator.fill(0..COUNT, 1);
        let way = if round % 2 == 0 { Way::Push } else { Way::Pull };
        initiator.submit("t", blocks(way, &target, 0..COUNT));
        std::thread::sleep(Duration::from_micros(u64::from(round) * 400));
        // At the initiator, whose transfer it is; or at the target, which serves it.
        let owner = if round % 4 < 2 { &mut initiator } else { &mut target };
        assert!(matches!(owner.tell(&Command::Unregister { patience_ms: 0 }), Answer::Cut { .. }));
        let end = initiator.wait("t", Duration::from_secs(20));
        let expected = ["RegionWithdrawn", "Refused", "SourceReleased"].contains(&end.cause());
        assert!(expected || end.is_done(), "{end:?}");
        let most = 2 * OWN_MEMFDS;
        assert!(initiator.held().memfds <= most && target.held().memfds <= most);
    }
}

#[test]
fn a_process_that_is_killed_in_the_middle_of_a_copy_takes_nobody_with_it() {
    for round in 0..8_u32 {
        let mut target = start_with(Setup::default(), large(true));
        let mut initiator = start_with(Setup::default(), large(true));
        initiator.connect(&target);
        let way = if round % 2 == 0 { Way::Push } else { Way::Pull };
        initiator.submit("t", blocks(way, &target, 0..COUNT));
        std::thread::sleep(Duration::from_micros(u64::from(round) * 500));
        if round % 4 < 2 {
            // Whose memory is copied from, or to: it lives on in the other's mapping until that
            // finds the lane closed.
            initiator.kill();
            target.await_held("given back", |held| {
                held.lanes_accepted == 0 && held.memfds == OWN_MEMFDS
            });
        } else {
            target.kill();
            let end = initiator.wait("t", Duration::from_secs(20));
            assert!(end.is_done() || end.cause() == "Unreachable", "{end:?}");
            initiator.await_held("given back", |held| {
                held.lanes_opened == 0 && held.memfds == OWN_MEMFDS
            });
        }
    }
}

#[test]
fn notifications_never_overtake_what_is_copied() {
    let mut target = start_with(Setup::default(), large(true));
    let mut initiator = start_with(Setup::default(), large(true));
    initiator.connect(&target);
    for round in 0..5 {
        target.fill(0..COUNT, 99);
        initiator.fill(0..COUNT, round);
        let text: String = (0..COUNT).map(|block| format!("{block}:{block} ")).collect();
        // As soon as the push is done its source is changed.
        assert!(initiator.transfer(Move { notify: Some(text), ..push(&target, COUNT) }).is_done());
        initiator.fill(0..COUNT, 1000 + round);
        match target.tell(&Command::NextNotification { patience_ms: 10_000, seed: Some(round) }) {
            Answer::Notification { wrong, .. } => assert_eq!(wrong, [0_u32; 0], "round {round}"),
            other => panic!("{other:?}"),
        }
    }
}
