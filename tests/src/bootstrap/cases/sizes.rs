//! Tables that are not complete.

use serde_json::{Value, json};

use crate::bootstrap::http::{query, register};
use crate::bootstrap::server::{Options, Start};
use crate::bootstrap::worker::{Worker, registration, with};

fn sized(rank: [u32; 3], worker: &Worker) -> Value {
    let engine = format!("e{}", rank[0]);
    let sizes = json!({ "dp_size": 2, "tp_size": 2, "pp_size": 2 });
    with(worker.registration(&engine, rank), &sizes)
}

/// Every rank comes last once.
pub fn a_table_is_told_when_every_rank_is_there_in_whatever_order_they_come(start: Start<'_>) {
    let worker = Worker::start();
    let ranks: Vec<[u32; 3]> = (0..8).map(|n| [n >> 2 & 1, n >> 1 & 1, n & 1]).collect();
    for turn in 0..ranks.len() {
        let server = start(Options::default());
        let address = server.address();
        let mut order = ranks.clone();
        order.rotate_left(turn);
        if turn % 2 == 1 {
            order.reverse();
        }
        let last = order[7];
        for (nth, rank) in order.into_iter().enumerate() {
            if nth > 0 {
                let partial = query(&address);
                partial.refused(503, "ranks have not registered yet");
                assert!(partial.head.contains("retry-after: 1"), "{partial:?}");
            }
            if nth == 7 {
                let [dp, tp, pp] = last;
                query(&address).refused(
                    503,
                    &format!("1 ranks have not registered yet: dp {dp} tp {tp} pp {pp}"),
                );
            }
            register(&address, &sized(rank, &worker)).accepted();
        }
        let table = query(&address).json();
        for [dp, tp, pp] in &ranks {
            let engine = &table[dp.to_string()];
            let place = &engine["worker_addr"][tp.to_string()][pp.to_string()];
            assert_eq!(place, &worker.address(), "{table}");
        }
    }
}

/// In-tree consumers rely on it.
pub fn a_partial_table_without_sizes_is_told_as_in_tree_servers_do(start: Start<'_>) {
    let server = start(Options::default());
    let worker = Worker::start();
    register(&server.address(), &worker.registration("a", [0, 3, 0])).accepted();
    let answer = query(&server.address());
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["0"]["worker_addr"], json!({ "3": { "0": worker.address() } }));
}

/// While both live.
pub fn sizes_that_contradict_each_other_are_refused_with_both(start: Start<'_>) {
    let server = start(Options::default());
    let address = server.address();
    let worker = Worker::start();
    register(&address, &sized([0, 0, 0], &worker)).accepted();
    let other = |size: &str, rank| with(sized(rank, &worker), &json!({ size: 3 }));
    let clash = register(&address, &other("tp_size", [0, 1, 0]));
    clash.refused(400, "dp 0 tp 1 pp 0 of engine \"e0\" says tp_size 3");
    clash.refused(400, "dp 0 tp 0 pp 0 of engine \"e0\"");
    clash.refused(400, "says 2: start both with the same");
    register(&address, &other("pp_size", [0, 1, 0])).refused(400, "says pp_size 3");
    register(&address, &other("dp_size", [1, 0, 0])).refused(400, "says dp_size 3");
    let outside = registration("e0", [0, 2, 0], &worker.address());
    register(&address, &outside).refused(400, "does not exist where tp_size is 2");
    // Whoever is gone is in nobody's way.
    drop(worker);
    let worker = Worker::start();
    register(&address, &with(sized([0, 1, 0], &worker), &json!({ "tp_size": 3 }))).accepted();
}
