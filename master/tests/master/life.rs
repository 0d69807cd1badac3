//! Who lives, and what outlives the master.

use std::time::{Duration, Instant};

use kv_master::state::Settings;
use kvferry_proto::pool::{Outcome, Presence};
use kvferry_proto::rpc::pool as rpc;

use super::client::{Client, SOON, listen, settings, start, stop};

const SEGMENT: u64 = 1 << 20;

#[tokio::test]
async fn objects_outlive_the_master_and_it_says_that_it_is_recovering_until_it_was_told() {
    let master = start(settings(), listen()).await;
    let mut owner = Client::lend(&master, 1, SEGMENT).await;
    let mut dead = Client::lend(&master, 2, SEGMENT).await;
    dead.put_whole(&["other"], 100).await;
    let names: Vec<String> = (0..300).map(|number| format!("m@0@{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let before = owner.put_whole(&names, 512).await;
    let (inventory, epoch) = (owner.inventory.clone(), owner.joined.epoch);
    stop(master).await;

    let slow = Settings { recovery: Duration::from_secs(600), ..settings() };
    let slow = Settings { most_recovery: Duration::from_secs(600), ..slow };
    let recovering = start(slow, listen()).await;
    let mut early = Client::join(&recovering, 9).await;
    assert!(early.joined.is_recovering);
    assert_eq!(early.exists(&["m@0@1"]).await, [Presence::Recovering]);
    let refused = early.start(early.put(&["new"], 10)).await;
    assert_eq!(refused.reserved, [Err(Outcome::Recovering)]);
    stop(recovering).await;

    let master = start(settings(), listen()).await;
    let mut owner = Client::join_with(&master, 1, epoch).await.unwrap();
    assert!(owner.joined.epoch > epoch);
    owner.inventory = inventory;
    let held = owner.inventory.lock().len() as u64;
    let mounted = owner.mount(SEGMENT).await.unwrap();
    assert_eq!((mounted.adopted, mounted.refused), (held, 0));
    owner.follow().await;
    owner.live();
    let located = owner.locate(&names).await;
    for (found, reserved) in located.objects.iter().zip(&before.reserved) {
        let was_here = reserved.as_ref().unwrap();
        match found {
            Ok(found) => assert_eq!(found.version, was_here.version),
            // What was put into the segment of the other, which is gone.
            Err(outcome) => assert_eq!(*outcome, Outcome::NotFound),
        }
    }
    let here = located.objects.iter().filter(|found| found.is_ok()).count() as u64;
    assert!(here > 0 && here <= held);
    // And puts go on, with versions that are newer than all before.
    let after = owner.put_whole(&["new"], 10).await;
    let newest = before.reserved.iter().map(|reserved| reserved.as_ref().unwrap().version).max();
    assert!(Some(after.reserved[0].as_ref().unwrap().version) > newest);
    stop(master).await;
}

#[tokio::test]
async fn an_owner_that_gives_no_sign_of_life_is_hidden_and_comes_back_with_the_next() {
    let master = start(settings(), listen()).await;
    let mut owner = Client::join(&master, 1).await;
    owner.mount(SEGMENT).await.unwrap();
    owner.follow().await;
    owner.put_whole(&["a"], 100).await;
    owner.wait_for("a", Presence::Absent).await;
    let mut writer = Client::join(&master, 2).await;
    let refused = writer.start(writer.put(&["b"], 100)).await;
    assert_eq!(refused.reserved, [Err(Outcome::NoSpace)]);
    assert!(owner.beat().await.lease.is_some());
    owner.wait_for("a", Presence::There).await;
    stop(master).await;
}

#[tokio::test]
async fn a_client_of_an_earlier_master_is_told_to_join() {
    let master = start(settings(), listen()).await;
    let mut owner = Client::join(&master, 1).await;
    assert!(owner.beat().await.lease.is_some());
    owner.joined.master.0 ^= 2;
    assert_eq!(owner.beat().await.lease, None);
    owner.joined.master.0 ^= 2;
    owner.pool.leave(rpc::LeaveRequest { client: 1 }).await.unwrap();
    assert_eq!(owner.beat().await.lease, None);
    let refused = owner.mount(SEGMENT).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    let answer = owner.start(owner.put(&["a"], 1)).await;
    assert_eq!(answer.reserved, [Err(Outcome::NotJoined)]);
    stop(master).await;
}

#[tokio::test]
async fn what_a_dead_client_was_writing_can_be_put_by_another() {
    let master = start(settings(), listen()).await;
    let mut owner = Client::lend(&master, 1, SEGMENT).await;
    let mut writer = Client::join(&master, 2).await;
    writer.start(writer.put(&["a"], 100)).await;
    let deadline = Instant::now() + SOON;
    loop {
        match owner.start(owner.put(&["a"], 100)).await.reserved[0] {
            Ok(_) => break,
            Err(outcome) => assert_eq!(outcome, Outcome::BeingWritten),
        }
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop(master).await;
}

#[tokio::test]
async fn load_never_expires_a_live_client() {
    let master = start(settings(), listen()).await;
    let mut owner = Client::lend(&master, 1, SEGMENT).await;
    owner.put_whole(&["a"], 100).await;
    let keys: Vec<tonic::codegen::Bytes> =
        (0..4096).map(|n| format!("m@0@{n:0200}").into()).collect();
    let request = rpc::ExistsRequest { tenant: String::new(), keys, lease: true };
    let mut load = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (mut pool, request) = (owner.pool.clone(), request.clone());
        load.spawn(async move {
            let until = Instant::now() + Duration::from_millis(2500);
            while Instant::now() < until {
                pool.exists(request.clone()).await.unwrap();
            }
        });
    }
    // More than twice as long as a client may be silent.
    load.join_all().await;
    assert_eq!(owner.exists(&["a"]).await, [Presence::There]);
    stop(master).await;
}

#[tokio::test]
async fn a_segment_that_is_taken_back_waits_for_leases_and_then_is_gone() {
    let short = Settings { read_lease: Duration::from_millis(300), ..settings() };
    let master = start(short, listen()).await;
    let mut owner = Client::lend(&master, 1, SEGMENT).await;
    owner.put_whole(&["a"], 100).await;
    owner.locate(&["a"]).await;
    let unmount = |grace_ms| rpc::UnmountRequest { client: 1, segment: 1, grace_ms };
    let gone = owner.pool.unmount(unmount(60_000)).await.unwrap().into_inner();
    assert_eq!(gone.leased_ms, 0, "no lease was broken");
    assert_eq!(owner.exists(&["a"]).await, [Presence::Absent]);
    let again = owner.pool.unmount(unmount(0)).await.unwrap_err();
    assert_eq!(again.code(), tonic::Code::NotFound);
    stop(master).await;
}
