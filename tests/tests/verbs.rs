//! Verbs, on the adapters of `tests/rdma/guest.py`: two rails with two ends each, packets that travel,
//! links that can be cut. `make test-rdma` runs them there; anywhere else they are left out.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use kvferry_tests::verbs::{CAPACITY, Offer, PATIENCE, Side};
use kvferry_transport::rdma::device::PortNumber;
use kvferry_transport::rdma::verbs::{
    DeviceEvent, LocalSpan, Operation, Outcome, QueuePair, RemoteAddress, Status, VerbsError, Work,
};

const BLOCK: u32 = 4096;

/// The other process, at the other end of the first rail.
struct Peer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    offer: Offer,
}

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_kvferry-test-verbs"))
}

impl Peer {
    fn start(device: &str, bytes: usize, fill: u8) -> Self {
        let mut child = Command::new(program())
            .args(["serve", device, &bytes.to_string(), &fill.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the peer starts");
        let stdin = child.stdin.take().expect("piped");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let offer = serde_json::from_str(&line(&mut stdout)).expect("an offer");
        Self { child, stdin, stdout, offer }
    }

    fn tell(&mut self, what: &str) -> String {
        writeln!(self.stdin, "{what}").expect("the peer listens");
        line(&mut self.stdout)
    }

    /// Connects a queue pair of `side` to the one that was offered last.
    fn connect(&mut self, side: &Side) -> QueuePair {
        let pair = side.pair().expect("a queue pair");
        let ours = serde_json::to_string(&side.offer(&pair)).expect("JSON");
        assert_eq!(self.tell(&ours), "\"connected\"");
        self.offer.connect(pair).expect("connected")
    }

    fn content(&mut self, offset: u64, bytes: usize) -> Vec<u8> {
        let said = self.tell(&format!("read {offset} {bytes}"));
        serde_json::from_str(&said).expect("bytes")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("the peer answers");
    line.trim_end().to_owned()
}

/// Two ends of the first rail, connected.
fn rail(bytes: usize, fill: u8) -> (Side, Peer, QueuePair) {
    let mut peer = Peer::start("rxe_b0", bytes, fill);
    let side = Side::open("rxe_a0", bytes).expect("the near end");
    let pair = peer.connect(&side);
    (side, peer, pair)
}

fn write<'a>(id: u64, from: &'a [LocalSpan<'a>], to: RemoteAddress) -> Work<'a> {
    Work { id, signaled: true, operation: Operation::Write { from, to } }
}

fn read<'a>(id: u64, from: RemoteAddress, into: &'a [LocalSpan<'a>]) -> Work<'a> {
    Work { id, signaled: true, operation: Operation::Read { from, into } }
}

fn announce(id: u64, word: u32) -> Work<'static> {
    Work { id, signaled: true, operation: Operation::Announce { word } }
}

fn outcomes(side: &Side, count: usize) -> Vec<(u64, Outcome)> {
    let ends = side.completions(count).expect("completions");
    ends.iter().map(|end| (end.id, end.outcome)).collect()
}

fn system(command: &str) {
    let status = Command::new("sh").args(["-c", command]).status().expect("a shell");
    assert!(status.success(), "{command}: {status}");
}

/// How many of a kind the kernel counts: queue pairs, completion queues, regions, domains.
fn resources() -> String {
    let said = Command::new("rdma").args(["resource", "show"]).output().expect("rdma");
    String::from_utf8_lossy(&said.stdout).into_owned()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("descriptors").count()
}

#[test]
#[ignore = "needs the adapters of the guest: make test-rdma"]
fn scattered_writes_are_in_place_when_they_are_announced() {
    let (side, mut peer, pair) = rail(1 << 20, 0);
    let blocks = 48;
    let numbers: Vec<u8> = (0..blocks).map(|block| block * 5 + 1).collect();
    for (index, &number) in (0..).zip(&numbers) {
        side.memory.copy_in(index * 4096, &[number; BLOCK as usize]).expect("filled");
    }
    // Each request gathers two blocks that lie apart, and writes them one after another.
    let spans: Vec<[LocalSpan<'_>; 2]> = (0..u64::from(blocks) / 2)
        .map(|at| [side.span(at * 4096, BLOCK), side.span((at + 24) * 4096, BLOCK)])
        .collect();
    let mut work: Vec<Work<'_>> = (0..)
        .zip(&spans)
        .map(|(at, spans)| Work { signaled: false, ..write(at, spans, peer.offer.at(at * 8192)) })
        .collect();
    work.push(announce(99, 7));
    pair.post(&work).expect("posted");
    assert_eq!(outcomes(&side, 1), [(99, Outcome::Done)], "one signal for all of them");
    assert_eq!(peer.tell("announced 1"), r#"["Announced { word: 7 }"]"#);
    for at in 0..usize::from(blocks) / 2 {
        let content = peer.content(at as u64 * 8192, 8192);
        let (first, second) = content.split_at(4096);
        assert_eq!(first, [numbers[at]; 4096], "request {at}");
        assert_eq!(second, [numbers[at + 24]; 4096], "request {at}");
    }
}

#[test]
#[ignore = "needs the adapters of the guest: make test-rdma"]
fn a_read_brings_what_the_peer_has_to_spans_that_lie_apart() {
    let (side, peer, pair) = rail(1 << 20, 0xc7);
    let into = [side.span(10, 100), side.span(70_000, 5000)];
    pair.post(&[read(3, peer.offer.at(4000), &into)]).expect("posted");
    assert_eq!(outcomes(&side, 1), [(3, Outcome::Done)]);
    for (offset, bytes) in [(10, 100), (70_000, 5000)] {
        let mut around = vec![0; bytes + 2];
        side.memory.copy_out(offset - 1, &mut around).expect("read");
        assert_eq!(around[1..=bytes], vec![0xc7; bytes]);
        assert_eq!((around[0], around[bytes + 1]), (0, 0), "nothing beside the span");
    }
}

#[test]
#[ignore = "needs the adapters of the guest: make test-rdma"]
fn a_wrong_key_changes_nothing_and_ends_the_queue_pair_but_not_its_neighbour() {
    let (side, mut peer, pair) = rail(1 << 16, 0x11);
    peer.offer = serde_json::from_str(&peer.tell("again")).expect("an offer");
    let neighbour = peer.connect(&side);
    side.memory.copy_in(0, &[0x22; 100]).expect("filled");
    let from = [side.span(0, 100)];
    let RemoteAddress { address, key } = peer.offer.at(0);
    let wrong = RemoteAddress { address, key: key ^ 0x0101 };
    pair.post(&[write(1, &from, wrong), write(2, &from, peer.offer.at(0))]).expect("posted");
    let ends = outcomes(&side, 2);
    let failed = |status| move |end: &Outcome| matches!(end, Outcome::Failed { status: found, .. } if *found == status);
    assert!(ends[0].0 == 1 && failed(Status::RemoteAccess)(&ends[0].1), "{ends:?}");
    assert!(ends[1].0 == 2 && failed(Status::Flushed)(&ends[1].1), "{ends:?}");
    assert_eq!(peer.content(0, 100), [0x11; 100], "neither has changed anything");
    neighbour.post(&[write(3, &from, peer.offer.at(0))]).expect("posted");
    assert_eq!(outcomes(&side, 1), [(3, Outcome::Done)]);
    assert_eq!(peer.content(0, 100), [0x22; 100]);
}

#[test]
#[ignore = "needs the adapters of the guest: make test-rdma"]
fn a_killed_peer_is_noticed_by_its_silence() {
    let (side, mut peer, pair) = rail(1 << 16, 0);
    peer.child.kill().expect("killed");
    let status = peer.child.wait().expect("reaped");
    assert_eq!(status.signal(), Some(9));
    let from = [side.span(0, 100)];
    let began = Instant::now();
    pair.post(&[write(1, &from, peer.offer.at(0))]).expect("posted");
    let ends = outcomes(&side, 1);
    assert!(matches!(ends[0].1, Outcome::Failed { status: Status::Unanswered, .. }), "{ends:?}");
    assert!(began.elapsed() < PATIENCE / 2, "seven times 67 ms, and an emulated machine");
}

#[test]
#[ignore = "needs the adapters of the guest: make test-rdma"]
fn a_link_that_goes_down_is_told_and_so_is_its_return() {
    // On the second rail, so that nobody else's packets are lost.
    let mut peer = Peer::start("rxe_b1", 1 << 16, 0);
    let side = Side::open("rxe_a1", 1 << 16).expect("the near end");
    let pair = peer.connect(&side);
    let port = PortNumber(1);
    system("ip link set a1 down");
    await_event(&side, DeviceEvent::PortDown(port));
    assert!(!side.context.port(port).expect("it still answers").is_active);
    let refused = side.pair().expect_err("a port that is down");
    let refused = refused.downcast_ref::<VerbsError>().expect("of the verbs");
    assert!(matches!(refused, VerbsError::NotActive { .. }), "{refused}");
    let from = [side.span(0, 100)];
    pair.post(&[write(1, &from, peer.offer.at(0))]).expect("posted");
    let ends = outcomes(&side, 1);
    assert!(matches!(ends[0].1, Outcome::Failed { .. }), "{ends:?}");

    system("ip link set a1 up");
    system("ip neighbour replace 10.77.1.2 lladdr 02:77:00:00:01:0b dev a1 nud permanent");
    await_event(&side, DeviceEvent::PortActive(port));
    peer.offer = serde_json::from_str(&peer.tell("again")).expect("an offer");
    let again = peer.connect(&side);
    again.post(&[write(2, &from, peer.offer.at(0))]).expect("posted");
    assert_eq!(outcomes(&side, 1), [(2, Outcome::Done)], "a new queue pair works");
}

fn await_event(side: &Side, wanted: DeviceEvent) {
    let deadline = Instant::now() + PATIENCE;
    let mut others = Vec::new();
    while Instant::now() < deadline {
        match side.context.next_event().expect("events") {
            Some(event) if event == wanted => return,
            Some(event) => others.push(event),
            None => std::thread::yield_now(),
        }
    }
    panic!("{wanted:?} did not come, only {others:?}");
}

#[test]
#[ignore = "needs the adapters of the guest: make test-rdma"]
fn a_full_queue_pair_says_how_many_it_took_and_loses_none() {
    let (side, peer, pair) = rail(1 << 16, 0);
    let from = [side.span(0, 1024)];
    let most = 100 * CAPACITY.requests as usize;
    let work: Vec<Work<'_>> =
        (0..most as u64).map(|id| write(id, &from, peer.offer.at(0))).collect();
    let error = pair.post(&work).expect_err("more than there is room for");
    assert!(error.is_backpressure(), "{error}");
    let VerbsError::QueueFull { posted } = error else { panic!("{error}") };
    assert!((CAPACITY.requests as usize..most).contains(&posted), "{posted} of {most}");
    let ends = outcomes(&side, posted);
    let expected: Vec<_> = (0..posted as u64).map(|id| (id, Outcome::Done)).collect();
    assert_eq!(ends, expected, "in order, and all of them");
    pair.post(&work[..1]).expect("there is room again");
    assert_eq!(outcomes(&side, 1).len(), 1);
}

#[test]
#[ignore = "needs the adapters of the guest: make test-rdma"]
fn spans_outside_their_region_are_refused_before_anything_is_posted() {
    let (side, peer, pair) = rail(1 << 16, 0x33);
    let inside = [side.span(0, 16)];
    let outside = [side.span((1 << 16) - 8, 16)];
    let error = pair
        .post(&[write(1, &inside, peer.offer.at(0)), write(2, &outside, peer.offer.at(0))])
        .expect_err("eight bytes too many");
    assert!(error.to_string().contains("outside"), "{error}");
    pair.post(&[announce(9, 1)]).expect("posted");
    assert_eq!(outcomes(&side, 1), [(9, Outcome::Done)], "and nothing before it");
}

#[test]
#[ignore = "needs the adapters of the guest: make test-rdma"]
fn memory_that_may_not_be_locked_is_refused_with_limit_and_fix() {
    let said = Command::new("setpriv")
        .args(["--reuid", "65534", "--clear-groups", "prlimit", "--memlock=8388608"])
        .arg(program())
        .args(["register", "rxe_a0", "16777216"])
        .output()
        .expect("run");
    let why = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success());
    for part in ["16777216 bytes", "may lock 8388608 bytes", "ulimit -l unlimited", "LimitMEMLOCK"]
    {
        assert!(why.contains(part), "{part} is not in: {why}");
    }
}

#[test]
#[ignore = "needs the adapters of the guest: make test-rdma"]
fn everything_is_given_back_in_whatever_order_it_is_dropped() {
    // Once before, so that what the library keeps for ever is there.
    drop(Side::open("rxe_a0", 4096).expect("a side"));
    let (resources_before, descriptors_before) = (resources(), descriptors());
    for order in 0..3 {
        let near = Side::open("rxe_a0", 1 << 16).expect("a side");
        let far = Side::open("rxe_b0", 1 << 16).expect("a side");
        let (here, there) = (near.pair().expect("a pair"), far.pair().expect("a pair"));
        let (here_offer, there_offer) = (near.offer(&here), far.offer(&there));
        let here = there_offer.connect(here).expect("connected");
        let there = here_offer.connect(there).expect("connected");
        let from = [near.span(0, 4096)];
        here.post(&[write(1, &from, there_offer.at(0))]).expect("posted");
        let Side { context, domain, queue, memory, region } = near;
        match order {
            0 => drop((context, domain, queue, memory, region, here, there, far)),
            1 => drop((here, region, memory, queue, domain, context, far, there)),
            _ => drop((region, there, far, here, context, domain, memory, queue)),
        }
        assert_eq!(descriptors(), descriptors_before, "order {order}");
    }
    assert_eq!(resources(), resources_before);
}
