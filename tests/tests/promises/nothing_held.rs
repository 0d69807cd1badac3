//! Promise 10: after shutdown nothing is held, and an idle engine costs next to nothing.

use std::time::{Duration, Instant};

use kvferry_tests::command::{Answer, Command, Held, Setup};
use kvferry_tests::process::{Cache, Process, bare, pull, push, usage_of};

/// A share of a core that an idle engine with ten peers may take: a thousandth is the goal, and
/// what is asserted leaves room for a busy machine.
const IDLE_SHARE: f64 = 0.005;

pub(super) fn shut_down(process: &mut Process) -> Held {
    let began = Instant::now();
    assert!(matches!(process.tell(&Command::Shutdown { patience_ms: 500 }), Answer::Ok));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    process.held()
}

pub(super) fn assert_as_before(held: &Held, before: &Held) {
    assert_eq!(
        (held.descriptors, held.threads, held.memfds),
        (before.descriptors, before.threads, 0)
    );
}

#[test]
fn a_process_holds_after_shutdown_what_it_held_before_its_engine() {
    let before = bare();
    assert_eq!(before.threads, 1, "the main thread");
    assert_eq!(before.memfds, 0);
    let mut target = super::start();
    let mut initiator = super::start();
    initiator.connect(&target);
    for _ in 0..3 {
        assert!(initiator.transfer(push(&target, 256)).is_done());
        assert!(initiator.transfer(pull(&target, 256)).is_done());
    }
    assert_as_before(&shut_down(&mut initiator), &before);
    target.await_held("free of lanes", |held| held.lanes_accepted == 0);
    assert_as_before(&shut_down(&mut target), &before);
}

#[test]
fn idle_lanes_close_and_the_first_transfer_after_them_works() {
    let setup = || Setup { idle_ms: Some(300), ..Setup::default() };
    let mut target = super::start_with(setup(), Cache::default());
    let mut initiator = super::start_with(setup(), Cache::default());
    initiator.connect(&target);
    initiator.fill(0..256, 1);
    assert!(initiator.transfer(push(&target, 256)).is_done());
    initiator.await_held("resting", |held| held.lanes_opened == 0);
    target.await_held("resting", |held| held.lanes_accepted == 0);
    initiator.fill(0..256, 2);
    let began = Instant::now();
    assert!(initiator.transfer(push(&target, 256)).is_done());
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    target.assert_holds(0..256, 2);
}

#[test]
fn an_idle_engine_with_ten_connected_peers_sleeps() {
    let targets: Vec<_> = (0..10).map(|_| super::start()).collect();
    let mut initiator = super::start();
    for target in &targets {
        initiator.connect(target);
    }
    assert!(initiator.transfer(push(&targets[0], 256)).is_done());
    initiator.await_held("connected", |held| held.lanes_opened == 20);
    // Looked at from outside: to answer a question costs it more than to be idle.
    let pid = initiator.pid().as_raw_nonzero().to_string();
    let cpu_ns = || usage_of(&pid).unwrap().cpu_ns;
    let (began, before) = (Instant::now(), cpu_ns());
    std::thread::sleep(Duration::from_secs(6));
    let spent = Duration::from_nanos(cpu_ns() - before);
    let share = spent.as_secs_f64() / began.elapsed().as_secs_f64();
    println!("an idle engine with ten peers takes {:.4} % of a core", share * 100.0);
    assert!(share < IDLE_SHARE, "{share}");
}
