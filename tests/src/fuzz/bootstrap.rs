//! What a bootstrap server and its clients read.

use std::sync::Arc;
use std::time::Instant;

use kvferry_engine::Endpoint;
use kvferry_engine::bootstrap::table::{
    Answer, Limits, ListedWorker, Listing, Settings, Table, Verdict,
};
use kvferry_engine::bootstrap::{Registration, WorkerAddress, server_address};

/// The body of a registration; then the table it goes to, between two that are there already.
///
/// # Panics
/// Where a rule is broken.
pub fn registration(bytes: &[u8]) {
    let Ok(registration) = Registration::from_json(bytes) else { return };
    super::assert_bounded(registration.engine_id.len(), bytes.len());
    let again = Registration::from_json(&registration.to_json());
    assert_eq!(again.expect("what is encoded can be decoded"), registration);

    let limits = Limits { engines: 8, workers: 64, ..Limits::default() };
    let mut table = Table::new(Settings { limits, ..Settings::default() });
    let now = Instant::now();
    let mut there = registration.clone();
    there.engine_id = Arc::from("a");
    let _ = table.register(now, there);
    let answer = table.register(now, registration.clone());
    let answer = match answer {
        Answer::Probe(pending) => {
            let probes = pending.probes().to_vec();
            let found = probes.into_iter().map(|probe| (probe, Verdict::Gone)).collect();
            table.resume(now, pending, found)
        }
        answer => answer,
    };
    if answer != Answer::Accepted {
        return;
    }
    assert_eq!(table.register(now, registration.clone()), Answer::Accepted, "a repeat");
    let rank = registration.rank;
    if let Ok(listing) = table.query(now) {
        let listed = &listing.engines[&rank.dp].workers[&rank.tp][&rank.pp];
        assert_eq!(listed.address, registration.address);
        assert_eq!(Listing::from_json(&listing.to_json()).expect("it is JSON"), listing);
    }
}

/// The answer to a query.
///
/// # Panics
/// Where a rule is broken.
pub fn listing(bytes: &[u8]) {
    let Ok(listing) = Listing::from_json(bytes) else { return };
    let rows = || listing.engines.values().flat_map(|engine| engine.workers.values());
    let workers = rows().map(std::collections::BTreeMap::len).sum::<usize>();
    super::assert_bounded(workers * size_of::<ListedWorker>(), bytes.len());
    let again = listing.to_json();
    let twice = Listing::from_json(&again).expect("what is encoded can be decoded");
    assert_eq!(twice.to_json(), again);
}

/// Addresses of engines, servers and workers.
///
/// # Panics
/// Where a rule is broken.
pub fn address(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Ok(endpoint) = text.parse::<Endpoint>() {
        let again = endpoint.to_string();
        assert_eq!(again.parse::<Endpoint>().as_ref().ok(), Some(&endpoint), "{again:?}");
    }
    if let Ok(endpoint) = server_address(text) {
        assert!(endpoint.port() != 0 && !endpoint.is_wildcard());
        let again = endpoint.to_string();
        assert_eq!(server_address(&again).ok().as_ref(), Some(&endpoint), "{again:?}");
        let worker: Result<WorkerAddress, _> = format!("tcp://{endpoint}").parse();
        assert_eq!(worker.expect("as good for a worker").endpoint(), &endpoint);
    }
    if let Ok(worker) = text.parse::<WorkerAddress>() {
        let again: WorkerAddress = worker.to_string().parse().expect("it was accepted before");
        assert_eq!(again, worker);
    }
}
