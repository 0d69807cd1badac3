//! Figures for Prometheus. All exist from the start, at zero.
//!
//! Names are those of Mooncake's master where it has the same figure. Its counters of single requests
//! count keys here, and those of batches count calls: every call of ours is a batch.

use kvferry_proto::pool::Outcome;
use prometheus::{Encoder, IntCounter, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

use super::desk::Desk;

/// What is asked of the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Exist,
    Locate,
    PutStart,
    PutEnd,
    PutRevoke,
    Remove,
    RemoveByRegex,
    RemoveAll,
    Mount,
    Unmount,
    Ping,
}

impl Request {
    const ALL: [(Self, &'static str, &'static str); 11] = [
        (Self::Exist, "exist_key", "looking whether keys exist"),
        (Self::Locate, "get_replica_list", "looking where keys are"),
        (Self::PutStart, "put_start", "reserving room"),
        (Self::PutEnd, "put_end", "ending puts"),
        (Self::PutRevoke, "put_revoke", "giving reservations back"),
        (Self::Remove, "remove", "removing keys"),
        (Self::RemoveByRegex, "remove_by_regex", "removing what matches"),
        (Self::RemoveAll, "remove_all", "removing all of a tenant"),
        (Self::Mount, "mount_segment", "lending segments"),
        (Self::Unmount, "unmount_segment", "taking segments back"),
        (Self::Ping, "ping", "signs of life"),
    ];
}

/// The counters of one kind of request.
#[derive(Debug)]
struct Counted {
    keys: IntCounter,
    failed_keys: IntCounter,
    calls: IntCounter,
    failed_calls: IntCounter,
}

/// All figures.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Vec<Counted>,
    pub(crate) evictions_attempted: IntCounter,
    pub(crate) evictions_successful: IntCounter,
    gets: [IntCounter; 3],
    evicted: [IntCounter; 2],
    reclaimed: IntCounter,
    gauges: [IntGauge; 9],
    segment_allocated: IntGaugeVec,
    segment_capacity: IntGaugeVec,
}

const GAUGES: [(&str, &str); 9] = [
    ("master_allocated_bytes", "Bytes of objects in the pool"),
    ("master_total_capacity_bytes", "Length of all segments that can be found"),
    ("master_key_count", "Objects in the pool, those that are being written included"),
    ("master_soft_pin_key_count", "Objects with a soft pin that runs"),
    ("master_active_clients", "Clients whose leases run"),
    ("master_segment_count", "Segments that can be found"),
    ("master_put_start_open", "Objects that are being written"),
    ("master_metadata_bytes", "Memory of the master for objects and keys, about"),
    ("master_recovering", "1 while owners may still have to say what they have"),
];

impl Metrics {
    pub(crate) fn new() -> Self {
        let registry = Registry::new();
        let counter = |name: &str, help: &str| {
            // Names are constants, and each is there once.
            let counter = IntCounter::new(name, help).expect("a good name");
            registry.register(Box::new(counter.clone())).expect("a new name");
            counter
        };
        let counted = |name: &str, what: &str| Counted {
            keys: counter(
                &format!("master_{name}_requests_total"),
                &format!("Keys or segments in requests for {what}"),
            ),
            failed_keys: counter(
                &format!("master_{name}_failures_total"),
                &format!("Those of them that were refused or not found, {what}"),
            ),
            calls: counter(
                &format!("master_batch_{name}_requests_total"),
                &format!("Calls for {what}"),
            ),
            failed_calls: counter(
                &format!("master_batch_{name}_failures_total"),
                &format!("Calls in which nothing succeeded, {what}"),
            ),
        };
        let requests = Request::ALL.map(|(_, name, what)| counted(name, what)).into();
        let gauge = |(name, help)| {
            let gauge = IntGauge::new(name, help).expect("a good name");
            registry.register(Box::new(gauge.clone())).expect("a new name");
            gauge
        };
        let gauges = GAUGES.map(gauge);
        let labelled = |name: &str, help: &str| {
            let gauge = IntGaugeVec::new(Opts::new(name, help), &["segment"]).expect("good names");
            registry.register(Box::new(gauge.clone())).expect("a new name");
            gauge
        };
        Self {
            requests,
            evictions_attempted: counter(
                "master_attempted_evictions_total",
                "Evictions because a put found no room",
            ),
            evictions_successful: counter(
                "master_successful_evictions_total",
                "Those of them that evicted something",
            ),
            gets: [
                counter("total_get_nums_", "Keys that were looked for to be read"),
                counter("valid_get_nums_", "Those of them that were found"),
                counter("mem_cache_hit_nums_", "Those of them that were found in memory"),
            ],
            evicted: [
                counter("master_evicted_key_count", "Objects that were evicted"),
                counter("master_evicted_size_bytes", "Bytes of objects that were evicted"),
            ],
            reclaimed: counter(
                "master_put_start_discard_cnt",
                "Puts that were taken back because their writers did not finish",
            ),
            gauges,
            segment_allocated: labelled("segment_allocated_bytes", "Bytes of objects in a segment"),
            segment_capacity: labelled("segment_total_capacity_bytes", "Length of a segment"),
            registry,
        }
    }

    /// Counts a call with so many keys.
    pub(crate) fn count(&self, request: Request, keys: usize, failed: usize) {
        let index = Request::ALL.iter().position(|(known, ..)| *known == request);
        let Some(counted) = index.and_then(|index| self.requests.get(index)) else { return };
        counted.keys.inc_by(keys as u64);
        counted.failed_keys.inc_by(failed as u64);
        counted.calls.inc();
        counted.failed_calls.inc_by(u64::from(keys > 0 && failed == keys));
        if request == Request::Locate {
            let found = (keys - failed) as u64;
            self.gets[0].inc_by(keys as u64);
            self.gets[1].inc_by(found);
            self.gets[2].inc_by(found);
        }
    }

    /// Counts a call by its outcomes.
    pub(crate) fn count_outcomes(&self, request: Request, outcomes: &[Outcome]) {
        let failed = outcomes.iter().filter(|outcome| **outcome != Outcome::Ok).count();
        self.count(request, outcomes.len(), failed);
    }

    /// All figures as text.
    pub(crate) fn text(&self, desk: &Desk) -> String {
        self.look(desk);
        let mut text = Vec::new();
        // Writing to memory does not fail, and names are what is escaped.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        String::from_utf8(text).unwrap_or_default()
    }

    /// One line for people.
    pub(crate) fn summary(&self, desk: &Desk) -> String {
        let totals = desk.pool.totals();
        let share = |part: u64, whole: u64| u128::from(part) * 1000 / u128::from(whole.max(1));
        let filled = share(totals.used, totals.capacity);
        format!(
            "state={}, keys={}, writing={}, used={} of {} bytes ({}.{} %), segments={}, clients={}, \
             evicted={} keys and {} bytes, metadata={} bytes",
            state(desk),
            totals.keys,
            totals.writing,
            totals.used,
            totals.capacity,
            filled / 10,
            filled % 10,
            totals.segments,
            totals.clients,
            totals.evicted_keys,
            totals.evicted_bytes,
            totals.key_bytes,
        )
    }

    fn look(&self, desk: &Desk) {
        let (pool, now) = (&desk.pool, desk.now());
        let totals = pool.totals();
        let values = [
            totals.used,
            totals.capacity,
            totals.keys,
            pool.soft_pinned(now),
            totals.clients as u64,
            totals.segments as u64,
            totals.writing,
            totals.key_bytes,
            u64::from(pool.is_recovering(now)),
        ];
        for (gauge, value) in self.gauges.iter().zip(values) {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        let catch_up = |counter: &IntCounter, value: u64| {
            counter.inc_by(value.saturating_sub(counter.get()));
        };
        catch_up(&self.evicted[0], totals.evicted_keys);
        catch_up(&self.evicted[1], totals.evicted_bytes);
        catch_up(&self.reclaimed, totals.reclaimed);
        self.segment_allocated.reset();
        self.segment_capacity.reset();
        for status in pool.segments() {
            let name = [status.placed.lent.name.as_str()];
            // Several segments may have one name.
            let add = |gauge: &IntGaugeVec, bytes: u64| {
                gauge.with_label_values(&name).add(i64::try_from(bytes).unwrap_or(i64::MAX));
            };
            add(&self.segment_allocated, status.used);
            add(&self.segment_capacity, status.placed.lent.length);
        }
    }
}

/// What the master is doing, in a word.
pub(crate) fn state(desk: &Desk) -> &'static str {
    if desk.is_closing() {
        "draining"
    } else if desk.pool.is_recovering(desk.now()) {
        "recovering"
    } else {
        "serving"
    }
}
