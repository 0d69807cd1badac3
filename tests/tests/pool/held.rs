//! Who lends, puts or reads is gone while bytes are under way: held back by a relay, at an exact
//! place of a transfer.

use std::time::{Duration, Instant};

use kvferry_engine::Span;
use kvferry_store::{Error, Outcome, Put, PutOptions, Stored};
use kvferry_tests::pool::load::{read_object, write_object};
use kvferry_tests::pool::program::{Master, Program};
use kvferry_tests::pool::{Client, TCP, key};
use kvferry_tests::proxy::Proxy;
use rustix::process::Signal;

use super::{HASTE, replicas};

/// How long an object is: far more than is under way at a time.
const LONG: u64 = 12 << 20;

/// How much of it goes before the rest is held back.
const HELD_AFTER: usize = 3 << 20;

/// One that has not been heard for so long is not waited for: connections break, leases end, and the
/// rest is slack.
const SOON: Duration = Duration::from_secs(25);

fn all(client: &Client) -> Vec<Span> {
    vec![client.memory.span(0, LONG).unwrap()]
}

async fn client(master: &Master, host: &str) -> Client {
    Client::start(&master.address, host, LONG, TCP).await
}

/// Puts a short object into this lender's segment, so that there are connections to be held.
async fn acquaint(client: &Client, lender: &str) {
    let options = PutOptions { preferred: vec![lender.into()], ..PutOptions::default() };
    let put = Put::new(key(0), [client.memory.span(0, 100_000).unwrap()]);
    client.store.put_all(vec![put], &options).await.remove(0).unwrap();
    client.store.get(key(0), [client.memory.span(0, 100_000).unwrap()]).await.unwrap();
    client.store.remove(vec![key(0)], true).await.remove(0).unwrap();
}

/// Puts the object until it is in the pool.
async fn put_at_last(client: &Client) {
    let began = Instant::now();
    loop {
        match client.store.put(key(1), all(client)).await {
            Ok(Stored::New { .. }) => return,
            Ok(Stored::BeingWritten) => {}
            Err(error) if error.is_retryable() => {}
            other => panic!("{other:?}"),
        }
        assert!(began.elapsed() < SOON, "there is no room");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lender_killed_in_the_middle_of_a_put_costs_that_copy_and_the_put_where_it_was_the_only()
{
    for copies in [1, 2] {
        let master = Master::start(HASTE);
        let proxy = Proxy::start();
        let dying = master.lender_behind(&proxy, "a", "32MiB", &[]);
        let _staying = master.lender("b", "32MiB", &[]);
        let client = client(&master, "c").await;
        acquaint(&client, "a").await;
        write_object(&client.memory, 0, LONG, 1, 1);
        let options = PutOptions { preferred: vec!["a".into()], ..replicas(copies) };
        proxy.hold_after(HELD_AFTER);
        let began = Instant::now();
        let put = client.store.put_all(vec![Put::new(key(1), all(&client))], &options);
        let (stored, ()) = tokio::join!(put, async {
            tokio::task::block_in_place(|| proxy.await_held());
            dying.kill();
            proxy.cut();
        });
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        match (&stored[0], copies) {
            (Ok(Stored::New { replicas: 1, .. }), 2) => {
                client.memory.write_at(0, &vec![0; LONG.try_into().unwrap()]).unwrap();
                assert_eq!(client.store.get(key(1), all(&client)).await.unwrap(), LONG);
                assert_eq!(read_object(&client.memory, 0, LONG, 1), 1);
            }
            (Err(error), 1) => {
                assert!(error.is_retryable(), "{error}");
                assert!(!client.store.exists(key(1)).await.unwrap());
                // It can be put again: where the other lender is drawn at once, else when the
                // master knows that this one is gone.
                put_at_last(&client).await;
            }
            (other, copies) => panic!("with {copies}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lender_killed_in_the_middle_of_a_get_is_replaced_by_another_or_the_get_fails() {
    for copies in [1, 2] {
        let master = Master::start(HASTE);
        let proxy = Proxy::start();
        let dying = master.lender_behind(&proxy, "a", "32MiB", &[]);
        let _staying = master.lender("b", "32MiB", &[]);
        // On the same host as the one that dies, by its name: it is read first.
        let client = client(&master, "a").await;
        acquaint(&client, "a").await;
        write_object(&client.memory, 0, LONG, 1, 1);
        let options = PutOptions { preferred: vec!["a".into()], ..replicas(copies) };
        let put = Put::new(key(1), all(&client));
        client.store.put_all(vec![put], &options).await.remove(0).unwrap();
        client.memory.write_at(0, &vec![0; LONG.try_into().unwrap()]).unwrap();
        proxy.hold_replies_after(HELD_AFTER);
        let began = Instant::now();
        let (got, ()) = tokio::join!(client.store.get(key(1), all(&client)), async {
            tokio::task::block_in_place(|| proxy.await_held());
            dying.kill();
            proxy.cut();
        });
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        match (got, copies) {
            (Ok(LONG), 2) => assert_eq!(read_object(&client.memory, 0, LONG, 1), 1),
            (Err(error), 1) => {
                let is_gone = matches!(error, Error::Outcome(Outcome::NotFound));
                assert!(error.is_retryable() || is_gone, "{error}");
            }
            (other, copies) => panic!("with {copies}: {other:?}"),
        }
    }
}

/// What becomes of bytes that a client had under way when it was killed, or stopped for longer than
/// they could be written.
async fn nothing_lands_late(signal: Signal) {
    let master = Master::start(HASTE);
    let proxy = Proxy::start();
    // Another object fits only where the first was to be.
    let _lender = master.lender_behind(&proxy, "a", "16MiB", &[]);
    proxy.hold_new_after(HELD_AFTER);
    let (seed, length) = ("7", LONG.to_string());
    let mut gone = Program::start(["put", &master.address, "1", seed, &length]);
    assert_eq!(gone.line(), "putting");
    tokio::task::block_in_place(|| proxy.await_held());
    gone.signal(signal);
    proxy.hold_none_new();

    let client = client(&master, "b").await;
    assert!(!client.store.exists(key(1)).await.unwrap(), "half of it is found");
    write_object(&client.memory, 0, LONG, 1, 8);
    put_at_last(&client).await;
    // What the first had sent arrives now, and what it still has.
    proxy.release();
    if signal == Signal::STOP {
        gone.signal(Signal::CONT);
        let said = gone.line();
        assert!(said.starts_with("failed: ") || said == "Existed", "{said}");
    }
    for _ in 0..20 {
        client.memory.write_at(0, &vec![0; LONG.try_into().unwrap()]).unwrap();
        assert_eq!(client.store.get(key(1), all(&client)).await.unwrap(), LONG);
        assert_eq!(read_object(&client.memory, 0, LONG, 1), 8);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_of_a_client_that_is_killed_never_land_in_what_others_put_there_since() {
    nothing_lands_late(Signal::KILL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_of_a_client_that_stops_never_land_in_what_others_put_there_since() {
    nothing_lands_late(Signal::STOP).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_is_held_for_longer_than_its_lease_says_so_and_is_never_of_two_objects() {
    let master = Master::start(&["--default-kv-lease-ttl=500"]);
    let proxy = Proxy::start();
    let _lender = master.lender_behind(&proxy, "a", "16MiB", &[]);
    let (reader, writer) = (client(&master, "b").await, master.client("c", LONG).await);
    acquaint(&reader, "a").await;
    write_object(&writer.memory, 0, LONG, 1, 1);
    writer.store.put(key(1), all(&writer)).await.unwrap();
    proxy.hold_replies_after(HELD_AFTER);
    let replacing = async {
        tokio::task::block_in_place(|| proxy.await_held());
        // Taken away while it is read: its room is not used again before the reader's lease is over.
        writer.store.remove(vec![key(1)], true).await.remove(0).unwrap();
        write_object(&writer.memory, 0, LONG, 1, 2);
        put_at_last(&writer).await;
        proxy.release();
    };
    let began = Instant::now();
    let (got, ()) = tokio::join!(reader.store.get(key(1), all(&reader)), replacing);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    match got {
        // It was looked for again, and the other was there.
        Ok(found) => assert_eq!(read_object(&reader.memory, 0, found, 1), 2),
        Err(error) => assert!(
            error.is_retryable() || matches!(error, Error::Outcome(Outcome::NotFound)),
            "{error}"
        ),
    }
}
