//! What becomes of objects: a master, lenders and clients that are processes, under load, where
//! every read is compared with what was put.
//!
//! | kind | file |
//! |---|---|
//! | nothing goes wrong | `calm` |
//! | the master, who lends, or who puts, dies or stops under load | `death` |
//! | the same at an exact place of a transfer, by a relay that holds bytes back | `held` |
//! | leases end, objects are evicted while they are read | `lease` |
//! | who lends is told to end | `drain` |
//! | the pool is full | `pressure` |
#![allow(clippy::unwrap_used, reason = "tests")]

mod calm;
mod death;
mod drain;
mod held;
mod lease;
mod pressure;

use std::time::{Duration, Instant};

use kvferry_store::{PutOptions, SegmentStatus, Store};

/// Short times, so that what they end is seen to end.
const HASTE: &[&str] = &[
    "--client-ttl=2",
    "--default-kv-lease-ttl=1000",
    "--put-start-discard-timeout-sec=1",
    "--put-start-release-timeout-sec=11",
];

fn replicas(replicas: usize) -> PutOptions {
    PutOptions { replicas, ..PutOptions::default() }
}

/// Waits until the pool's segment of this name, if there is one, is as it should be.
async fn until_segment(
    store: &Store,
    name: &str,
    what: &str,
    is_so: impl Fn(Option<&SegmentStatus>) -> bool,
) {
    let began = Instant::now();
    loop {
        let segments = store.segments().await.unwrap_or_default();
        let segment = segments.iter().find(|segment| segment.placed.lent.name == name);
        if is_so(segment) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{name}: never {what}: {segment:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
