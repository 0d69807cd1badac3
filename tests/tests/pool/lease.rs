//! Leases that end, and objects that are evicted while they are read (Mooncake#4239, #849).

use std::time::Duration;

use kvferry_store::{Error, Stored};
use kvferry_tests::pool::key;
use kvferry_tests::pool::load::{Load, read_object, write_object};
use kvferry_tests::pool::program::Master;

use super::replicas;

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_got_long_after_its_lease_whole() {
    let master = Master::start(&["--default-kv-lease-ttl=500"]);
    let _lender = master.lender("a", "16MiB", &[]);
    let client = master.client("b", 4 << 20).await;
    let span = |length| client.memory.span(0, length).unwrap();
    write_object(&client.memory, 0, 100_000, 0, 1);
    client.store.put(key(0), [span(100_000)]).await.unwrap();
    assert!(client.store.exists(key(0)).await.unwrap());
    client.store.get(key(0), [span(100_000)]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(800)).await;
    // Nobody needed its room.
    client.memory.write_at(0, &vec![0; 100_000]).unwrap();
    assert_eq!(client.store.get(key(0), [span(100_000)]).await.unwrap(), 100_000);
    assert_eq!(read_object(&client.memory, 0, 100_000, 0), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_of_a_pool_that_evicts_all_the_time_are_whole_or_missing() {
    // Far less room than objects, and leases of a moment: every put evicts what was just read.
    let master = Master::start(&[
        "--default-kv-lease-ttl=100",
        "--eviction-high-watermark-ratio=0.5",
        "--eviction-ratio=0.3",
    ]);
    let _lenders = ["a", "b"].map(|name| master.lender(name, "4MiB", &[]));
    let load = Load::start(&master, &["a", "b", "c", "c"], 300, replicas(1)).await;
    load.until_put(500).await;
    load.until_got(500).await;
    let tally = load.end().await;
    assert!(tally.missed() > 0, "nothing was evicted: {tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_being_read_is_there_to_be_got_however_full_the_pool() {
    let master = Master::start(&["--default-kv-lease-ttl=60000"]);
    let _lender = master.lender("a", "8MiB", &[]);
    let client = master.client("b", 1 << 20).await;
    let span = client.memory.span(0, 1 << 20).unwrap();
    client.store.put(key(0), [span.clone()]).await.unwrap();
    client.store.get(key(0), [span.clone()]).await.unwrap();
    let mut stored = 0;
    for number in 1..30 {
        match client.store.put(key(number), [span.clone()]).await {
            Ok(Stored::New { .. }) => stored += 1,
            Ok(other) => panic!("{other:?}"),
            Err(Error::Outcome(outcome)) if outcome.is_backpressure() => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(stored > 6, "others gave way: {stored}");
    assert_eq!(client.store.get(key(0), [span]).await.unwrap(), 1 << 20);
}
