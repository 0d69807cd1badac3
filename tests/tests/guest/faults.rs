//! What happens to links and peers while transfers are under way, over both rails.

use std::process::Command as Program;
use std::time::{Duration, Instant};

use kvferry_engine::Transport;
use kvferry_tests::command::{Answer, Command, End, Move, Setup};
use kvferry_tests::process::{Cache, Process, pull, push};

/// Blocks of a cache that takes a while to move: 32 MiB, half a second at what these adapters do.
const COUNT: u32 = 512;

/// How long a transfer may take here: everything is emulated.
const PATIENCE: Duration = Duration::from_secs(60);

fn side(devices: &str) -> Process {
    let setup = Setup { rdma_devices: Some(devices.into()), ..Setup::default() };
    let cache = Cache { blocks: COUNT.into(), block_bytes: 64 << 10, share: true };
    Process::start_over(Transport::Rdma, setup, cache)
}

/// A target at the far ends of both rails, and an initiator at the near ones that knows it.
fn rails() -> (Process, Process) {
    let target = side("rxe_b0,rxe_b1");
    let mut initiator = side("rxe_a0,rxe_a1");
    initiator.connect(&target);
    (target, initiator)
}

/// With as much time as an emulated machine may need.
fn patient(what: Move) -> Move {
    Move { deadline_ms: Some(50_000), ..what }
}

fn system(command: &str) {
    let status = Program::new("sh").args(["-c", command]).status().unwrap();
    assert!(status.success(), "{command}: {status}");
}

/// A fault that is mended when this goes, whatever becomes of the test.
struct Fault(&'static str);

impl Fault {
    fn new(begin: &str, end: &'static str) -> Self {
        system(begin);
        Self(end)
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        system(self.0);
    }
}

/// The near end of the first rail is down.
fn link_down() -> Fault {
    Fault::new(
        "ip link set a0 down",
        "ip link set a0 up && \
         ip neighbour replace 10.77.0.2 lladdr 02:77:00:00:00:0b dev a0 nud permanent",
    )
}

/// Whatever comes by the first rail is lost, in silence, both ways.
fn blackhole() -> Fault {
    Fault::new(
        "for end in a0 b0; do tc qdisc add dev $end clsact && \
         tc filter add dev $end ingress matchall action drop; done",
        "for end in a0 b0; do tc qdisc del dev $end clsact; done",
    )
}

/// What leaves the near ends comes two seconds later.
fn delay() -> Fault {
    Fault::new(
        "for rail in 0 1; do tc qdisc add dev a$rail root netem delay 2000ms; done",
        "for rail in 0 1; do tc qdisc del dev a$rail root; done",
    )
}

fn assert_done(end: &End) {
    assert!(end.is_done(), "{end:?}");
    assert_eq!(end.transport(), "rdma");
}

#[test]
fn transfers_go_on_by_the_other_rail_when_one_goes_down_and_by_both_when_it_is_back() {
    let (mut target, mut initiator) = rails();
    for (seed, begin) in [(1, link_down as fn() -> Fault), (3, blackhole)] {
        initiator.fill(0..COUNT, seed);
        target.fill(0..COUNT, seed + 1);
        initiator.submit("push", patient(push(&target, COUNT)));
        std::thread::sleep(Duration::from_millis(200));
        let fault = begin();
        let end = initiator.wait("push", PATIENCE);
        assert_done(&end);
        target.assert_holds(0..COUNT, seed);
        // And whatever begins meanwhile.
        target.fill(0..COUNT, seed + 1);
        assert_done(&initiator.transfer(patient(pull(&target, COUNT))));
        initiator.assert_holds(0..COUNT, seed + 1);
        drop(fault);
        initiator.fill(0..COUNT, seed);
        assert_done(&initiator.transfer(patient(push(&target, COUNT))));
        target.assert_holds(0..COUNT, seed);
    }
}

#[test]
fn a_write_that_is_delayed_and_cancelled_changes_nothing_of_what_its_blocks_hold_then() {
    let (mut target, mut initiator) = rails();
    initiator.fill(0..COUNT, 1);
    // Lanes are open, and work.
    assert_done(&initiator.transfer(patient(push(&target, 4))));
    target.fill(0..COUNT, 2);
    let fault = delay();
    initiator.submit("late", patient(push(&target, COUNT)));
    std::thread::sleep(Duration::from_millis(100));
    initiator.ok(&Command::Cancel { name: "late".into() });
    let end = initiator.wait("late", PATIENCE);
    assert_eq!((end.cause(), end.remote()), ("Cancelled", "fenced"), "{end:?}");
    // From here on the blocks are the target's alone.
    target.fill(0..COUNT, 3);
    std::thread::sleep(Duration::from_secs(3));
    target.assert_holds(0..COUNT, 3);
    drop(fault);
    assert_done(&initiator.transfer(patient(push(&target, COUNT))));
    target.assert_holds(0..COUNT, 1);
}

#[test]
fn packets_that_are_lost_are_sent_again_by_the_adapters() {
    let (mut target, mut initiator) = rails();
    initiator.fill(0..COUNT, 1);
    let _fault = Fault::new(
        "for end in a0 b0; do tc qdisc add dev $end clsact && tc filter add dev $end ingress \
         matchall action pass random netrand drop 200; done",
        "for end in a0 b0; do tc qdisc del dev $end clsact; done",
    );
    assert_done(&initiator.transfer(patient(push(&target, COUNT))));
    target.assert_holds(0..COUNT, 1);
}

#[test]
fn who_is_killed_in_the_middle_leaves_a_peer_that_serves_the_next() {
    let (mut target, mut initiator) = rails();
    initiator.fill(0..COUNT, 1);
    target.fill(0..COUNT, 2);
    initiator.submit("push", patient(push(&target, COUNT)));
    std::thread::sleep(Duration::from_millis(100));
    drop(initiator);
    target.await_held("rid of its lanes", |held| held.lanes_accepted == 0);
    let mut next = side("rxe_a0,rxe_a1");
    next.connect(&target);
    next.fill(0..COUNT, 3);
    assert_done(&next.transfer(patient(push(&target, COUNT))));
    target.assert_holds(0..COUNT, 3);

    // The owner of the source is killed under the reader.
    next.submit("pull", patient(pull(&target, COUNT)));
    std::thread::sleep(Duration::from_millis(100));
    drop(target);
    let began = Instant::now();
    let end = next.wait("pull", PATIENCE);
    assert!(!end.is_done() && began.elapsed() < PATIENCE / 2, "{end:?}");
    assert!(matches!(next.tell(&Command::Shutdown { patience_ms: 500 }), Answer::Ok));
}
