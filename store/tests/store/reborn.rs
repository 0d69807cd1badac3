//! A master that dies, and starts again with nothing.

use std::time::Duration;

use kvferry_store::{Error, Store};

use super::master::{Conduct, Master};
use super::setting::{Client, MIB, eventually, key};

#[tokio::test]
async fn a_master_that_starts_again_with_nothing_is_told_what_there_is() {
    let master = Master::start().await;
    master.conduct(|conduct| conduct.client_lease = Duration::from_millis(500));
    let (owner, lent) = Client::lending(&master, "a", 8 * MIB).await;
    let client = Client::start(&master, "b").await;
    for (name, seed) in [("k", 1), ("l", 2), ("gone", 3)] {
        client.store.put(key(name), [client.fill(0, 100_000, seed)]).await.unwrap();
    }
    client.store.remove(vec![key("gone")], false).await.remove(0).unwrap();
    eventually("the owner knows what it has", || owner.store.status().objects == 2).await;
    let address = master.kill();
    let error = client.store.get(key("k"), [client.span(0, MIB)]).await.unwrap_err();
    assert!(matches!(error, Error::Master { .. }) && error.is_retryable(), "{error}");

    let conduct = Conduct { client_lease: Duration::from_millis(500), ..Conduct::default() };
    let reborn = Master::start_at(address, 2, conduct).await;
    let store = &client.store;
    let mut mounted = false;
    for _ in 0..1000 {
        mounted = store.segments().await.is_ok_and(|all| all.len() == 1);
        if mounted {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(mounted, "the owner mounts its segment by itself");
    assert_eq!(store.segments().await.unwrap()[0].placed.lent.segment, lent.id());
    for (name, seed) in [("k", 1), ("l", 2)] {
        assert_eq!(store.get(key(name), [client.span(0, MIB)]).await.unwrap(), 100_000);
        assert!(client.has(0, 100_000, seed));
    }
    assert!(!store.exists(key("gone")).await.unwrap());
    // Both had heard of the first epoch.
    eventually("both have joined", || reborn.state.lock().epochs_told.len() >= 2).await;
    assert!(reborn.state.lock().epochs_told.iter().all(|epoch| *epoch >= 1));
}

#[tokio::test]
async fn a_client_that_was_forgotten_joins_again_by_itself() {
    let master = Master::start().await;
    master.conduct(|conduct| conduct.client_lease = Duration::from_millis(300));
    let (owner, _lent) = Client::lending(&master, "a", 8 * MIB).await;
    owner.store.put(key("k"), [owner.fill(0, 1000, 1)]).await.unwrap();
    eventually("the owner knows what it has", || owner.store.status().objects == 1).await;
    master.state.lock().forget_all();
    let is_back = || {
        let state = master.state.lock();
        state.has_object(&key("k")) && state.epochs_told.len() >= 2
    };
    eventually("the master is told again", is_back).await;
}

#[tokio::test]
async fn a_store_does_not_start_without_a_master_and_says_so_in_time() {
    let master = Master::start().await;
    let client = Client::start(&master, "a").await;
    let engine = client.store.engine().clone();
    let address = master.kill();
    let began = std::time::Instant::now();
    let builder = Store::builder(engine, address).patience(Duration::from_millis(300));
    let error = builder.start().await.unwrap_err();
    assert!(matches!(error, Error::Master { .. }), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5));
}
