//! Whether all ranks are there, and sizes that contradict each other.

use super::*;

#[test]
fn a_table_is_complete_when_every_rank_is_there_in_whatever_order_they_come() {
    let mut world = World::new();
    assert_eq!(world.listing(), Listing::default(), "nobody said that anybody is missing");
    let places = [(1, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 1), (0, 0, 0), (1, 0, 0), (0, 1, 0)];
    for (dp, tp, pp) in places {
        let engine = format!("e{dp}");
        world.register(sized(plain(&engine, rank(dp, tp, pp), 1), 2, 2, 2)).unwrap();
        world.table.query(world.now).expect_err("ranks are missing");
    }
    let incomplete = world.table.query(world.now).unwrap_err();
    assert_eq!(incomplete, Incomplete { missing: 1, first: vec![rank(1, 1, 1)] });
    assert_eq!(incomplete.to_string(), "1 ranks have not registered yet: dp 1 tp 1 pp 1");
    world.register(sized(plain("e1", rank(1, 1, 1), 1), 2, 2, 2)).unwrap();
    assert_eq!(world.listing().engines.len(), 2);
}

#[test]
fn a_table_without_sizes_is_told_as_it_is() {
    let mut world = World::new();
    world.register(plain("a", rank(3, 5, 1), 1)).unwrap();
    assert_eq!(world.listing().engines[&3].workers[&5].len(), 1);
}

#[test]
fn a_size_of_one_kind_makes_only_ranks_of_that_kind_missing() {
    let mut world = World::new();
    world.register(sized(plain("a", rank(0, 0, 1), 1), 0, 2, 0)).unwrap();
    let incomplete = world.table.query(world.now).unwrap_err();
    assert_eq!(incomplete.first, [rank(0, 0, 0), rank(0, 1, 0), rank(0, 1, 1)]);
    let mut world = World::new();
    world.register(sized(plain("a", rank(1, 0, 0), 1), 3, 0, 0)).unwrap();
    let incomplete = world.table.query(world.now).unwrap_err();
    assert_eq!(incomplete.first, [rank(0, 0, 0), rank(2, 0, 0)]);
}

#[test]
fn a_worker_that_dies_makes_a_table_incomplete_again() {
    let mut world = World::new();
    let lease = Some(SECOND);
    world.register(Registration { lease, ..sized(plain("a", rank(0, 0, 0), 1), 0, 2, 1) }).unwrap();
    world.register(sized(plain("a", rank(0, 1, 0), 2), 0, 2, 1)).unwrap();
    assert_eq!(world.listing().engines[&0].workers.len(), 2);
    world.pass(2 * SECOND);
    assert_eq!(world.table.query(world.now).unwrap_err().first, [rank(0, 0, 0)]);
}

#[test]
fn sizes_that_contradict_each_other_are_refused_with_both() {
    let mut world = World::new();
    world.alive = [1, 2].into();
    world.register(sized(plain("a", rank(0, 0, 0), 1), 2, 2, 1)).unwrap();
    let mut refused = |registration| world.register(registration).unwrap_err().to_string();
    assert_eq!(
        refused(sized(plain("a", rank(0, 1, 0), 9), 2, 4, 1)),
        "dp 0 tp 1 pp 0 of engine \"a\" says tp_size 4, and dp 0 tp 0 pp 0 of engine \"a\" at \
         tcp://10.0.0.1:1, which accepts connections, says 2: start both with the same"
    );
    assert!(refused(sized(plain("b", rank(1, 0, 0), 9), 3, 2, 1)).contains("dp_size 3, and"));
    let outside = refused(plain("a", rank(0, 2, 0), 9));
    assert!(
        outside.starts_with("dp 0 tp 2 pp 0 of engine \"a\" does not exist where tp_size is 2")
    );
    let outside = refused(plain("b", rank(2, 0, 0), 9));
    assert!(
        outside.starts_with("dp 2 tp 0 pp 0 of engine \"b\" does not exist where dp_size is 2")
    );
    assert_eq!(
        refused(sized(plain("a", rank(0, 3, 0), 9), 0, 3, 0)),
        "tp_rank is 3 and tp_size 3: ranks count from 0"
    );
    // Another engine may be of another size, unless a rank of it contradicts the whole table's.
    world.register(sized(plain("b", rank(1, 3, 0), 2), 2, 4, 1)).unwrap();
    let refused = world.register(sized(plain("b", rank(1, 0, 0), 9), 2, 3, 1)).unwrap_err();
    assert!(matches!(refused, Refusal::SizeClash { field: "tp_size", .. }), "{refused}");
}

#[test]
fn a_present_rank_outside_the_sizes_of_a_newcomer_is_in_its_way_until_it_is_gone() {
    let mut world = World::new();
    world.alive = [1].into();
    world.register(plain("a", rank(0, 5, 0), 1)).unwrap();
    let refused = world.register(sized(plain("a", rank(0, 0, 0), 2), 0, 2, 1)).unwrap_err();
    assert!(matches!(refused, Refusal::OutsideSize { outside: Rank { tp: 5, .. }, .. }));
    world.alive.clear();
    world.register(sized(plain("a", rank(0, 0, 0), 2), 0, 2, 1)).unwrap();
    assert_eq!(world.port(rank(0, 5, 0)), None);
}

#[test]
fn an_engine_that_starts_again_with_fewer_ranks_waits_for_its_old_ones_only_while_they_live() {
    let mut world = World::new();
    for tp in 0..4 {
        world.register(sized(named("a", rank(0, tp, 0), 1, 10), 1, 4, 1)).unwrap();
    }
    world.alive = [1].into();
    let small = sized(named("a", rank(0, 0, 0), 2, 20), 1, 2, 1);
    assert!(matches!(world.register(small.clone()), Err(Refusal::SizeClash { .. })));
    world.alive.clear();
    world.register(small).unwrap();
    assert_eq!(world.table.query(world.now).unwrap_err().first, [rank(0, 1, 0)]);
}
