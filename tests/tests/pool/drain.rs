//! Who lends is told to end (kserve#5485, Mooncake#3551).

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvferry_proto::pool::SegmentState;
use kvferry_store::{Error, Outcome};
use kvferry_tests::pool::load::{Load, read_object, write_object};
use kvferry_tests::pool::program::Master;
use kvferry_tests::pool::{Client, TCP, key};
use kvferry_tests::proxy::Proxy;
use rustix::process::Signal;

use super::{HASTE, replicas, until_segment};

/// How many reads are under way.
const READS: u64 = 50;

const READ_BYTES: u64 = 100_000;

#[tokio::test(flavor = "multi_thread")]
async fn under_load_a_lender_that_is_told_to_end_lets_readers_end_and_says_that_it_did() {
    // What is being written when it is told to end is waited for, for as long as room is reserved.
    let master = Master::start(HASTE);
    let mut leaving = master.lender("a", "24MiB", &["--grace", "10"]);
    let _staying = master.lender("b", "24MiB", &[]);
    let load = Load::start(&master, &["a", "b", "c"], 100, replicas(2)).await;
    load.until_got(200).await;
    leaving.signal(Signal::TERM);
    assert_eq!(leaving.line(), "ended by SIGTERM: all who read were done");
    assert_eq!(leaving.wait().code(), Some(0));
    load.until_put(10).await;
    load.until_got(200).await;
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_reads_that_are_under_way_when_a_lender_is_told_to_end_get_every_byte() {
    let master = Master::start(&["--default-kv-lease-ttl=6000"]);
    let proxy = Proxy::start();
    let mut leaving = master.lender_behind(&proxy, "a", "16MiB", &["--grace", "20"]);
    let client = Client::start(&master.address, "b", READS * READ_BYTES, TCP).await;
    let client = Arc::new(client);
    let span = |slot: u64| client.memory.span(slot * READ_BYTES, READ_BYTES).unwrap();
    for number in 0..READS {
        write_object(&client.memory, 0, READ_BYTES, number, number + 1);
        client.store.put(key(number), [span(0)]).await.unwrap();
    }
    client.store.get(key(0), [span(0)]).await.unwrap();
    proxy.hold_replies_after(1000);
    let reads = (0..READS).map(|number| {
        let (client, into) = (client.clone(), span(number));
        tokio::spawn(async move { client.store.get(key(number), [into]).await })
    });
    let reads: Vec<_> = reads.collect();
    tokio::task::block_in_place(|| proxy.await_held());
    let began = Instant::now();
    while client.store.engine().status().open_transfers < usize::try_from(READS).unwrap() {
        assert!(began.elapsed() < Duration::from_secs(10), "they do not begin");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    leaving.signal(Signal::TERM);
    let is_leaving = |segment: Option<&kvferry_store::SegmentStatus>| {
        segment.is_some_and(|segment| segment.state == SegmentState::Leaving)
    };
    until_segment(&client.store, "a", "leaving", is_leaving).await;
    let error = client.store.put(key(READS), [span(0)]).await.unwrap_err();
    assert!(error.is_backpressure() || !error.is_retryable(), "it is placed nowhere: {error}");
    proxy.release();
    for (number, read) in (0..).zip(reads) {
        assert_eq!(read.await.unwrap().unwrap(), READ_BYTES);
        let found = read_object(&client.memory, number * READ_BYTES, READ_BYTES, number);
        assert_eq!(found, number + 1);
    }
    assert_eq!(leaving.line(), "ended by SIGTERM: all who read were done");
    assert_eq!(leaving.wait().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lender_whose_readers_take_too_long_cuts_them_off_and_says_so() {
    let master = Master::start(&["--default-kv-lease-ttl=60000"]);
    let mut leaving = master.lender("a", "8MiB", &["--grace", "0.2"]);
    let client = master.client("b", 4096).await;
    let span = client.memory.span(0, 4096).unwrap();
    client.store.put(key(0), [span.clone()]).await.unwrap();
    client.store.get(key(0), [span.clone()]).await.unwrap();
    let began = Instant::now();
    leaving.signal(Signal::TERM);
    let said = leaving.line();
    assert!(said.starts_with("ended by SIGTERM: readers had up to "), "{said}");
    assert_eq!(leaving.wait().code(), Some(1));
    assert!(began.elapsed() < Duration::from_secs(10));
    let error = client.store.get(key(0), [span]).await.unwrap_err();
    assert!(matches!(error, Error::Outcome(Outcome::NotFound)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_it_at_once() {
    let master = Master::start(&["--default-kv-lease-ttl=60000"]);
    let mut leaving = master.lender("a", "8MiB", &["--grace", "60"]);
    let client = master.client("b", 4096).await;
    let span = client.memory.span(0, 4096).unwrap();
    client.store.put(key(0), [span.clone()]).await.unwrap();
    client.store.get(key(0), [span.clone()]).await.unwrap();
    leaving.signal(Signal::TERM);
    // Nothing is placed in it once the first was heard.
    let mut number = 1;
    while client.store.put(key(number), [span.clone()]).await.is_ok() {
        number += 1;
    }
    leaving.signal(Signal::INT);
    assert_eq!(leaving.line(), "ended by SIGINT: at once, as asked twice");
    assert_eq!(leaving.wait().code(), Some(1));
}
