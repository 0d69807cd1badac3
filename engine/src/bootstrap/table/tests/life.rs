//! Who is forgotten, and bounds.

use super::*;

#[test]
fn an_address_that_could_not_be_tried_is_not_gone() {
    let settings = Settings { forget_after: Duration::ZERO, ..Settings::default() };
    let mut world = World::with(settings);
    let (now, table) = (world.now, &mut world.table);
    assert_eq!(table.register(now, plain("a", rank(0, 0, 0), 1)), Answer::Accepted);
    let Answer::Probe(pending) = table.register(now, plain("b", rank(0, 0, 0), 2)) else {
        panic!("who is there has to be asked for")
    };
    let found = vec![(pending.probes()[0].clone(), Verdict::Unknown)];
    let Answer::Refused(refusal) = table.resume(now, pending, found) else { panic!("accepted") };
    assert!(refusal.to_string().contains("may be alive"), "{refusal}");
    let later = now + 11 * SECOND;
    let probes = table.due(later);
    table.probed(later, &probes[0], Verdict::Unknown);
    assert_eq!(world.port(rank(0, 0, 0)), Some(1));
}

#[test]
fn a_lease_is_renewed_by_repeating_and_ends_otherwise() {
    let mut world = World::new();
    let worker = Registration { lease: Some(3 * SECOND), ..plain("a", rank(0, 0, 0), 1) };
    for _ in 0..5 {
        world.register(worker.clone()).unwrap();
        world.pass(2 * SECOND);
        assert_eq!(world.listing().engines.len(), 1);
    }
    assert_eq!(world.table.next_due(), Some(world.now + SECOND));
    world.pass(SECOND);
    assert_eq!(world.table.due(world.now), []);
    assert_eq!(world.table.next_due(), None);
    assert_eq!(world.listing(), Listing::default());
}

#[test]
fn one_without_a_lease_is_forgotten_when_its_address_was_silent_for_long_enough() {
    let mut world = World::new();
    world.register(plain("a", rank(0, 0, 0), 1)).unwrap();
    world.register(plain("a", rank(0, 1, 0), 2)).unwrap();
    world.alive = [1, 2].into();
    let step = Settings::default().probe_every;
    for _ in 0..20 {
        world.pass(step);
        world.try_addresses();
    }
    assert_eq!(world.listing().engines[&0].workers.len(), 2);
    // Silent for a while, and back: the time starts again.
    world.alive = [1].into();
    for _ in 0..6 {
        world.pass(step);
        world.try_addresses();
    }
    world.alive = [1, 2].into();
    world.pass(step);
    world.try_addresses();
    world.alive = [1].into();
    for _ in 0..6 {
        world.pass(step);
        world.try_addresses();
        assert_eq!(world.port(rank(0, 1, 0)), Some(2));
    }
    world.pass(step);
    world.try_addresses();
    assert_eq!(world.port(rank(0, 1, 0)), None);
    assert_eq!(world.port(rank(0, 0, 0)), Some(1));
}

#[test]
fn what_a_probe_found_of_an_earlier_registration_forgets_nobody() {
    let settings = Settings { forget_after: Duration::ZERO, ..Settings::default() };
    let mut world = World::with(settings);
    world.register(plain("a", rank(0, 0, 0), 1)).unwrap();
    world.pass(settings.probe_every);
    let probes = world.table.due(world.now);
    world.register(plain("a", rank(0, 0, 0), 1)).unwrap();
    world.table.probed(world.now, &probes[0], Verdict::Gone);
    assert_eq!(world.port(rank(0, 0, 0)), Some(1));
}

#[test]
fn not_more_addresses_are_tried_at_once_than_the_bound_and_each_has_its_turn() {
    let mut world = World::new();
    let workers = u16::try_from(PROBES_AT_ONCE).unwrap() * 2 + 3;
    for tp in 0..workers {
        world.register(plain("a", rank(0, tp.into(), 0), tp + 1)).unwrap();
    }
    world.pass(Settings::default().probe_every);
    let mut tried = BTreeSet::new();
    loop {
        let probes = world.table.due(world.now);
        assert!(probes.len() <= PROBES_AT_ONCE);
        if probes.is_empty() {
            break;
        }
        tried.extend(probes.iter().map(|probe| probe.address().endpoint().port()));
    }
    assert_eq!(tried.len(), usize::from(workers));
    let swap = world.table.register(world.now, plain("b", rank(0, 0, 0), 9));
    assert!(matches!(swap, Answer::Probe(pending) if pending.probes().len() == PROBES_AT_ONCE));
    // A whole engine that is gone gives way although it takes several rounds to find out.
    world.register(plain("b", rank(0, 0, 0), 9)).unwrap();
    assert_eq!(world.listing().engines[&0].workers.len(), 1);
}

#[test]
fn every_field_is_bounded() {
    let limits = Limits { engines: 4, workers: 8, engine_id_bytes: 5, ..Limits::default() };
    let settings = Settings { limits, ..Settings::default() };
    let mut world = World::with(settings);
    let lease = |lease| Registration { lease: Some(lease), ..plain("a", rank(0, 0, 0), 1) };
    for (registration, expected) in [
        (plain("", rank(0, 0, 0), 1), "the length of engine_id in bytes is 0"),
        (plain("abcdef", rank(0, 0, 0), 1), "the length of engine_id in bytes is 6"),
        (plain("a", rank(4, 0, 0), 1), "dp_rank is 4: this server accepts 0 to 3"),
        (plain("a", rank(0, 8, 0), 1), "tp_rank is 8: this server accepts 0 to 7"),
        (plain("a", rank(0, 0, u32::MAX), 1), "pp_rank is 4294967295"),
        (sized(plain("a", rank(0, 0, 0), 1), 5, 0, 0), "dp_size is 5"),
        (sized(plain("a", rank(0, 0, 0), 1), 0, 9, 0), "tp_size is 9"),
        (sized(plain("a", rank(0, 0, 0), 1), 0, 0, 9), "pp_size is 9"),
        (sized(plain("a", rank(0, 0, 0), 1), 0, 3, 3), "tp_size times pp_size is 9"),
        (lease(Duration::from_millis(99)), "lease_ms is 99: this server accepts 100 to 86400000"),
        (lease(Duration::from_secs(86_401)), "lease_ms is 86401000"),
    ] {
        let refused = world.register(registration).unwrap_err();
        assert!(refused.to_string().starts_with(expected), "{refused}");
        assert!(!refused.is_retryable());
    }
    for tp in 0..8 {
        world.register(plain("a", rank(0, tp, 0), 1)).unwrap();
    }
    let full = world.register(plain("b", rank(1, 0, 0), 1));
    assert_eq!(full, Err(Refusal::Full { limit: 8 }));
    world.register(plain("a", rank(0, 7, 0), 1)).expect("it is there already");
    world.register(plain("b", rank(0, 0, 0), 9)).expect("all of them are gone");
}

#[test]
fn what_is_remembered_of_ranks_that_nobody_holds_is_bounded() {
    let limits = Limits { workers: 8, ..Limits::default() };
    let mut world = World::with(Settings { limits, ..Settings::default() });
    for round in 0..100_u64 {
        for tp in 0..8 {
            let dp = u32::try_from(round).unwrap();
            world.register(named("a", rank(dp, tp, 0), 1, round * 8 + u64::from(tp) + 1)).unwrap();
            assert!(world.table.history.ranks() <= 16);
            let dead = rank(dp, tp, 0);
            world.table.remove(dead);
        }
    }
    for incarnation in 1..1000 {
        world.register(named("a", rank(0, 0, 0), 1, incarnation)).unwrap();
    }
    assert!(world.table.history.ranks() <= 16);
    let late = world.register(named("a", rank(0, 0, 0), 1, 990));
    assert!(matches!(late, Err(Refusal::Superseded { .. })));
    world.register(named("a", rank(0, 0, 0), 1, 1)).expect("too many have followed it");
}

#[test]
fn what_becomes_of_workers_is_told_once_and_boundedly() {
    let mut world = World::new();
    let lease = Some(SECOND);
    world.register(Registration { lease, ..plain("a", rank(0, 0, 0), 1) }).unwrap();
    world.register(Registration { lease, ..plain("a", rank(0, 0, 0), 1) }).unwrap();
    world.pass(2 * SECOND);
    world.register(named("a", rank(0, 0, 0), 1, 7)).unwrap();
    world.register(named("b", rank(0, 0, 0), 2, 8)).unwrap();
    let told: Vec<_> =
        world.table.changes().map(|change| (change.engine_id, change.what)).collect();
    let expected = [
        ("a", Happened::Joined),
        ("a", Happened::Expired),
        ("a", Happened::Joined),
        ("a", Happened::Replaced),
        ("b", Happened::Joined),
    ];
    assert_eq!(told, expected.map(|(engine, what)| (engine.into(), what)));
    assert_eq!(world.table.changes().count(), 0);
    for incarnation in 0..CHANGES as u64 + 5 {
        world.register(named("b", rank(0, 0, 0), 2, 100 + incarnation)).unwrap();
    }
    assert_eq!(world.table.changes().count(), CHANGES);
}
