//! Garbage and hostility on every port: truncated, oversized, wrong-typed and unknown messages and
//! frames, other protocols, clients that connect and say nothing (Mooncake#3050, nixl#854). The
//! listener serves the others all the while, in bounded memory.
//!
//! Probes of other protocols, damaged and oversized frames, lanes without number and clients that
//! ask without listening stand in `promises/hostile`, for the lane port; here is the rest, for the
//! control port above all.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use kvferry_proto::rpc::peer_client::PeerClient;
use kvferry_proto::rpc::{HelloReply, HelloRequest, TableVersionRequest, Version, WatchRequest};
use kvferry_tests::process::{Process, pull, push};
use kvferry_tests::wire::{RawLane, granted_to, write_frame};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

/// Memory that garbage may make a process keep, over what it held before.
const GROWTH_BYTES: u64 = 64 << 20;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// An empty SETTINGS frame.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

/// That the peer serves an honest one at once, in both directions.
fn assert_serves(target: &mut Process) {
    let mut honest = Process::start();
    let began = Instant::now();
    honest.connect(target);
    honest.fill(0..256, 1);
    assert!(honest.transfer(push(target, 256)).is_done());
    target.assert_holds(0..256, 1);
    assert!(honest.transfer(pull(target, 256)).is_done());
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

/// A connection to a peer's control port that speaks gRPC.
pub(super) async fn control(target: &Process) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", target.address)).unwrap();
    endpoint.connect().await.unwrap()
}

fn connect(target: &Process) -> TcpStream {
    let stream = TcpStream::connect(&target.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Reads what comes until the other end hangs up; panics when it does not within the read's time.
fn await_closed(mut stream: &TcpStream) {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                let late = matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                );
                assert!(!late, "it is still open");
                return;
            }
        }
    }
}

/// An HTTP/2 frame (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

#[test]
fn clients_of_the_control_port_that_say_nothing_are_hung_up_on_and_keep_nobody_out() {
    let mut target = Process::start();
    assert_serves(&mut target);
    let before = target.held();
    let silent: Vec<_> = (0..600)
        .map(|index: usize| {
            let mut stream = connect(&target);
            // Nothing, or a part of how a connection has to begin.
            stream.write_all(&PREFACE[..index % PREFACE.len()]).unwrap();
            stream
        })
        .collect();
    let idle: Vec<_> = (0..50)
        .map(|_| {
            let mut stream = connect(&target);
            stream.write_all(PREFACE).unwrap();
            stream.write_all(&SETTINGS).unwrap();
            stream
        })
        .collect();
    assert_serves(&mut target);
    for stream in &silent {
        await_closed(stream);
    }
    assert_serves(&mut target);
    drop(idle);
    target.await_held("free", |held| held.descriptors <= before.descriptors);
    let grown = target.held().resident_bytes.saturating_sub(before.resident_bytes);
    assert!(grown < GROWTH_BYTES, "{grown}");
}

#[test]
fn broken_http2_closes_its_connection_and_no_other() {
    let mut target = Process::start();
    let mut honest = Process::start();
    honest.connect(&target);
    assert_serves(&mut target);
    let before = target.held();
    // Header block: a literal field without an end, an index that no table has, and an integer that
    // overflows (RFC 7541).
    let bad_hpack: [&[u8]; 3] = [&[0x40, 0x7f, 0xff], &[0xff, 0xff, 0xff, 0x7f], &[0xff; 16]];
    let mut broken = vec![
        // Longer than any frame may be.
        [&[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1][..], &[0; 64]].concat(),
        // SETTINGS of a stream, of an odd length, and with values that cannot be.
        frame(4, 0, 5, &[]),
        frame(4, 0, 0, &[0; 5]),
        frame(4, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff]),
        frame(4, 0, 0, &[0, 5, 0, 0, 0, 1]),
        // Of streams that are not open.
        frame(0, 0, 1, b"data"),
        frame(9, 4, 1, b"continued"),
        frame(8, 0, 1, &[0; 4]),
        frame(8, 0, 0, &[0; 4]),
        frame(3, 0, 1, &[0; 4]),
        // A stream that only the server opens, and padding longer than its frame.
        frame(1, 4, 2, &[0x82]),
        frame(1, 0xc, 1, &[200, 0x82]),
        frame(6, 0, 0, &[0; 3]),
        // Headers that go on without an end.
        [frame(1, 0, 1, &[0x82]), frame(0, 0, 1, b"in between")].concat(),
        [frame(1, 0, 1, &[0x82]), frame(9, 0, 1, &[0x82; 16_000]).repeat(300)].concat(),
    ];
    broken.extend(bad_hpack.map(|block| frame(1, 4, 1, block)));
    for (index, bytes) in broken.iter().enumerate() {
        let mut stream = connect(&target);
        stream.write_all(PREFACE).unwrap();
        stream.write_all(&SETTINGS).unwrap();
        // It may hang up in the middle.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        await_closed(&stream);
        assert!(honest.transfer(push(&target, 256)).is_done(), "broken in way {index}");
    }
    assert_serves(&mut target);
    // Frames that ask for an answer each, or that open and give up streams, without an end.
    let request = [0x82, 0x84, 0x86, 0x41, 1, b'x'];
    let floods = [
        frame(6, 0, 0, &[7; 8]),
        SETTINGS.to_vec(),
        frame(8, 0, 0, &[0, 0, 0, 1]),
        frame(0x77, 0, 0, b"of a kind that nobody knows"),
    ];
    for flood in floods {
        let mut stream = connect(&target);
        stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        stream.write_all(PREFACE).unwrap();
        let many = flood.repeat(1000);
        for _ in 0..200 {
            if stream.write_all(&many).is_err() {
                break;
            }
        }
    }
    let mut stream = connect(&target);
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    stream.write_all(PREFACE).unwrap();
    stream.write_all(&SETTINGS).unwrap();
    for id in (1..60_001_u32).step_by(2) {
        let opened = [frame(1, 5, id, &request), frame(3, 0, id, &[0, 0, 0, 8])].concat();
        if stream.write_all(&opened).is_err() {
            break;
        }
    }
    drop(stream);
    assert_serves(&mut target);
    assert!(honest.transfer(push(&target, 256)).is_done());
    let after = target.await_held("free", |held| held.descriptors <= before.descriptors);
    let grown = after.resident_bytes.saturating_sub(before.resident_bytes);
    assert!(grown < GROWTH_BYTES, "{grown}");
}

#[test]
fn messages_of_the_wrong_kind_are_refused_by_name_and_the_connection_serves_on() {
    let mut target = Process::start();
    let before = target.held();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = control(&target).await;
        let mut client = PeerClient::new(channel.clone());
        let version = Some(Version { major: 1, minor: 0 });
        let hello = HelloRequest { version, incarnation: 7, transports: vec![] };
        assert!(client.hello(hello.clone()).await.is_ok());

        let nobody = HelloRequest { incarnation: 0, ..hello.clone() };
        assert_eq!(client.hello(nobody).await.unwrap_err().code(), Code::InvalidArgument);
        // A version of another time is told ours, and finds the words for it.
        let other =
            HelloRequest { version: Some(Version { major: 99, minor: 0 }), ..hello.clone() };
        let reply = client.hello(other).await.unwrap().into_inner();
        assert_eq!(reply.version.unwrap().major, 1);
        let transports = vec!["x".repeat(1 << 20); 16];
        let oversized = HelloRequest { transports, ..hello.clone() };
        assert_eq!(client.hello(oversized).await.unwrap_err().code(), Code::OutOfRange);

        let stale = WatchRequest { incarnation: 1, watcher: 7 };
        assert_eq!(client.watch(stale).await.unwrap_err().code(), Code::FailedPrecondition);
        let unnamed = WatchRequest { incarnation: target.incarnation, watcher: 0 };
        assert_eq!(client.watch(unnamed).await.unwrap_err().code(), Code::InvalidArgument);
        let stale = TableVersionRequest { incarnation: 1 };
        assert_eq!(client.table_version(stale).await.unwrap_err().code(), Code::FailedPrecondition);

        // A message where another is expected, and methods and services that there are not.
        let mut raw = Grpc::new(channel);
        for (path, code) in [
            ("/kvferry.peer.v1.Peer/Hello", Code::Internal),
            ("/kvferry.peer.v1.Peer/Nothing", Code::Unimplemented),
            ("/somebody.else/Hello", Code::Unimplemented),
            ("/", Code::Unimplemented),
        ] {
            raw.ready().await.unwrap();
            // Its first field is a number where a hello has a message.
            let codec = ProstCodec::<TableVersionRequest, HelloReply>::default();
            let message = Request::new(TableVersionRequest { incarnation: 9 });
            let answer = raw.unary(message, PathAndQuery::from_static(path), codec).await;
            assert_eq!(answer.unwrap_err().code(), code, "{path}");
        }
        assert!(client.hello(hello).await.is_ok(), "the connection serves on");
    });
    runtime.shutdown_background();
    assert_serves(&mut target);
    target.await_held("free", |held| held.descriptors <= before.descriptors);
}

#[test]
fn frames_that_end_anywhere_store_nothing_beyond_what_came_and_leave_no_lane() {
    let (mut target, ticket) = granted_to(77);
    target.fill(0..8, 5);
    let region = ticket.spans[0].region;
    let frame = write_frame(1, ticket.grant, region, 4096, &[1; 64]);
    for end in 0..frame.len() {
        let mut lane = RawLane::open(&target, 77, u32::try_from(end).unwrap()).unwrap();
        lane.send(&frame[..end]);
        drop(lane);
        // An initiator may hold so many lanes and no more, and closing them takes a moment.
        if end % 32 == 31 {
            target.await_held("closed", |held| held.lanes_accepted == 0);
        }
    }
    target.await_held("closed", |held| held.lanes_accepted == 0);
    target.assert_holds(0..1, 5);
    target.assert_holds(2..8, 5);
    let mut lane = RawLane::open(&target, 77, 1000).unwrap();
    lane.send(&frame);
    lane.reply();
}
