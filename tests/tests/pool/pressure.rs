//! The pool is full (LMCache#1215, Mooncake#915).

use std::time::{Duration, Instant};

use kvferry_store::{Error, Get, GetOptions, Put, PutOptions, Stored};
use kvferry_tests::pool::key;
use kvferry_tests::pool::load::{read_object, write_object};
use kvferry_tests::pool::program::Master;

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_full_of_leased_objects_is_said_to_be_full_soon_and_takes_more_when_leases_end() {
    let master = Master::start(&["--default-kv-lease-ttl=3000"]);
    let _lender = master.lender("a", "8MiB", &[]);
    let client = master.client("b", 1 << 20).await;
    let span = client.memory.span(0, 1 << 20).unwrap();
    let put = |numbers: std::ops::Range<u64>| {
        let puts = numbers.map(|number| Put::new(key(number), [span.clone()])).collect();
        let client = &client;
        async move { client.store.put_all(puts, &PutOptions::default()).await }
    };
    let stored = put(0..7).await;
    assert!(stored.iter().all(Result::is_ok), "{stored:?}");
    // All of them are being read.
    let gets = (0..7).map(|number| Get::new(key(number), [span.clone()])).collect();
    let got = client.store.get_all(gets, GetOptions::default()).await;
    assert!(got.iter().all(Result::is_ok), "{got:?}");
    let began = Instant::now();
    let full = put(10..20).await;
    let took = began.elapsed();
    let refused: Vec<_> = full.iter().filter_map(|stored| stored.as_ref().err()).collect();
    assert!(refused.len() >= 9, "{full:?}");
    for error in refused {
        assert!(error.is_backpressure() && error.is_retryable(), "{error}");
        assert_eq!(error.mooncake_code(), -200);
    }
    // 200 ms are promised, for the whole batch; the rest is slack.
    assert!(took < Duration::from_secs(1), "{took:?}");
    tokio::time::sleep(Duration::from_millis(3200)).await;
    let stored = put(20..21).await;
    assert!(matches!(stored[0], Ok(Stored::New { .. })), "{stored:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_fits_no_segment_is_refused_for_good() {
    let master = Master::start(&[]);
    let _lender = master.lender("a", "2MiB", &[]);
    let client = master.client("b", 4 << 20).await;
    let span = client.memory.span(0, 4 << 20).unwrap();
    let error = client.store.put(key(0), [span]).await.unwrap_err();
    assert!(!error.is_retryable() && !error.is_backpressure(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_longer_than_the_memory_for_it_is_not_read_and_those_beside_it_are() {
    let master = Master::start(&[]);
    let _lender = master.lender("a", "8MiB", &[]);
    let client = master.client("b", 1 << 20).await;
    let span = |offset, length| client.memory.span(offset, length).unwrap();
    for number in [1, 2] {
        write_object(&client.memory, 0, 100_000, number, number);
        client.store.put(key(number), [span(0, 100_000)]).await.unwrap();
    }
    client.memory.write_at(0, &vec![7; 1 << 20]).unwrap();
    let gets = vec![
        Get::new(key(1), [span(0, 99_999)]),
        Get::new(key(2), [span(200_000, 50_000), span(250_000, 50_000)]),
    ];
    let got = client.store.get_all(gets, GetOptions::default()).await;
    assert!(matches!(got[0], Err(Error::TooSmall { length: 100_000, room: 99_999 })), "{got:?}");
    assert_eq!(*got[1].as_ref().unwrap(), 100_000);
    assert_eq!(read_object(&client.memory, 200_000, 100_000, 2), 2);
    let mut beside = vec![0; 200_000];
    client.memory.read_at(0, &mut beside).unwrap();
    assert!(beside.iter().all(|byte| *byte == 7), "what was not to be read is changed");
}
