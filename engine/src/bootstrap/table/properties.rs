//! Whatever the order of events: an older incarnation never replaces a newer one, a table is never
//! told while a rank is missing that must exist, and every bound holds.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use kvferry_proto::Incarnation;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::bootstrap::registration::Sizes;

const WORKERS: u32 = 6;

/// What happens.
#[derive(Clone, Debug)]
enum Event {
    Register(Registration),
    /// One of the registrations that wait goes on, its probes answered by these.
    Resume {
        which: prop::sample::Index,
        verdicts: Vec<Verdict>,
    },
    Time(Duration),
    /// What is due is tried.
    Due(Verdict),
    /// A probe that was asked for a while ago is answered now.
    Late {
        which: prop::sample::Index,
        verdict: Verdict,
    },
    Query,
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        4 => Just(Verdict::Gone), 2 => Just(Verdict::Accepts), 1 => Just(Verdict::Unknown)
    ]
}

fn size(most: u32) -> impl Strategy<Value = Option<NonZeroU32>> {
    prop_oneof![2 => Just(None), 1 => (1..=most).prop_map(NonZeroU32::new)]
}

/// Few values of each kind, so that they meet, and no more ranks than are remembered.
fn registration() -> impl Strategy<Value = Registration> {
    let rank = (0..2_u32, 0..3_u32, 0..2_u32);
    let sizes = (size(3), size(3), size(2));
    let lease = prop_oneof![Just(None), (1..5_u64).prop_map(|s| Some(Duration::from_secs(s)))];
    let incarnation = prop_oneof![
        1 => Just(None), 3 => (1..6_u64).prop_map(|incarnation| Some(Incarnation(incarnation)))
    ];
    (0..3_u8, rank, 1..4_u16, incarnation, sizes, lease).prop_map(
        |(engine, (dp, tp, pp), port, incarnation, (sdp, stp, spp), lease)| Registration {
            engine_id: format!("e{engine}").into(),
            rank: Rank { dp, tp, pp },
            address: format!("tcp://10.0.0.1:{port}").parse().expect("an address"),
            incarnation,
            sizes: Sizes { dp: sdp, tp: stp, pp: spp },
            lease,
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => registration().prop_map(Event::Register),
        6 => (any::<prop::sample::Index>(), vec(verdict(), 8))
            .prop_map(|(which, verdicts)| Event::Resume { which, verdicts }),
        2 => (0..4_000_u64).prop_map(|ms| Event::Time(Duration::from_millis(ms))),
        1 => verdict().prop_map(Event::Due),
        1 => (any::<prop::sample::Index>(), verdict())
            .prop_map(|(which, verdict)| Event::Late { which, verdict }),
        3 => Just(Event::Query),
    ]
}

/// What must hold, kept beside the table by other means than the table's own.
#[derive(Default)]
struct Model {
    /// The incarnations of each rank in the order in which they were first accepted.
    order: BTreeMap<Rank, Vec<Incarnation>>,
    /// The last accepted registration of each rank.
    accepted: BTreeMap<Rank, Registration>,
}

impl Model {
    fn accept(&mut self, registration: &Registration, was_vacant: bool) {
        if let Some(incarnation) = registration.incarnation {
            let order = self.order.entry(registration.rank).or_default();
            match order.iter().position(|known| *known == incarnation) {
                None => order.push(incarnation),
                Some(at) => {
                    // Unless it goes on after all others have stopped.
                    let is_newest = at + 1 == order.len();
                    assert!(is_newest || was_vacant, "{registration:?} is older than {order:?}");
                    order.remove(at);
                    order.push(incarnation);
                }
            }
        }
        self.accepted.insert(registration.rank, registration.clone());
    }

    fn check_listing(&self, listing: &Listing) {
        let mut dp_sizes = Vec::new();
        for (dp, engine) in &listing.engines {
            let mut ranks = Vec::new();
            for (tp, row) in &engine.workers {
                ranks.extend(row.keys().map(|pp| (*tp, *pp)));
            }
            for (tp, pp) in &ranks {
                let rank = Rank { dp: *dp, tp: *tp, pp: *pp };
                let known = &self.accepted[&rank];
                assert_eq!(engine.workers[tp][pp].address, known.address, "{rank}");
                assert_eq!(engine.engine_id, known.engine_id, "{rank}");
                // In the table stands the newest, or one that did not say who it is.
                let newest = self.order.get(&rank).and_then(|order| order.last());
                let stands = engine.workers[tp][pp].incarnation;
                assert!(stands.is_none() || stands.as_ref() == newest, "{rank}: {stands:?}");
                dp_sizes.extend(known.sizes.dp);
                if let Some(size) = known.sizes.tp {
                    assert!((0..size.get()).all(|tp| engine.workers.contains_key(&tp)), "{rank}");
                    assert!(engine.workers.keys().all(|tp| *tp < size.get()), "{rank}");
                }
                if let (Some(tps), Some(pps)) = (known.sizes.tp, known.sizes.pp) {
                    assert_eq!(ranks.len(), (tps.get() * pps.get()) as usize, "{rank}");
                }
            }
        }
        for size in dp_sizes {
            assert_eq!(listing.engines.len(), size.get() as usize);
            assert!(listing.engines.keys().all(|dp| *dp < size.get()));
        }
    }
}

fn check_bounds(table: &Table) {
    let workers: usize = table.engines.values().map(|engine| engine.workers.len()).sum();
    assert!(workers <= WORKERS as usize);
    assert_eq!(workers, table.due.len(), "each is due once");
    assert!(table.engines.values().all(|engine| !engine.workers.is_empty()));
    assert!(table.history.ranks() <= 2 * WORKERS as usize);
    for (at, rank) in &table.due {
        assert_eq!(table.worker(*rank).map(|worker| worker.life.due()), Some(*at));
    }
}

fn run(events: Vec<Event>) {
    let limits = Limits { engines: 3, workers: WORKERS, ..Limits::default() };
    let forget_after = Duration::from_secs(2);
    let probe_every = Duration::from_secs(1);
    let mut table = Table::new(Settings { limits, probe_every, forget_after });
    let mut now = Instant::now();
    let mut model = Model::default();
    let (mut waiting, mut probes) = (Vec::<Pending>::new(), Vec::<Probe>::new());
    for event in events {
        let is_over =
            |worker: &Worker| matches!(worker.life, Life::Leased { until } if until <= now);
        let held: BTreeSet<Rank> = table
            .engines
            .iter()
            .flat_map(|(dp, engine)| engine.ranked(*dp))
            .filter(|(_, worker)| !is_over(worker))
            .map(|(rank, _)| rank)
            .collect();
        let answered = match event {
            Event::Register(registration) => {
                Some((registration.clone(), table.register(now, registration)))
            }
            Event::Resume { which, verdicts } if !waiting.is_empty() => {
                let pending = waiting.swap_remove(which.index(waiting.len()));
                let found = pending.probes().iter().cloned().zip(verdicts).collect();
                let registration = pending.registration.clone();
                Some((registration, table.resume(now, pending, found)))
            }
            Event::Time(passed) => {
                now += passed;
                None
            }
            Event::Due(verdict) => {
                let due = table.due(now);
                assert!(table.next_due().is_none_or(|at| at > now));
                for probe in &due {
                    table.probed(now, probe, verdict);
                }
                probes.extend(due);
                None
            }
            Event::Late { which, verdict } if !probes.is_empty() => {
                table.probed(now, &probes[which.index(probes.len())], verdict);
                None
            }
            Event::Resume { .. } | Event::Late { .. } => None,
            Event::Query => {
                if let Ok(listing) = table.query(now) {
                    model.check_listing(&listing);
                }
                None
            }
        };
        match answered {
            Some((registration, Answer::Accepted)) => {
                model.accept(&registration, !held.contains(&registration.rank));
                let worker = table.worker(registration.rank).expect("it was accepted");
                assert_eq!(worker.address, registration.address);
            }
            Some((_, Answer::Probe(pending))) => {
                assert!(!pending.probes().is_empty());
                waiting.push(pending);
            }
            Some((_, Answer::Refused(_))) | None => {}
        }
        check_bounds(&table);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn order_completeness_and_bounds_hold_whatever_happens(events in vec(event(), 0..80)) {
        run(events);
    }
}
