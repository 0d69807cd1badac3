//! One peer of ten is bad: killed, stopped, silent, or a black hole whose connections are never
//! answered (Mooncake#828, vllm#49221). The other nine do not wait for it, whether they are
//! connected already or connect only now.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use kvferry_engine::{Error, Peer, Region};
use kvferry_tests::command::Setup;
use kvferry_tests::own::Own;
use kvferry_tests::pattern;
use kvferry_tests::process::{Cache, Process};
use socket2::{Domain, Socket, Type};

const GOOD: usize = 9;

const BYTES: u64 = 1 << 20;

const CACHE: Cache = Cache { blocks: BYTES / 4096, block_bytes: 4096, share: true };

/// What one good peer may take: a transfer of a megabyte, and connecting before it, on a machine
/// that is busy. Whatever waits for the bad one waits for its seconds.
const NO_WAIT: Duration = Duration::from_millis(1500);

/// How long a step of connecting to the bad one may take.
const CONNECT: Duration = Duration::from_secs(4);

/// An engine here with a filled region.
fn own() -> (Own, Region) {
    let own = Own::start_with(|builder| builder.connect_timeout(CONNECT));
    let here = own.registry.allocate(BYTES).unwrap();
    pattern::fill(&here, 0, BYTES, 1, 0).unwrap();
    (own, here)
}

fn write(peer: &Peer, here: &Region) -> kvferry_engine::Request {
    peer.write(here.whole(), peer.regions().remove(0).span(0, BYTES).unwrap())
}

/// Transfers with each good one, and says how long the slowest took.
fn slowest(own: &Own, here: &Region, good: &mut [Process]) -> Duration {
    let mut slowest = Duration::ZERO;
    for process in &mut *good {
        let began = Instant::now();
        let peer = own.connect(process);
        write(&peer, here).submit().unwrap().wait().unwrap();
        slowest = slowest.max(began.elapsed());
        process.assert_holds(0..256, 1);
    }
    slowest
}

/// A listener that accepts nothing and has no room for more: whoever connects hears nothing.
fn black_hole() -> (Socket, Vec<Socket>, SocketAddr) {
    let tcp = || Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let listener = tcp();
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    let waiting = (0..8)
        .map(|_| {
            let socket = tcp();
            socket.set_nonblocking(true).unwrap();
            // The first is taken into the backlog, the others stay where they are.
            let _ = socket.connect(&address.into());
            socket
        })
        .collect();
    (listener, waiting, address)
}

#[test]
fn while_one_is_being_connected_to_and_does_not_answer_the_others_connect_and_transfer() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (_listener, _waiting, hole) = black_hole();
    let stopped = Process::start();
    stopped.stop();
    let bad = [
        ("silent", silent.local_addr().unwrap().to_string()),
        ("black hole", hole.to_string()),
        ("stopped", stopped.address.clone()),
    ];
    let mut good: Vec<_> =
        (0..GOOD).map(|_| Process::start_with(Setup::default(), CACHE)).collect();
    for (kind, address) in bad {
        let (own, here) = own();
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| {
                let began = Instant::now();
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let connected = runtime.block_on(own.engine.connect(address.as_str()));
                (connected.map(drop), began.elapsed())
            });
            let slowest = slowest(&own, &here, &mut good);
            assert!(slowest < NO_WAIT, "beside one that is {kind}: {slowest:?}");
            assert!(!connecting.is_finished(), "{kind}: it was there all the time");
            let (connected, took) = connecting.join().unwrap();
            assert!(matches!(connected, Err(Error::Unreachable { .. })), "{kind}: {connected:?}");
            assert!(took < CONNECT + NO_WAIT, "{kind}: {took:?}");
        });
    }
    stopped.wake();
}

#[test]
fn while_one_does_not_take_what_it_is_sent_the_others_transfer() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Bad {
        Killed,
        Stopped,
    }
    let mut good: Vec<_> =
        (0..GOOD).map(|_| Process::start_with(Setup::default(), CACHE)).collect();
    for kind in [Bad::Killed, Bad::Stopped] {
        let large = Cache { blocks: 16, block_bytes: 2 << 20, share: true };
        let mut bad = Process::start_with(Setup::default(), large);
        let (own, here) = own();
        let much = own.registry.allocate(32 << 20).unwrap();
        let peer = own.connect(&bad);
        slowest(&own, &here, &mut good);
        match kind {
            Bad::Killed => bad.kill(),
            Bad::Stopped => bad.stop(),
        }
        // More than its sockets and a window take, many times, and as many that ask it for bytes.
        let far = peer.regions().remove(0).whole();
        let deadline = Duration::from_secs(5);
        let began = Instant::now();
        let waiting: Vec<_> = (0..20)
            .map(|index| match index % 2 {
                0 => peer.write(much.whole(), far),
                _ => peer.read(far, much.whole()),
            })
            .map(|request| request.deadline(deadline).submit().unwrap())
            .collect();
        for _ in 0..3 {
            let slowest = slowest(&own, &here, &mut good);
            assert!(slowest < NO_WAIT, "beside one that is {kind:?}: {slowest:?}");
        }
        for transfer in waiting {
            let error = transfer.wait().unwrap_err();
            assert!(error.cause.is_retryable(), "{error}");
        }
        assert!(began.elapsed() < deadline + NO_WAIT, "{kind:?}: {:?}", began.elapsed());
        if kind == Bad::Stopped {
            bad.wake();
        }
    }
}
