//! Objects: put, got, found, removed; alone and in batches.

use std::collections::VecDeque;
use std::time::Duration;

use kvferry_store::{Error, Get, GetOptions, Matching, Outcome, Put, PutOptions, Stored, Tenant};

use tokio::task::JoinSet;

use super::master::Master;
use super::setting::{Client, MIB, key};

#[tokio::test]
async fn scattered_bytes_are_got_as_they_were_put_by_others_and_by_their_owner() {
    let master = Master::start().await;
    let (owner, _lent) = Client::lending(&master, "a", 8 * MIB).await;
    let other = Client::start(&master, "b").await;
    // Three pieces, out of order in memory.
    let whole = other.fill(0, 300_000, 7);
    let pieces = [(0, 100_000), (100_000, 4096), (104_096, 195_904)];
    let places = [2 * MIB, MIB, 3 * MIB];
    let mut spans = Vec::new();
    for ((at, length), place) in pieces.into_iter().zip(places) {
        let mut bytes = vec![0; usize::try_from(length).unwrap()];
        other.memory.read_at(at, &mut bytes).unwrap();
        other.memory.write_at(place, &bytes).unwrap();
        spans.push(other.span(place, length));
    }
    assert_eq!(whole.length(), 300_000);
    let stored = other.store.put(key("k"), spans).await.unwrap();
    assert_eq!(stored, Stored::New { replicas: 1, is_recorded: true });
    for client in [&owner, &other] {
        client.memory.write_at(0, &vec![0; 300_000]).unwrap();
        let into = [client.span(0, 1), client.span(1, 200_000), client.span(200_001, 3 * MIB)];
        assert_eq!(client.store.get(key("k"), into).await.unwrap(), 300_000);
        assert!(client.has(0, 300_000, 7));
        assert_eq!(client.store.size(key("k")).await.unwrap(), 300_000);
        assert!(client.store.exists(key("k")).await.unwrap());
    }
}

#[tokio::test]
async fn what_is_there_or_being_written_is_left_as_it_is_and_that_is_no_error() {
    let master = Master::start().await;
    let (client, _lent) = Client::lending(&master, "a", 8 * MIB).await;
    client.store.put(key("k"), [client.fill(0, 1000, 1)]).await.unwrap();
    let again = client.store.put(key("k"), [client.fill(0, 1000, 2)]).await.unwrap();
    assert_eq!(again, Stored::Existed);
    master.conduct(|conduct| conduct.refusals = VecDeque::from([Outcome::BeingWritten]));
    let busy = client.store.put(key("l"), [client.span(0, 1000)]).await.unwrap();
    assert_eq!(busy, Stored::BeingWritten);
    client.store.get(key("k"), [client.span(0, 1000)]).await.unwrap();
    assert!(client.has(0, 1000, 1));
}

#[tokio::test]
async fn each_key_of_a_batch_ends_by_itself() {
    let master = Master::start().await;
    let (client, _lent) = Client::lending(&master, "a", 8 * MIB).await;
    let puts = vec![
        Put::new(key("a"), [client.fill(0, 1000, 1)]),
        Put::new(key("empty"), []),
        Put::new(key("b"), [client.fill(1000, 70_000, 2)]),
    ];
    let stored = client.store.put_all(puts, &PutOptions::default()).await;
    assert!(matches!(stored[0], Ok(Stored::New { .. })), "{stored:?}");
    assert!(matches!(stored[1], Err(Error::Empty)), "{stored:?}");
    assert!(matches!(stored[2], Ok(Stored::New { .. })), "{stored:?}");
    let gets = vec![
        Get::new(key("b"), [client.span(MIB, 70_000)]),
        Get::new(key("absent"), [client.span(0, 10)]),
        Get::new(key("a"), [client.span(2 * MIB, 999)]),
        Get::new(key("b"), [client.span(3 * MIB, 70_000)]),
    ];
    let got = client.store.get_all(gets, GetOptions::default()).await;
    assert_eq!(*got[0].as_ref().unwrap(), 70_000);
    assert!(matches!(got[1], Err(Error::Outcome(Outcome::NotFound))), "{got:?}");
    assert!(matches!(got[2], Err(Error::TooSmall { length: 1000, room: 999 })), "{got:?}");
    assert_eq!(*got[3].as_ref().unwrap(), 70_000);
    assert!(client.has(MIB, 70_000, 2) && client.has(3 * MIB, 70_000, 2));
    let found = client.store.exist(vec![key("a"), key("absent"), key("b")]).await;
    let found: Vec<bool> = found.into_iter().map(Result::unwrap).collect();
    assert_eq!(found, [true, false, true]);
}

#[tokio::test]
async fn a_full_pool_is_said_and_a_master_that_is_not_ready_is_asked_again_once() {
    let master = Master::start().await;
    let (client, _lent) = Client::lending(&master, "a", 8 * MIB).await;
    // It passes: three are refused, and taken when they are asked for again.
    master.conduct(|conduct| conduct.refusals = VecDeque::from(vec![Outcome::Recovering; 3]));
    let puts = |name: &str| -> Vec<Put> {
        (0..3).map(|i| Put::new(key(&format!("{name}{i}")), [client.span(0, 100)])).collect()
    };
    let stored = client.store.put_all(puts("passes"), &PutOptions::default()).await;
    assert!(stored.iter().all(Result::is_ok), "{stored:?}");
    // It does not.
    master.conduct(|conduct| conduct.refusals = VecDeque::from(vec![Outcome::NotJoined; 6]));
    let stored = client.store.put_all(puts("unready"), &PutOptions::default()).await;
    for outcome in stored {
        let error = outcome.unwrap_err();
        assert!(error.is_retryable() && !error.is_backpressure(), "{error}");
    }
    assert!(master.state.lock().conduct.refusals.is_empty(), "asked once more, and only once");
    // Room is what the master waits for: it is asked for at once, then with the wait, and no more.
    master.conduct(|conduct| conduct.refusals = VecDeque::from(vec![Outcome::NoSpace; 6]));
    let began = std::time::Instant::now();
    let stored = client.store.put_all(puts("stays"), &PutOptions::default()).await;
    let took = began.elapsed();
    for outcome in stored {
        let error = outcome.unwrap_err();
        assert!(error.is_backpressure() && error.is_retryable(), "{error}");
        assert_eq!(error.mooncake_code(), -200);
    }
    let refusals = &master.state.lock().conduct.refusals;
    assert!(refusals.is_empty() && took < Duration::from_secs(1), "waited for {took:?}");
}

#[tokio::test]
async fn what_finds_room_keeps_it_while_others_of_its_batch_are_asked_for_again() {
    let master = Master::start().await;
    let (client, _lent) = Client::lending(&master, "a", 8 * MIB).await;
    master.conduct(|conduct| {
        conduct.refusals = VecDeque::from([Outcome::NoSpace]);
    });
    let puts = (0..3).map(|i| Put::new(key(&format!("k{i}")), [client.fill(i * 100, 100, 5)]));
    let stored = client.store.put_all(puts.collect(), &PutOptions::default()).await;
    assert!(stored.iter().all(|stored| matches!(stored, Ok(Stored::New { .. }))), "{stored:?}");
    for i in 0..3 {
        client.store.get(key(&format!("k{i}")), [client.span(MIB, 100)]).await.unwrap();
        assert!(client.has(MIB, 100, 5));
    }
}

#[tokio::test]
async fn each_of_many_calls_at_the_same_time_has_its_own_answer() {
    let master = Master::start().await;
    let (client, _lent) = Client::lending(&master, "a", 8 * MIB).await;
    let mut putting = JoinSet::new();
    for i in 0..40_u64 {
        let length = 100 + i;
        let (store, span) = (client.store.clone(), client.fill(i * 1024, length, 9));
        // Every second key is another's, too: one of the two puts it.
        putting.spawn(async move { store.put(key(&format!("k{}", i / 2 * 2)), [span]).await });
    }
    let mut new = 0;
    while let Some(stored) = putting.join_next().await {
        new += usize::from(matches!(stored.unwrap().unwrap(), Stored::New { .. }));
    }
    assert_eq!(new, 20);
    let mut getting = JoinSet::new();
    for i in 0..40_u64 {
        let (store, span) = (client.store.clone(), client.span(MIB + i * 1024, 1024));
        getting.spawn(async move {
            let there = store.exists(key(&format!("k{i}"))).await.unwrap();
            (i, there, store.get(key(&format!("k{i}")), [span]).await)
        });
    }
    while let Some(got) = getting.join_next().await {
        let (i, there, got) = got.unwrap();
        assert_eq!(there, i % 2 == 0);
        match got {
            Ok(length) => {
                assert!(i % 2 == 0 && (length == 100 + i || length == 101 + i), "{i}: {length}");
                assert!(client.has(MIB + i * 1024, length, 9), "{i}");
            }
            Err(error) => {
                assert!(
                    i % 2 == 1 && matches!(error, Error::Outcome(Outcome::NotFound)),
                    "{error}"
                );
            }
        }
    }
}

#[tokio::test]
async fn what_no_master_takes_is_refused_without_asking_one() {
    let master = Master::start().await;
    let client = Client::start(&master, "a").await;
    let put = |options: PutOptions| {
        let put = Put::new(key("k"), [client.span(0, 100)]);
        let client = &client;
        async move { client.store.put_all(vec![put], &options).await.remove(0).unwrap_err() }
    };
    let many = PutOptions { replicas: 17, ..PutOptions::default() };
    assert!(matches!(put(many).await, Error::TooMany { found: 17, limit: 16, .. }));
    let preferred = vec![String::new(); 17];
    let many = PutOptions { preferred, ..PutOptions::default() };
    assert!(matches!(put(many).await, Error::TooMany { found: 17, .. }));
    let preferred = vec!["n".repeat(257)];
    let long = PutOptions { preferred, ..PutOptions::default() };
    assert!(matches!(put(long).await, Error::NameTooLong { found: 257, .. }));
    let puts = vec![Put::new(key("k"), [client.span(0, 100)]).group("g".repeat(300))];
    let error = client.store.put_all(puts, &PutOptions::default()).await.remove(0).unwrap_err();
    assert!(matches!(error, Error::NameTooLong { found: 300, .. }));
    assert!(!error.is_retryable() && error.mooncake_code() == -600);
}

#[tokio::test]
async fn a_put_that_cannot_be_ended_is_given_back_and_an_error() {
    let master = Master::start().await;
    let (client, _lent) = Client::lending(&master, "a", 8 * MIB).await;
    master.conduct(|conduct| conduct.ends = VecDeque::from([Outcome::NotReserved]));
    let error = client.store.put(key("k"), [client.fill(0, 1000, 1)]).await.unwrap_err();
    assert!(matches!(error, Error::Outcome(Outcome::NotReserved)), "{error}");
}

#[tokio::test]
async fn a_put_whose_reservation_is_over_before_it_is_written_writes_nothing() {
    let master = Master::start().await;
    let (client, _lent) = Client::lending(&master, "a", 8 * MIB).await;
    master.conduct(|conduct| conduct.reservation = Duration::ZERO);
    let error = client.store.put(key("k"), [client.fill(0, 1000, 1)]).await.unwrap_err();
    assert!(matches!(error, Error::LeaseOver), "{error}");
    assert_eq!(master.state.lock().revoked, [(key("k"), true)]);
    assert!(!client.store.exists(key("k")).await.unwrap());
}

#[tokio::test]
async fn bytes_that_arrive_after_their_lease_do_not_count() {
    let master = Master::start().await;
    let (client, _lent) = Client::lending(&master, "a", 8 * MIB).await;
    client.store.put(key("k"), [client.fill(0, 1000, 1)]).await.unwrap();
    master.conduct(|conduct| conduct.read_lease = Duration::ZERO);
    let error = client.store.get(key("k"), [client.span(0, 1000)]).await.unwrap_err();
    assert!(matches!(error, Error::LeaseOver), "{error}");
    assert_eq!(error.mooncake_code(), -707);
}

#[tokio::test]
async fn bytes_that_were_changed_in_place_do_not_pass_their_checksum() {
    let master = Master::start().await;
    let (owner, lent) = Client::lending(&master, "a", 8 * MIB).await;
    let client = Client::start(&master, "b").await;
    let with_checksum = PutOptions { checksum: true, ..PutOptions::default() };
    let puts = ["sound", "rotten"].map(|name| Put::new(key(name), [client.fill(0, 100_000, 3)]));
    let stored = client.store.put_all(puts.to_vec(), &with_checksum).await;
    assert!(stored.iter().all(Result::is_ok), "{stored:?}");
    // The second begins where the first ends. Somebody writes there by mistake.
    let segment = client.store.segments().await.unwrap().remove(0).placed;
    assert_eq!(segment.lent.segment, lent.id());
    let peer = client.store.engine().connect(segment.lent.address.as_str()).await.unwrap();
    let there = peer.regions().into_iter().find(|region| region.id() == segment.lent.region);
    let byte = there.unwrap().span(150_000, 1).unwrap();
    client.memory.write_at(0, &[0xff]).unwrap();
    peer.write(client.span(0, 1), byte).await.unwrap();
    let verify = GetOptions { verify: true };
    for reader in [&owner, &client] {
        let gets = [("sound", 0), ("rotten", MIB)];
        let gets = gets.map(|(name, at)| Get::new(key(name), [reader.span(at, MIB)]));
        let got = reader.store.get_all(gets.to_vec(), verify).await;
        assert!(got[0].is_ok(), "{got:?}");
        assert!(matches!(got[1], Err(Error::Checksum { .. })), "{got:?}");
    }
}

#[tokio::test]
async fn a_replica_that_cannot_be_read_is_no_error_where_another_can() {
    let master = Master::start().await;
    let (first, _) = Client::lending(&master, "a", 8 * MIB).await;
    let (second, _) = Client::lending(&master, "b", 8 * MIB).await;
    let reader = Client::start(&master, "a").await;
    let twice = PutOptions { replicas: 2, ..PutOptions::default() };
    let puts = vec![Put::new(key("k"), [reader.fill(0, 100_000, 5)])];
    let stored = reader.store.put_all(puts, &twice).await;
    assert!(matches!(stored[0], Ok(Stored::New { replicas: 2, .. })), "{stored:?}");
    // The near one goes, and the master has not noticed.
    first.store.engine().shutdown(Duration::ZERO);
    reader.memory.write_at(0, &vec![0; 100_000]).unwrap();
    assert_eq!(reader.store.get(key("k"), [reader.span(0, 100_000)]).await.unwrap(), 100_000);
    assert!(reader.has(0, 100_000, 5));
    // With the far one gone, too, there is an error, in time.
    second.store.engine().shutdown(Duration::ZERO);
    reader.store.get(key("k"), [reader.span(0, 100_000)]).await.unwrap_err();
}

#[tokio::test]
async fn a_copy_whose_owner_is_gone_is_left_out_and_without_any_copy_the_put_is_given_back() {
    let master = Master::start().await;
    let (first, _) = Client::lending(&master, "a", 8 * MIB).await;
    let (_second, _) = Client::lending(&master, "b", 8 * MIB).await;
    let client = Client::start(&master, "c").await;
    first.store.engine().shutdown(Duration::ZERO);
    let options = |replicas, preferred: &str| PutOptions {
        replicas,
        preferred: vec![preferred.into()],
        ..PutOptions::default()
    };
    let puts = vec![Put::new(key("both"), [client.fill(0, 1000, 1)])];
    let stored = client.store.put_all(puts, &options(2, "a")).await;
    assert!(matches!(stored[0], Ok(Stored::New { replicas: 1, .. })), "{stored:?}");
    let puts = vec![Put::new(key("lost"), [client.fill(0, 1000, 1)])];
    let stored = client.store.put_all(puts, &options(1, "a")).await;
    assert!(stored[0].as_ref().is_err_and(Error::is_retryable), "{stored:?}");
    assert_eq!(master.state.lock().revoked, [(key("lost"), true)]);
}

#[tokio::test]
async fn removed_objects_are_gone_and_tenants_do_not_see_each_other() {
    let master = Master::start().await;
    let (client, _lent) = Client::lending(&master, "a", 8 * MIB).await;
    let other = client.store.for_tenant(Tenant::new("other").unwrap());
    for store in [&client.store, &other] {
        for name in ["x/1", "x/2", "y/1"] {
            let stored = store.put(key(name), [client.span(0, 100)]).await.unwrap();
            assert!(matches!(stored, Stored::New { .. }));
        }
    }
    let removed = client.store.remove(vec![key("x/1"), key("none")], false).await;
    assert!(removed[0].is_ok());
    assert!(matches!(removed[1], Err(Error::Outcome(Outcome::NotFound))));
    let answer = client.store.remove_matching(Matching::Prefix("x/".into()), false).await.unwrap();
    assert_eq!(answer.removed, 1);
    let answer = client.store.remove_matching(Matching::All, true).await.unwrap();
    assert_eq!(answer.removed, 1);
    for name in ["x/1", "x/2", "y/1"] {
        assert!(!client.store.exists(key(name)).await.unwrap());
        assert!(other.exists(key(name)).await.unwrap());
    }
}

#[tokio::test]
async fn a_put_that_is_dropped_gives_back_what_it_reserved() {
    let master = Master::start().await;
    let (client, _lent) = Client::lending(&master, "a", 8 * MIB).await;
    let put = client.store.put(key("k"), [client.fill(0, MIB, 1)]);
    // Polled once: the request goes out, and whoever waited goes.
    let _ = tokio::time::timeout(Duration::ZERO, put).await;
    super::setting::eventually("the key is free again", || {
        !master.state.lock().is_reserved(&key("k"))
    })
    .await;
}
