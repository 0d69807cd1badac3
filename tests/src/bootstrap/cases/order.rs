//! Who gives way to whom.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::bootstrap::http::{query, register};
use crate::bootstrap::server::{Options, Start};
use crate::bootstrap::worker::{Clogged, Worker, dead_address, registration, with};

/// In-tree workers: the address decides.
pub fn a_worker_that_starts_again_has_its_rank_back_once_the_old_one_is_gone(start: Start<'_>) {
    let server = start(Options::default());
    let address = server.address();
    let (old, new) = (Worker::start(), Worker::start());
    register(&address, &old.registration("a", [0, 1, 0])).accepted();
    let clash = register(&address, &new.registration("a", [0, 1, 0]));
    clash.refused(400, &format!("{} cannot have dp 0 tp 1 pp 0", new.address()));
    clash.refused(400, &format!("{} has it and accepts connections", old.address()));
    assert_eq!(query(&address).json()["0"]["worker_addr"]["1"]["0"], old.address());
    drop(old);
    register(&address, &new.registration("a", [0, 1, 0])).accepted();
    assert_eq!(query(&address).json()["0"]["worker_addr"]["1"]["0"], new.address());
}

/// One worker that lives keeps the place for its engine.
pub fn an_engine_that_starts_again_replaces_the_old_one_as_a_whole(start: Start<'_>) {
    let server = start(Options::default());
    let address = server.address();
    let (alive, new) = (Worker::start(), Worker::start());
    register(&address, &registration("a", [0, 0, 0], &dead_address())).accepted();
    register(&address, &alive.registration("a", [0, 1, 0])).accepted();
    register(&address, &registration("a", [0, 2, 0], &dead_address())).accepted();
    let clash = register(&address, &new.registration("b", [0, 0, 0]));
    clash.refused(400, "engine \"b\" cannot have dp_rank 0: engine \"a\" has it");
    clash.refused(400, &alive.address());
    drop(alive);
    register(&address, &new.registration("b", [0, 0, 0])).accepted();
    let expected = json!({
        "0": { "engine_id": "b", "worker_addr": { "0": { "0": new.address() } } }
    });
    assert_eq!(query(&address).json(), expected);
}

/// Nor may in-tree callers be kept waiting for their answer: they give up after 5 s.
pub fn a_worker_whose_port_does_not_answer_is_gone_in_bounded_time(start: Start<'_>) {
    let server = start(Options::default());
    let address = server.address();
    let clogged = Clogged::start();
    let new = Worker::start();
    for tp in 0..4 {
        register(&address, &registration("a", [0, tp, 0], &clogged.address())).accepted();
    }
    let began = Instant::now();
    register(&address, &new.registration("b", [0, 0, 0])).accepted();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

/// Workers with an incarnation: the order decides, and nobody has to die first.
pub fn a_newer_incarnation_replaces_a_living_older_one_which_never_returns(start: Start<'_>) {
    let server = start(Options::default());
    let address = server.address();
    let (old, new) = (Worker::start(), Worker::start());
    let named = |worker: &Worker, engine: &str, tp: u32, incarnation: u64| {
        with(worker.registration(engine, [0, tp, 0]), &json!({ "incarnation": incarnation }))
    };
    // The numbers are random: the order is not theirs.
    register(&address, &named(&old, "a", 0, u64::MAX)).accepted();
    register(&address, &named(&new, "a", 0, 3)).accepted();
    let late = register(&address, &named(&old, "a", 0, u64::MAX));
    late.refused(
        409,
        "incarnation ffffffffffffffff of dp 0 tp 0 pp 0 was replaced by 000000000000",
    );
    register(&address, &named(&new, "a", 0, 3)).accepted();
    let table = query(&address).json();
    assert_eq!(table["0"]["worker_addr"]["0"]["0"], new.address());
    assert_eq!(table["0"]["incarnation"], json!({ "0": { "0": 3 } }));
    // The whole engine, under another name; a rank of the old one that comes late.
    register(&address, &named(&new, "b", 1, 4)).accepted();
    register(&address, &named(&old, "a", 2, 5)).refused(400, "engine \"b\" has it");
    assert_eq!(query(&address).json()["0"]["worker_addr"], json!({ "1": { "0": new.address() } }));
}

/// Their probes run at the same time.
pub fn of_many_who_want_the_rank_of_a_dead_worker_one_gets_it(start: Start<'_>) {
    let server = start(Options::default());
    let address = server.address();
    let workers: Vec<_> = (0..8).map(|_| Worker::start()).collect();
    for round in 0..8_u32 {
        let rank = [round, 0, 0];
        register(&address, &registration("a", rank, &dead_address())).accepted();
        let answers: Vec<_> = std::thread::scope(|scope| {
            let ask = |worker: &Worker| {
                let (address, registration) = (address.clone(), worker.registration("a", rank));
                scope.spawn(move || register(&address, &registration))
            };
            let asking: Vec<_> = workers.iter().map(ask).collect();
            asking.into_iter().map(|asked| asked.join().expect("an answer")).collect()
        });
        let got: Vec<_> = workers
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| answer.status == 200)
            .map(|(worker, _)| worker.address())
            .collect();
        assert_eq!(got.len(), 1, "{answers:?}");
        let listed = &query(&address).json()[round.to_string()]["worker_addr"]["0"]["0"];
        assert_eq!(listed, &got[0]);
        for answer in answers.iter().filter(|answer| answer.status != 200) {
            answer.refused(400, &format!("{} has it and accepts connections", got[0]));
        }
    }
}
