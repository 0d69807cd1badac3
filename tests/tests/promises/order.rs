//! Promise 6: a notification never overtakes its data, and does not wait for anybody to poll.

use std::fmt::Write;
use std::time::Duration;

use kvferry_tests::command::{Answer, Command, Move, Setup, Way};
use kvferry_tests::process::{Cache, Process, blocks, push};

/// A move whose notification lists its blocks as the receiver checks them.
fn announced(way: Way, with: &Process, local: Vec<u32>, remote: Vec<u32>) -> Move {
    let mut text = String::new();
    for (here, there) in local.iter().zip(&remote) {
        write!(text, "{there}:{here} ").unwrap();
    }
    Move { local, remote, notify: Some(text), ..blocks(way, with, 0..0) }
}

#[test]
fn when_a_notification_arrives_all_of_its_data_is_in_place() {
    let cache = Cache { blocks: 4000, block_bytes: 1024, share: true };
    let setup = || Setup { bulk_lanes: Some(3), slice_bytes: Some(64 << 10), ..Setup::default() };
    let mut target = super::start_with(setup(), cache);
    let mut initiator = super::start_with(setup(), cache);
    initiator.connect(&target);
    initiator.fill(0..4000, 1);
    // From one block, whose notification rides with it, to many slices on several lanes.
    let counts = [1, 2, 50, 300, 1000];
    for round in 0..40_u32 {
        let count = counts[round as usize % counts.len()];
        let local: Vec<u32> = (0..count).map(|index| (index * 3 + round) % 4000).collect();
        let remote: Vec<u32> = (0..count).map(|index| (index * 7 + round * 31) % 4000).collect();
        // The target looks when it is told, and only then: what was there before is another
        // version.
        target.fill(0..4000, 2);
        initiator.submit("t", announced(Way::Push, &target, local, remote));
        match target.tell(&Command::NextNotification { patience_ms: 10_000, seed: Some(1) }) {
            Answer::Notification { wrong, from, .. } => {
                assert_eq!(wrong, [0_u32; 0], "round {round}");
                assert_eq!(from, initiator.incarnation);
            }
            other => {
                let end = initiator.wait("t", Duration::ZERO);
                panic!("round {round}: {other:?}, and the transfer: {end:?}");
            }
        }
        assert!(initiator.wait("t", Duration::from_secs(10)).is_done());
    }
}

#[test]
fn a_notification_arrives_though_its_initiator_never_looks() {
    let mut target = super::start();
    let mut initiator = super::start();
    initiator.connect(&target);
    let what = Move { notify: Some("through".into()), ..push(&target, 256) };
    initiator.submit("t", what);
    match target.tell(&Command::NextNotification { patience_ms: 10_000, seed: None }) {
        Answer::Notification { text, .. } => assert_eq!(text, "through"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn notifications_that_find_no_room_are_sent_again_and_none_is_lost_or_doubled() {
    let setup = Setup { notifications: Some(2), ..Setup::default() };
    let mut target = super::start_with(setup, Cache::default());
    let mut initiator = super::start();
    initiator.connect(&target);
    for index in 0..10 {
        let count = if index % 2 == 0 { 1 } else { 100 };
        let what = Move { notify: Some(index.to_string()), ..push(&target, count) };
        initiator.submit(&index.to_string(), what);
    }
    let mut arrived: Vec<String> = (0..10)
        .map(|_| {
            match target.tell(&Command::NextNotification { patience_ms: 10_000, seed: None }) {
                Answer::Notification { text, .. } => text,
                other => panic!("{other:?}"),
            }
        })
        .collect();
    arrived.sort();
    assert_eq!(arrived, (0..10).map(|index| index.to_string()).collect::<Vec<_>>());
    for index in 0..10 {
        assert!(initiator.wait(&index.to_string(), Duration::from_secs(10)).is_done());
    }
    let more = target.tell(&Command::NextNotification { patience_ms: 50, seed: None });
    assert!(matches!(more, Answer::Nothing), "{more:?}");
}
