//! Memory that is lent, and taken back.

use std::time::Duration;

use kvferry_store::{Error, Outcome, SegmentState};

use super::master::Master;
use super::setting::{Client, MIB, key};

#[tokio::test]
async fn more_than_there_is_cannot_be_lent_and_the_error_names_the_limit() {
    let master = Master::start().await;
    let client = Client::start(&master, "a").await;
    let error = client.store.lend(1 << 60, "all").unwrap_err();
    assert!(matches!(error, Error::NoRoom { .. }), "{error}");
    assert!(matches!(client.store.lend(0, "none").unwrap_err(), Error::Empty));
    let long = client.store.lend(MIB, "n".repeat(300)).unwrap_err();
    assert!(matches!(long, Error::NameTooLong { found: 300, .. }), "{long}");
}

#[tokio::test]
async fn a_segment_that_is_taken_back_is_touched_by_nobody() {
    let master = Master::start().await;
    let (owner, lent) = Client::lending(&master, "a", 8 * MIB).await;
    let client = Client::start(&master, "b").await;
    client.store.put(key("k"), [client.fill(0, 1000, 1)]).await.unwrap();
    client.store.get(key("k"), [client.span(0, 1000)]).await.unwrap();
    assert_eq!(owner.store.engine().registry().region_count(), 2);
    let mut seen = lent.clone();
    assert!(matches!(seen.state(), SegmentState::Mounted));
    assert_eq!(lent.unmount(Duration::from_millis(10)).await.unwrap(), Duration::ZERO);
    assert!(matches!(seen.changed().await, SegmentState::Unmounted));
    assert_eq!(owner.store.engine().registry().region_count(), 1);
    assert_eq!(owner.store.status().lent_bytes, 0);
    let error = client.store.get(key("k"), [client.span(0, 1000)]).await.unwrap_err();
    assert!(matches!(error, Error::Outcome(Outcome::NotFound)), "{error}");
    let error = client.store.put(key("l"), [client.span(0, 1000)]).await.unwrap_err();
    assert!(error.is_backpressure(), "{error}");
}

#[tokio::test]
async fn a_store_that_is_closed_leaves_nothing_behind_and_does_nothing_more() {
    let master = Master::start().await;
    let (owner, _lent) = Client::lending(&master, "a", 8 * MIB).await;
    let other = owner.store.clone();
    owner.store.close(Duration::from_millis(10)).await.unwrap();
    assert_eq!(other.engine().registry().region_count(), 1);
    let error = other.exists(key("k")).await.unwrap_err();
    assert!(matches!(error, Error::Closed), "{error}");
    assert!(matches!(other.lend(MIB, "a").unwrap_err(), Error::Closed));
    let client = Client::start(&master, "b").await;
    assert_eq!(client.store.segments().await.unwrap().len(), 0);
}

#[tokio::test]
async fn a_store_that_is_dropped_leaves_at_once() {
    let master = Master::start().await;
    let (owner, lent) = Client::lending(&master, "a", 8 * MIB).await;
    let client = Client::start(&master, "b").await;
    assert_eq!(client.store.segments().await.unwrap().len(), 1);
    // It waits for the master, which runs on this thread.
    tokio::task::spawn_blocking(move || drop((lent, owner.store))).await.unwrap();
    assert_eq!(client.store.segments().await.unwrap().len(), 0);
    assert_eq!(owner.memory.length(), 4 * MIB);
}
