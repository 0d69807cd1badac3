//! Both rails: engines at their ends, faults that are mended, and what their adapters hold.

use std::process::Command as Program;
use std::time::{Duration, Instant};

use kvferry_engine::Transport;
use kvferry_tests::command::{End, Move, Setup};
use kvferry_tests::process::{Cache, Process};

/// Blocks of a cache that takes a while to move: 16 MiB, 150 ms and more at what these adapters do.
pub(crate) const COUNT: u32 = 256;

/// How long a transfer may take here: everything is emulated.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What is owned by one who grants it.
pub(crate) const OWN: Cache = Cache { blocks: COUNT as u64, block_bytes: 64 << 10, share: false };

/// What everybody may touch.
pub(crate) const SHARED: Cache = Cache { share: true, ..OWN };

/// Both adapters at the near ends, and both at the far ones.
pub(crate) const NEAR: &str = "rxe_a0,rxe_a1";
pub(crate) const FAR: &str = "rxe_b0,rxe_b1";

pub(crate) fn side(devices: &str, cache: Cache) -> Process {
    side_with(devices, Setup::default(), cache)
}

pub(crate) fn side_with(devices: &str, setup: Setup, cache: Cache) -> Process {
    let setup = Setup { rdma_devices: Some(devices.into()), ..setup };
    Process::start_over(Transport::Rdma, setup, cache)
}

/// A target at the far ends of both rails, and an initiator at the near ones that knows it.
pub(crate) fn rails() -> (Process, Process) {
    let target = side(FAR, SHARED);
    let mut initiator = side(NEAR, SHARED);
    initiator.connect(&target);
    (target, initiator)
}

/// With as much time as an emulated machine may need.
pub(crate) fn patient(what: Move) -> Move {
    Move { deadline_ms: Some(50_000), ..what }
}

pub(crate) fn assert_done(end: &End) {
    assert!(end.is_done(), "{end:?}");
    assert_eq!(end.transport(), "rdma");
}

/// Waits until the first block of a transfer has landed: it is under way, and far from over.
pub(crate) fn await_first(process: &mut Process, seed: u64) {
    let began = Instant::now();
    while !process.wrong(&[(0, 0)], seed).is_empty() {
        assert!(began.elapsed() < PATIENCE, "nothing lands");
    }
}

fn system(command: &str) {
    let status = Program::new("sh").args(["-c", command]).status().unwrap();
    assert!(status.success(), "{command}: {status}");
}

/// A fault that is mended when this goes, whatever becomes of the test.
pub(crate) struct Fault(&'static str);

impl Fault {
    pub(crate) fn new(begin: &str, end: &'static str) -> Self {
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
pub(crate) fn link_down() -> Fault {
    Fault::new(
        "ip link set a0 down",
        "ip link set a0 up && \
         ip neighbour replace 10.77.0.2 lladdr 02:77:00:00:00:0b dev a0 nud permanent",
    )
}

/// The near end of the first rail has no address any more, and with it its adapter no name.
pub(crate) fn address_removed() -> Fault {
    Fault::new(
        "ip address del 10.77.0.1/24 dev a0",
        "ip address add 10.77.0.1/24 dev a0 && \
         ip neighbour replace 10.77.0.2 lladdr 02:77:00:00:00:0b dev a0 nud permanent",
    )
}

/// Whatever comes by the first rail is lost, in silence, both ways.
pub(crate) fn blackhole() -> Fault {
    Fault::new(
        "for end in a0 b0; do tc qdisc add dev $end clsact && \
         tc filter add dev $end ingress matchall action drop; done",
        "for end in a0 b0; do tc qdisc del dev $end clsact; done",
    )
}

/// What leaves the near ends comes two seconds later.
pub(crate) fn delay() -> Fault {
    Fault::new(
        "for rail in 0 1; do tc qdisc add dev a$rail root netem delay 2000ms; done",
        "for rail in 0 1; do tc qdisc del dev a$rail root; done",
    )
}

/// What leaves the near ends comes a quarter of a second later, and yet before it is sent again for good.
pub(crate) fn slow() -> Fault {
    Fault::new(
        "for rail in 0 1; do tc qdisc add dev a$rail root netem delay 250ms limit 100000; done",
        "for rail in 0 1; do tc qdisc del dev a$rail root; done",
    )
}

/// What leaves the near end of the second rail comes later, and yet before it is sent again for good.
pub(crate) fn second_delayed() -> Fault {
    Fault::new(
        "tc qdisc add dev a1 root netem delay 150ms limit 100000",
        "tc qdisc del dev a1 root",
    )
}

/// Every object that somebody has made with the adapters, by their kinds, as the kernel counts them.
pub(crate) fn resources() -> String {
    let output = Program::new("rdma").args(["resource", "show"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Waits until there are as many as before.
pub(crate) fn await_resources(before: &str) {
    let began = Instant::now();
    loop {
        let now = resources();
        if now == before {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "before:\n{before}now:\n{now}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
