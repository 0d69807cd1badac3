//! Who gives way to whom.

use super::*;

#[test]
fn a_repeat_is_accepted_without_asking_anybody() {
    let mut world = World::new();
    for registration in [plain("a", rank(0, 0, 0), 1), named("a", rank(0, 1, 0), 2, 7)] {
        world.register(registration.clone()).unwrap();
        world.register(registration).unwrap();
    }
    assert_eq!(world.probes, 0);
    assert_eq!(world.listing().engines[&0].workers.len(), 2);
}

#[test]
fn a_newer_incarnation_takes_the_rank_and_the_older_never_has_it_back() {
    let mut world = World::new();
    world.alive = [1, 2].into();
    world.register(named("a", rank(0, 0, 0), 1, 7)).unwrap();
    world.register(named("a", rank(0, 0, 0), 2, 5)).unwrap();
    let superseded = Refusal::Superseded {
        rank: rank(0, 0, 0),
        incarnation: Incarnation(7),
        by: Incarnation(5),
    };
    assert_eq!(world.register(named("a", rank(0, 0, 0), 1, 7)), Err(superseded.clone()));
    assert!(!superseded.is_retryable());
    assert_eq!(world.port(rank(0, 0, 0)), Some(2));
    assert_eq!(world.probes, 0, "the order decides");
    // The newer repeats itself, and may move.
    world.register(named("a", rank(0, 0, 0), 2, 5)).unwrap();
    world.register(named("a", rank(0, 0, 0), 3, 5)).unwrap();
    assert_eq!(world.port(rank(0, 0, 0)), Some(3));
}

#[test]
fn an_older_incarnation_that_wakes_is_refused_also_when_the_newer_is_gone() {
    let mut world = World::new();
    let lease = Some(10 * SECOND);
    let old = Registration { lease, ..named("a", rank(0, 0, 0), 1, 7) };
    let new = Registration { lease, ..named("a", rank(0, 0, 0), 2, 8) };
    world.register(old.clone()).unwrap();
    world.pass(11 * SECOND);
    assert_eq!(world.listing(), Listing::default(), "its lease is over");
    world.register(new).unwrap();
    assert!(matches!(world.register(old.clone()), Err(Refusal::Superseded { .. })));
    world.pass(11 * SECOND);
    assert!(matches!(world.register(old), Err(Refusal::Superseded { .. })));
}

#[test]
fn a_worker_that_the_dead_were_taken_to_have_replaced_has_its_rank_back() {
    let mut world = World::new();
    let lease = Some(10 * SECOND);
    let living = Registration { lease, ..named("a", rank(0, 0, 0), 1, 8) };
    // Its predecessor's first and only registration is late.
    let dead = Registration { lease, ..named("a", rank(0, 0, 0), 1, 7) };
    world.register(living.clone()).unwrap();
    world.register(dead.clone()).unwrap();
    for _ in 0..7 {
        assert!(matches!(world.register(living.clone()), Err(Refusal::Superseded { .. })));
        world.pass(3 * SECOND);
    }
    assert_eq!(world.listing(), Listing::default(), "the dead one's lease is over");
    world.pass(3 * SECOND);
    world.register(living.clone()).unwrap();
    assert_eq!(world.port(rank(0, 0, 0)), Some(1));
    assert!(matches!(world.register(dead), Err(Refusal::Superseded { .. })));
    world.register(living).unwrap();
}

#[test]
fn a_worker_that_was_only_stopped_has_its_rank_back() {
    let mut world = World::new();
    let worker = Registration { lease: Some(SECOND), ..named("a", rank(0, 0, 0), 1, 7) };
    world.register(worker.clone()).unwrap();
    world.pass(2 * SECOND);
    assert_eq!(world.listing(), Listing::default());
    world.register(worker).unwrap();
    assert_eq!(world.port(rank(0, 0, 0)), Some(1));
}

#[test]
fn without_incarnations_the_present_worker_stays_while_its_address_accepts() {
    let mut world = World::new();
    world.alive = [1].into();
    world.register(plain("a", rank(0, 0, 0), 1)).unwrap();
    let refused = world.register(plain("a", rank(0, 0, 0), 2)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "tcp://10.0.0.1:2 cannot have dp 0 tp 0 pp 0 of engine \"a\": tcp://10.0.0.1:1 has it and \
         accepts connections; stop that worker, or give this one another rank"
    );
    assert!(refused.is_retryable());
    assert_eq!(world.port(rank(0, 0, 0)), Some(1));
    world.alive.clear();
    world.register(plain("a", rank(0, 0, 0), 2)).unwrap();
    assert_eq!(world.port(rank(0, 0, 0)), Some(2));
}

#[test]
fn another_engine_takes_a_dp_rank_only_when_every_worker_of_the_present_one_is_gone() {
    let mut world = World::new();
    for tp in 0..3 {
        world.register(plain("a", rank(0, tp, 0), 1 + u16::try_from(tp).unwrap())).unwrap();
    }
    world.alive = [3].into();
    let refused = world.register(plain("b", rank(0, 0, 0), 9)).unwrap_err();
    assert!(refused.to_string().contains("engine \"a\" has it, and its worker dp 0 tp 2 pp 0 at"));
    assert_eq!(world.listing().engines[&0].workers.len(), 3, "nothing has changed");
    world.alive.clear();
    world.register(plain("b", rank(0, 0, 0), 9)).unwrap();
    let listing = world.listing();
    assert_eq!(&*listing.engines[&0].engine_id, "b");
    assert_eq!(listing.engines[&0].workers.len(), 1);
}

#[test]
fn one_without_an_incarnation_and_one_with_cannot_be_ordered() {
    for (first, second) in [
        (plain("a", rank(0, 0, 0), 1), named("a", rank(0, 0, 0), 2, 7)),
        (named("a", rank(0, 0, 0), 1, 7), plain("a", rank(0, 0, 0), 2)),
        (plain("a", rank(0, 0, 0), 1), named("b", rank(0, 0, 0), 2, 7)),
        (named("a", rank(0, 0, 0), 1, 7), plain("b", rank(0, 0, 0), 2)),
    ] {
        let mut world = World::new();
        world.alive = [1].into();
        world.register(first).unwrap();
        world.register(second.clone()).unwrap_err();
        world.alive.clear();
        world.register(second).unwrap();
        assert_eq!(world.probes, 2);
    }
}

#[test]
fn who_has_taken_over_an_address_has_the_rank_of_whoever_had_it() {
    let mut world = World::new();
    world.alive = [1].into();
    world.register(plain("a", rank(0, 0, 0), 1)).unwrap();
    world.register(named("a", rank(0, 0, 0), 1, 7)).unwrap();
    // One that does not say who it is, at the same address: the one that is there.
    world.register(plain("a", rank(0, 0, 0), 1)).unwrap();
    let worker = &world.listing().engines[&0].workers[&0][&0];
    assert_eq!(worker.incarnation, Some(Incarnation(7)));
}

#[test]
fn an_engine_that_starts_again_takes_its_dp_rank_and_late_ranks_of_the_old_one_do_not() {
    let mut world = World::new();
    world.alive = [1, 2, 3, 4].into();
    world.register(named("a", rank(0, 0, 0), 1, 10)).unwrap();
    world.register(named("b", rank(0, 0, 0), 2, 20)).unwrap();
    // A rank of the old engine that nobody has heard of before.
    let late = named("a", rank(0, 1, 0), 3, 11);
    assert!(matches!(world.register(late.clone()), Err(Refusal::EngineClash { .. })));
    world.register(named("b", rank(0, 1, 0), 4, 21)).unwrap();
    assert_eq!(&*world.listing().engines[&0].engine_id, "b");
    // The new engine is gone: then the old one may come back.
    world.alive = [3].into();
    world.register(late).unwrap();
    assert_eq!(&*world.listing().engines[&0].engine_id, "a");
}

#[test]
fn what_was_found_counts_only_for_the_registration_that_was_asked_about() {
    let mut world = World::new();
    let (now, table) = (world.now, &mut world.table);
    assert_eq!(table.register(now, plain("a", rank(0, 0, 0), 1)), Answer::Accepted);
    let Answer::Probe(pending) = table.register(now, plain("a", rank(0, 0, 0), 2)) else {
        panic!("who is there has to be asked for")
    };
    let gone = |pending: &Pending| -> Vec<_> {
        pending.probes().iter().map(|probe| (probe.clone(), Verdict::Gone)).collect()
    };
    // While its address is tried, the present worker says that it is there.
    assert_eq!(table.register(now, plain("a", rank(0, 0, 0), 1)), Answer::Accepted);
    let found = gone(&pending);
    let Answer::Probe(again) = table.resume(now, pending, found) else {
        panic!("it is alive after all")
    };
    // Another registrant is quicker.
    let Answer::Probe(quicker) = table.register(now, plain("a", rank(0, 0, 0), 3)) else {
        panic!("who is there has to be asked for")
    };
    let found = gone(&quicker);
    assert_eq!(table.resume(now, quicker, found), Answer::Accepted);
    let found = gone(&again);
    let Answer::Probe(third) = table.resume(now, again, found) else {
        panic!("another worker is there now")
    };
    assert_eq!(third.probes()[0].address().to_string(), "tcp://10.0.0.1:3");
    let found = vec![(third.probes()[0].clone(), Verdict::Accepts)];
    assert!(matches!(table.resume(now, third, found), Answer::Refused(_)));
    assert_eq!(world.port(rank(0, 0, 0)), Some(3));
}

#[test]
fn a_registration_whose_ground_keeps_moving_ends() {
    let mut world = World::new();
    let (now, table) = (world.now, &mut world.table);
    assert_eq!(table.register(now, plain("a", rank(0, 0, 0), 1)), Answer::Accepted);
    let mut answer = table.register(now, plain("b", rank(0, 0, 0), 2));
    let mut rounds = 0;
    while let Answer::Probe(pending) = answer {
        rounds += 1;
        assert!(rounds <= ROUNDS, "it goes on for ever");
        assert_eq!(table.register(now, plain("a", rank(0, 0, 0), 1)), Answer::Accepted);
        let found = pending.probes().iter().map(|probe| (probe.clone(), Verdict::Gone)).collect();
        answer = table.resume(now, pending, found);
    }
    assert_eq!(answer, Answer::Refused(Refusal::Contended { rank: rank(0, 0, 0) }));
}
