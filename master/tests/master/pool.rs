//! What clients are promised.

use std::time::Instant;

use kv_master::state::Settings;
use kvferry_proto::pool::{Matching, Outcome, Presence, RemoveMatching, Tenant};
use kvferry_proto::rpc::pool as rpc;

use super::client::{Client, SOON, listen, settings, start, stop};

const SEGMENT: u64 = 1 << 20;

#[tokio::test]
async fn what_was_put_is_found_once_it_is_whole_and_gone_once_it_is_removed() {
    let master = start(settings(), listen()).await;
    let mut owner = Client::lend(&master, 1, SEGMENT).await;
    let mut writer = Client::join(&master, 2).await;
    writer.live();
    let answer = writer.start(writer.put(&["a", "b"], 1000)).await;
    assert_eq!(writer.exists(&["a", "b"]).await, [Presence::Absent; 2]);
    assert!(writer.end(&["a", "b"], &answer).await.is_recorded);
    assert_eq!(owner.inventory.lock().len(), 2, "recorded before the answer");

    let located = owner.locate(&["a", "c", "a"]).await;
    let found = located.objects[0].as_ref().unwrap();
    assert_eq!((found.length, found.checksum), (1000, Some(7)));
    assert_eq!(located.segments[found.replicas[0].segment].owner, owner.incarnation);
    assert_eq!(located.objects[1], Err(Outcome::NotFound));
    assert_eq!(located.objects[2].as_ref(), Ok(found));
    assert!(!located.lease.is_zero());

    // What is leased stays unless it is forced.
    let remove = |force| rpc::RemoveRequest {
        tenant: String::new(),
        keys: vec!["a".into(), "b".into()],
        force,
    };
    let removed = owner.pool.remove(remove(false)).await.unwrap().into_inner();
    let (leased, ok) = (i32::from(rpc::Outcome::Leased), i32::from(rpc::Outcome::Ok));
    assert_eq!(removed.outcomes, [leased, ok]);
    assert!(owner.pool.remove(remove(true)).await.unwrap().into_inner().is_recorded);
    assert_eq!(owner.inventory.lock().len(), 0);
    assert_eq!(owner.exists(&["a", "b"]).await, [Presence::Absent; 2]);
    stop(master).await;
}

#[tokio::test]
async fn a_pool_full_of_leased_objects_says_so_after_a_short_wait_and_takes_puts_with_new_room() {
    // Nothing is evicted before it is leased, and no lease ends.
    let settings = Settings { high_watermark: 1.0, read_lease: SOON * 60, ..settings() };
    let master = start(settings, listen()).await;
    let mut owner = Client::lend(&master, 1, 4 * 4096).await;
    let names = ["a", "b", "c", "d"];
    owner.put_whole(&names, 4096).await;
    let located = owner.locate(&names).await;
    assert!(located.objects.iter().all(Result::is_ok), "{:?}", located.objects);
    let began = Instant::now();
    let answer = owner.start(owner.put(&["e"], 4096)).await;
    assert_eq!(answer.reserved, [Err(Outcome::NoSpace)]);
    assert!(began.elapsed() < SOON);
    assert_eq!(Outcome::NoSpace.mooncake_code(), -200);

    // They are given up by force: their bytes stay for readers, so that there is no room yet.
    let tenant = Tenant::default();
    let all = RemoveMatching { tenant, matching: Matching::All, force: true };
    let done = owner.pool.remove_matching(rpc::RemoveMatchingRequest::from(all)).await.unwrap();
    assert_eq!(done.into_inner().removed, 4);
    let answer = owner.start(owner.put(&["e"], 4096)).await;
    assert_eq!(answer.reserved, [Err(Outcome::NoSpace)]);

    let _other = Client::lend(&master, 2, 4096).await;
    owner.put_whole(&["e"], 4096).await;
    stop(master).await;
}

#[tokio::test]
async fn a_full_pool_makes_room_for_a_put_within_the_call() {
    let master = start(settings(), listen()).await;
    let mut owner = Client::lend(&master, 1, 4 * 4096).await;
    for round in 0..20 {
        let name = format!("key-{round}");
        owner.put_whole(&[&name], 4096).await;
    }
    stop(master).await;
}

#[tokio::test]
async fn puts_with_two_replicas_are_apart_and_outlive_one_owner() {
    let master = start(settings(), listen()).await;
    let mut first = Client::lend(&master, 1, SEGMENT).await;
    let second = Client::lend(&master, 2, SEGMENT).await;
    let mut start_two = first.put(&["a"], 100);
    start_two.replicas = 2;
    let answer = first.start(start_two).await;
    assert_eq!(answer.reserved[0].as_ref().unwrap().replicas.len(), 2);
    assert!(first.end(&["a"], &answer).await.is_recorded);
    drop(second);
    // The second owner gives no sign of life any more.
    let deadline = Instant::now() + SOON;
    while first.locate(&["a"]).await.objects[0].as_ref().unwrap().replicas.len() > 1 {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    stop(master).await;
}

#[tokio::test]
async fn a_regular_expression_that_needs_too_much_is_refused() {
    let master = start(settings(), listen()).await;
    let mut owner = Client::lend(&master, 1, SEGMENT).await;
    owner.put_whole(&["m@0@a", "m@1@b", "n@0@c"], 10).await;
    let remove = |pattern: &str| {
        let matching = Matching::Regex(pattern.to_owned());
        let tenant = Tenant::default();
        rpc::RemoveMatchingRequest::from(RemoveMatching { tenant, matching, force: false })
    };
    for pattern in ["(", "((a{1000}){1000}){1000}", r"\w{5000}"] {
        let refused = owner.pool.remove_matching(remove(pattern)).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{pattern}");
    }
    let done = owner.pool.remove_matching(remove("^m@[0-9]@")).await.unwrap().into_inner();
    assert_eq!((done.removed, done.kept, done.is_recorded), (2, 0, true));
    let found = owner.exists(&["m@0@a", "n@0@c"]).await;
    assert_eq!(found, [Presence::Absent, Presence::There]);
    stop(master).await;
}
