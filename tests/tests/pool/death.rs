//! The master, who lends, or who puts, dies or stops, under load.

use std::time::{Duration, Instant};

use kvferry_proto::pool::SegmentState;
use kvferry_store::{Error, Get, GetOptions, Outcome, Put, PutOptions, Stored};
use kvferry_tests::pool::load::{Load, read_object, write_object};
use kvferry_tests::pool::program::{Master, Program};
use kvferry_tests::pool::{Client, key};
use rustix::process::Signal;

use super::{HASTE, replicas, until_segment};

/// Objects that are neither removed nor evicted.
const KEPT: std::ops::Range<u64> = 1000..1020;

const KEPT_BYTES: u64 = 40_000;

/// Puts objects that stay, and waits until their owners have them in their inventories.
async fn keep(client: &Client) {
    let options = PutOptions { is_pinned: true, ..PutOptions::default() };
    for number in KEPT {
        write_object(&client.memory, 0, KEPT_BYTES, number, number);
        let put = Put::new(key(number), [client.memory.span(0, KEPT_BYTES).unwrap()]);
        let stored = client.store.put_all(vec![put], &options).await.remove(0);
        assert!(matches!(stored, Ok(Stored::New { is_recorded: true, .. })), "{stored:?}");
    }
}

/// Gets them all. None is ever said to be absent.
async fn assert_kept(client: &Client) {
    let began = Instant::now();
    for number in KEPT {
        loop {
            let get = Get::new(key(number), [client.memory.span(0, KEPT_BYTES).unwrap()]);
            let got = client.store.get_all(vec![get], GetOptions::default()).await.remove(0);
            match got {
                Ok(found) => {
                    assert_eq!(found, KEPT_BYTES);
                    assert_eq!(read_object(&client.memory, 0, found, number), number);
                    break;
                }
                Err(Error::Outcome(Outcome::NotFound)) => panic!("object {number} is lost"),
                Err(error) => {
                    assert!(error.is_retryable(), "{number}: {error}");
                    assert!(began.elapsed() < Duration::from_secs(20), "{number}: {error}");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn under_load_a_master_is_killed_twice_and_no_object_is_lost_or_wrong() {
    let mut master = Master::start(HASTE);
    let _lenders = ["a", "b"].map(|name| master.lender(name, "24MiB", &[]));
    let client = master.client("c", KEPT_BYTES).await;
    keep(&client).await;
    let load = Load::start(&master, &["a", "b", "c"], 150, replicas(1)).await;
    for _ in 0..2 {
        load.until_put(100).await;
        master = master.reborn(HASTE);
        assert_kept(&client).await;
        // There is room as soon as it knows what there is: nobody waits until writes that the former
        // allowed are over.
        load.until_put(50).await;
        load.until_got(200).await;
    }
    load.end().await;
    assert_kept(&client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_load_a_lender_is_killed_and_work_goes_on_without_a_wrong_byte() {
    for copies in [1, 2] {
        let master = Master::start(HASTE);
        let dying = master.lender("a", "24MiB", &[]);
        let _staying = master.lender("b", "24MiB", &[]);
        let load = Load::start(&master, &["a", "b", "c"], 150, replicas(copies)).await;
        load.until_got(200).await;
        dying.kill();
        load.until_put(50).await;
        load.until_got(200).await;
        // Another of its name is somebody else.
        let _again = master.lender("a", "24MiB", &[]);
        load.until_put(50).await;
        load.until_got(200).await;
        load.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn under_load_a_lender_that_stops_for_longer_than_its_lease_brings_nothing_stale_back() {
    for copies in [1, 2] {
        let master = Master::start(HASTE);
        let stopping = master.lender("a", "24MiB", &[]);
        let _staying = master.lender("b", "24MiB", &[]);
        let client = master.client("c", 4096).await;
        let load = Load::start(&master, &["a", "b", "c"], 100, replicas(copies)).await;
        load.until_got(200).await;
        stopping.signal(Signal::STOP);
        let is = |state| move |segment: Option<&_>| is_in(segment, state);
        until_segment(&client.store, "a", "expired", is(SegmentState::Expired)).await;
        // What is hidden is put again, elsewhere.
        load.until_put(100).await;
        stopping.signal(Signal::CONT);
        until_segment(&client.store, "a", "alive", is(SegmentState::Alive)).await;
        load.until_put(50).await;
        load.until_got(300).await;
        load.end().await;
    }
}

fn is_in(segment: Option<&kvferry_store::SegmentStatus>, state: SegmentState) -> bool {
    segment.is_some_and(|segment| segment.state == state)
}

#[tokio::test(flavor = "multi_thread")]
async fn under_load_a_master_that_stops_for_longer_than_all_leases_does_no_harm_when_it_wakes() {
    let master = Master::start(HASTE);
    let _lenders = ["a", "b"].map(|name| master.lender(name, "24MiB", &[]));
    let client = master.client("c", KEPT_BYTES).await;
    keep(&client).await;
    let load = Load::start(&master, &["a", "b", "c"], 150, replicas(1)).await;
    load.until_got(200).await;
    master.program.signal(Signal::STOP);
    tokio::time::sleep(Duration::from_secs(4)).await;
    master.program.signal(Signal::CONT);
    assert_kept(&client).await;
    load.until_put(50).await;
    load.until_got(300).await;
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_load_clients_that_stop_for_longer_than_what_they_reserved_do_no_harm_when_they_wake()
{
    let master = Master::start(HASTE);
    // There is room for few objects, so that it is used again at once.
    let _lenders = ["a", "b"].map(|name| master.lender(name, "6MiB", &[]));
    let client = |number: &str| {
        let mut client = Program::start(["client", &master.address, "elsewhere", number, "150"]);
        assert_eq!(client.line(), "working");
        client
    };
    let mut clients = ["8", "9"].map(client);
    let load = Load::start(&master, &["a", "b"], 150, replicas(1)).await;
    load.until_put(100).await;
    for stopping in &clients {
        stopping.signal(Signal::STOP);
    }
    // What they had reserved is given to others after eleven seconds.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(12) {
        load.until_put(20).await;
    }
    for stopped in &clients {
        stopped.signal(Signal::CONT);
    }
    load.until_got(200).await;
    load.end().await;
    for client in &mut clients {
        client.close();
        let tally = client.line();
        assert!(client.wait().success(), "a client has found something wrong: {tally}");
    }
}
