//! Peer processes: started, told, stopped, woken, killed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command as Program, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use kvferry_engine::Transport;

use crate::command::{Answer, Command, End, Held, Move, Setup, Way};
use crate::proxy::Proxy;

/// How long a peer may take to answer, beyond what it was told to wait.
const ANSWER: Duration = Duration::from_secs(30);

/// A process with an engine. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Closed to have it end by itself.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    /// Where its engine is reached.
    pub address: String,
    /// Its incarnation.
    pub incarnation: u64,
    /// Where it accepts lanes.
    pub lane_port: u16,
    /// Where the bootstrap server beside its engine is reached.
    pub bootstrap: Option<String>,
}

/// A cache: how many blocks, how long each, and whether every peer may read and write them.
#[derive(Clone, Copy, Debug)]
pub struct Cache {
    /// How many blocks.
    pub blocks: u64,
    /// How long each is, in bytes.
    pub block_bytes: u64,
    /// Whether there is a standing grant.
    pub share: bool,
}

impl Default for Cache {
    fn default() -> Self {
        Self { blocks: 256, block_bytes: 4096, share: true }
    }
}

/// Settings of a peer that uses this transport and no other, unless they name one.
#[must_use]
pub fn over(transport: Transport, setup: Setup) -> Setup {
    Setup {
        transport: setup.transport.or(Some(transport.to_string())),
        run_directory: setup.run_directory.or(Some(run_directory())),
        ..setup
    }
}

/// Names what carries transfers of peers and engines whose settings do not say it: tests that are of no
/// transport in particular run over each that way. Without it that is TCP.
pub const OVER_VARIABLE: &str = "KVFERRY_TESTS_OVER";

/// What [`OVER_VARIABLE`] says.
///
/// # Panics
/// Where it names no transport.
#[must_use]
pub fn over_by_environment() -> Option<Transport> {
    let name = std::env::var(OVER_VARIABLE).ok()?;
    let found = Transport::named(&name);
    Some(found.unwrap_or_else(|| panic!("{OVER_VARIABLE}={name} names no transport")))
}

/// Settings of a peer with an adapter of the first rail of `tests/rdma/guest.py`, unless they name some:
/// at the far end and at the near end, in turn.
#[must_use]
pub fn at_a_rail(setup: Setup) -> Setup {
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let is_far = STARTED.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
    let devices = if is_far { "rxe_b0" } else { NEAR_DEVICE };
    Setup { rdma_devices: setup.rdma_devices.or(Some(devices.into())), ..setup }
}

/// The adapter at the near end of the first rail.
pub const NEAR_DEVICE: &str = "rxe_a0";

fn by_environment(setup: Setup) -> Setup {
    match over_by_environment() {
        Some(transport) if setup.transport.is_none() => {
            let setup = over(transport, setup);
            if transport == Transport::Rdma { at_a_rail(setup) } else { setup }
        }
        _ => setup,
    }
}

/// Where peers meet that are to meet: one directory for all tests of a user, made by the first.
#[must_use]
pub fn run_directory() -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    std::env::temp_dir().join(format!("kvferry-tests-{user}"))
}

fn binary() -> PathBuf {
    beside("kvferry-test-peer")
}

/// A program that is built with the tests.
pub(crate) fn beside(name: &str) -> PathBuf {
    // Test binaries lie in `deps`, beside which cargo puts the binaries of their package.
    let mut path = std::env::current_exe().expect("a test has a path");
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.join(name)
}

impl Process {
    /// Starts a peer with default settings and a small shared cache.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(Setup::default(), Cache::default())
    }

    /// Starts a peer.
    #[must_use]
    pub fn start_with(setup: Setup, cache: Cache) -> Self {
        Self::start_under(Program::new(binary()), setup, cache)
    }

    /// Starts a peer that uses this transport and no other, unless its settings name one.
    #[must_use]
    pub fn start_over(transport: Transport, setup: Setup, cache: Cache) -> Self {
        Self::start_with(over(transport, setup), cache)
    }

    /// Starts a peer whose lanes others reach through `proxy`.
    #[must_use]
    pub fn start_behind(proxy: &Proxy, setup: Setup, cache: Cache) -> Self {
        let setup = Setup { lane_advertise: Some(proxy.address()), ..setup };
        let process = Self::start_with(setup, cache);
        proxy.lead_to(process.lane_port);
        process
    }

    /// Starts a peer by a program that runs another: its arguments end with the peer's path.
    #[must_use]
    pub fn start_wrapped(program: &str, arguments: &[&str], setup: Setup, cache: Cache) -> Self {
        let mut program = Program::new(program);
        program.args(arguments).arg(binary());
        Self::start_under(program, setup, cache)
    }

    fn start_under(mut program: Program, setup: Setup, cache: Cache) -> Self {
        let mut child = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{program:?}: {error}"));
        let stdin = Some(child.stdin.take().expect("it is piped"));
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let setup = by_environment(setup);
        let (address, incarnation, lane_port) = (String::new(), 0, 0);
        let mut process =
            Self { child, stdin, stdout, address, incarnation, lane_port, bootstrap: None };
        let Cache { blocks, block_bytes, share } = cache;
        let start = Command::Start { setup, blocks, block_bytes, share };
        match process.tell(&start) {
            Answer::Started { address, lane_port, incarnation, bootstrap } => {
                (process.address, process.lane_port) = (address, lane_port);
                (process.incarnation, process.bootstrap) = (incarnation, bootstrap);
            }
            other => panic!("{start:?}: {other:?}"),
        }
        process
    }

    /// Tells it something, and waits for its answer.
    pub fn tell(&mut self, command: &Command) -> Answer {
        self.tell_only(command);
        self.answer()
    }

    /// Tells it something; [`Process::answer`] has to follow.
    pub fn tell_only(&mut self, command: &Command) {
        let line = serde_json::to_string(command).expect("a command is plain data");
        let stdin = self.stdin.as_mut().expect("it was not asked to end");
        writeln!(stdin, "{line}").expect("the peer reads its commands");
    }

    /// Its next answer.
    pub fn answer(&mut self) -> Answer {
        let mut line = String::new();
        let read = self.stdout.read_line(&mut line).expect("the peer answers");
        assert!(read > 0, "the peer has ended: {:?}", self.child.try_wait());
        serde_json::from_str(&line).expect("an answer is plain data")
    }

    /// Tells it something that has to go well.
    pub fn ok(&mut self, command: &Command) {
        match self.tell(command) {
            Answer::Ok => {}
            other => panic!("{command:?}: {other:?}"),
        }
    }

    /// Connects to another, and looks up its layout.
    pub fn connect(&mut self, other: &Self) {
        self.ok(&Command::Connect { address: other.address.clone() });
    }

    /// Fills blocks with the contents called `seed`.
    pub fn fill(&mut self, blocks: std::ops::Range<u32>, seed: u64) {
        self.ok(&Command::Fill { blocks, seed });
    }

    /// Asserts that blocks hold the contents called `seed`, each of its own place.
    #[track_caller]
    pub fn assert_holds(&mut self, blocks: std::ops::Range<u32>, seed: u64) {
        let pairs: Vec<_> = blocks.map(|block| (block, block)).collect();
        self.assert_holds_pairs(&pairs, seed);
    }

    /// Asserts that blocks hold what belongs to others in the contents called `seed`.
    #[track_caller]
    pub fn assert_holds_pairs(&mut self, blocks: &[(u32, u32)], seed: u64) {
        let wrong = self.wrong(blocks, seed);
        assert!(wrong.is_empty(), "{} blocks do not hold {seed}: {wrong:?}", wrong.len());
    }

    /// The blocks that hold something else than the contents called `seed`.
    pub fn wrong(&mut self, blocks: &[(u32, u32)], seed: u64) -> Vec<u32> {
        match self.tell(&Command::Check { blocks: blocks.to_vec(), seed }) {
            Answer::Wrong(wrong) => wrong,
            other => panic!("{other:?}"),
        }
    }

    /// Submits a transfer.
    pub fn submit(&mut self, name: &str, what: Move) {
        self.ok(&Command::Submit { name: name.into(), what });
    }

    /// Waits for a transfer's end.
    pub fn wait(&mut self, name: &str, patience: Duration) -> End {
        let patience_ms = u64::try_from(patience.as_millis()).expect("it is short");
        match self.tell(&Command::Wait { name: name.into(), patience_ms }) {
            Answer::End(end) => end,
            other => panic!("{other:?}"),
        }
    }

    /// Submits a transfer and waits for its end.
    pub fn transfer(&mut self, what: Move) -> End {
        match self.tell(&Command::Submit { name: "t".into(), what }) {
            Answer::Ok => self.wait("t", ANSWER),
            Answer::Error { cause, message, retryable } => {
                End::Failed { cause, message, remote: "untouched".into(), retryable }
            }
            other => panic!("{other:?}"),
        }
    }

    /// Grants blocks to another for a minute. Returns the ticket.
    pub fn grant(
        &mut self,
        name: &str,
        blocks: std::ops::Range<u32>,
        to: &Self,
        write: bool,
    ) -> Vec<u8> {
        self.grant_to(name, blocks, to.incarnation, write, Duration::from_secs(60))
    }

    /// Grants blocks to whoever is of this incarnation. Returns the ticket.
    pub fn grant_to(
        &mut self,
        name: &str,
        blocks: std::ops::Range<u32>,
        peer: u64,
        write: bool,
        ttl: Duration,
    ) -> Vec<u8> {
        let ttl_ms = u64::try_from(ttl.as_millis()).expect("no grant is for so long");
        match self.tell(&Command::Grant { name: name.into(), blocks, peer, write, ttl_ms }) {
            Answer::Ticket(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    /// Revokes a grant. Returns how long that took.
    pub fn revoke(&mut self, name: &str) -> Duration {
        let began = Instant::now();
        self.ok(&Command::Revoke { name: name.into() });
        began.elapsed()
    }

    /// What it holds.
    pub fn held(&mut self) -> Held {
        match self.tell(&Command::Status) {
            Answer::Held(held) => held,
            other => panic!("{other:?}"),
        }
    }

    /// Asks until what it holds is as wanted; panics after ten seconds.
    #[track_caller]
    pub fn await_held(&mut self, what: &str, wanted: impl Fn(&Held) -> bool) -> Held {
        let began = Instant::now();
        loop {
            let held = self.held();
            if wanted(&held) {
                return held;
            }
            assert!(began.elapsed() < Duration::from_secs(10), "never {what}: {held:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until no lane that others opened to it has more than so many bytes which it has not
    /// read: for one that is stopped, until those with more are reset.
    pub fn await_unread(&self, most: u64) {
        let began = Instant::now();
        let port = format!(":{:04X}", self.lane_port);
        // Local address, remote address, state, and bytes to be sent and to be read, in hex.
        let unread = |line: &str| {
            let mut fields = line.split_whitespace().skip(1);
            let is_ours = fields.next().is_some_and(|local| local.ends_with(&port));
            let (_, unread) = fields.nth(2).filter(|_| is_ours)?.split_once(':')?;
            u64::from_str_radix(unread, 16).ok()
        };
        loop {
            let sockets = fs::read_to_string("/proc/net/tcp").expect("the kernel tells");
            let largest = sockets.lines().filter_map(unread).max();
            if largest.is_none_or(|largest| largest <= most) {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(10), "{largest:?} bytes are unread");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Stops it, and returns when every thread of it has stopped: its sockets live, it does not.
    pub fn stop(&self) {
        stop(self.pid());
    }

    /// Wakes it after [`Process::stop`].
    pub fn wake(&self) {
        kill_process(self.pid(), Signal::CONT).expect("it is stopped");
    }

    /// Has it end by itself, with whatever is under way. Returns how long that took.
    pub fn leave(mut self) -> Duration {
        let began = Instant::now();
        drop(self.stdin.take());
        let status = self.child.wait().expect("it was started here");
        assert!(status.success(), "{status}");
        began.elapsed()
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        kill_process(self.pid(), Signal::KILL).expect("it runs");
        self.child.wait().expect("it was started here");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A stopped process dies too; one that is dead already is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Stops a process, and returns when every thread of it has stopped.
///
/// # Panics
/// Where it does not run.
pub fn stop(pid: Pid) {
    kill_process(pid, Signal::STOP).expect("it runs");
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    let is_stopped = |task: PathBuf| {
        let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
        // The state is the field behind the name, which is in brackets.
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
    };
    while !fs::read_dir(&tasks)
        .expect("it runs")
        .filter_map(Result::ok)
        .all(|task| is_stopped(task.path()))
    {
        std::thread::yield_now();
    }
}

/// What a peer process holds that has given its engine back.
#[must_use]
pub fn bare() -> Held {
    let mut process = Process::start();
    process.ok(&Command::Shutdown { patience_ms: 500 });
    process.held()
}

/// A push of `count` blocks, from the first of the pusher's to the first of the other's.
#[must_use]
pub fn push(with: &Process, count: u32) -> Move {
    blocks(Way::Push, with, 0..count)
}

/// A pull of `count` blocks, from the first of the other's to the first of the puller's.
#[must_use]
pub fn pull(with: &Process, count: u32) -> Move {
    blocks(Way::Pull, with, 0..count)
}

/// A transfer of the same blocks at both ends.
#[must_use]
pub fn blocks(way: Way, with: &Process, blocks: std::ops::Range<u32>) -> Move {
    let local: Vec<u32> = blocks.collect();
    Move {
        way,
        with: with.address.clone(),
        remote: local.clone(),
        local,
        notify: None,
        deadline_ms: None,
        checksum: false,
        ticket: None,
    }
}

/// What a process holds, as the kernel tells it; `self` for this one. What only the engine knows
/// is 0.
///
/// # Errors
/// When the process is gone.
pub fn usage_of(pid: &str) -> anyhow::Result<Held> {
    let proc = format!("/proc/{pid}");
    let mut threads = 0;
    let mut cpu_ns = 0;
    for task in fs::read_dir(format!("{proc}/task"))? {
        // A thread may end between being listed and being read.
        if let Ok(stat) = fs::read_to_string(task?.path().join("schedstat")) {
            threads += 1;
            let spent = stat.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok());
            cpu_ns += spent.unwrap_or(0);
        }
    }
    let status = fs::read_to_string(format!("{proc}/status"))?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident_kib: u64 =
        resident.and_then(|line| line.split_whitespace().next()).map_or(Ok(0), str::parse)?;
    let maps = fs::read_to_string(format!("{proc}/maps"))?;
    Ok(Held {
        transfers: 0,
        lanes_opened: 0,
        lanes_accepted: 0,
        regions: 0,
        grants: 0,
        refused: 0,
        stale: 0,
        // The listing holds a descriptor itself.
        descriptors: fs::read_dir(format!("{proc}/fd"))?.count() - 1,
        threads,
        memfds: maps.lines().filter(|line| line.contains("memfd:kvferry ")).count(),
        rings: maps.lines().filter(|line| line.contains("memfd:kvferry-ring ")).count(),
        resident_bytes: resident_kib << 10,
        cpu_ns,
    })
}
