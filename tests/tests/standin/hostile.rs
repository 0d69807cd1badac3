//! Peers that say what no honest one does of queue pairs and keys.

use std::io::{Read, Write};
use std::net::TcpStream;

use kvferry_engine::Incarnation;
use kvferry_proto::frame::{Hello, KeyLoan, PairAddress, Refusal, Request, Welcome};
use kvferry_proto::message::VERSION_MAJOR;
use kvferry_proto::{LaneId, RegionId};

use crate::library::{End, StandIn};

const PAIR: PairAddress = PairAddress {
    number: 0x123,
    first_packet: 7,
    gid: [0xfe; 16],
    lid: 0,
    port: 0,
    mtu_bytes: 4096,
    reads: 1,
};

fn hello(to: &End, lane: u32, with_pair: bool) -> (TcpStream, Vec<u8>) {
    let hello = Hello {
        version: VERSION_MAJOR,
        initiator: Incarnation(77),
        target: to.engine().incarnation(),
        session: 0,
        lane: LaneId(lane),
        ping_ms: 2000,
        with_pair,
    };
    let stream = TcpStream::connect(("127.0.0.1", to.engine().lane_port())).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    (stream, hello.encode().to_vec())
}

fn welcome(stream: &mut TcpStream) -> Welcome {
    let mut welcome = [0; Welcome::BYTES];
    stream.read_exact(&mut welcome).unwrap();
    Welcome::decode(&welcome).unwrap()
}

fn is_closed(stream: &mut TcpStream) -> bool {
    matches!(stream.read(&mut [0]), Ok(0) | Err(_))
}

/// A lane with a queue pair, on which anything can be said.
fn lane(to: &End, number: u32) -> TcpStream {
    let (mut stream, mut first) = hello(to, number, true);
    first.extend_from_slice(&PAIR.encode());
    stream.write_all(&first).unwrap();
    assert_eq!(welcome(&mut stream).refusal, None);
    let mut theirs = [0; PairAddress::BYTES];
    stream.read_exact(&mut theirs).unwrap();
    let theirs = PairAddress::decode(&theirs).unwrap();
    assert_eq!(theirs.port, PAIR.port);
    stream
}

#[test]
fn who_asks_for_what_cannot_be_is_refused_and_leaves_nothing_behind() {
    let standin = StandIn::with_adapters(1);
    let target = End::new(&standin, 64, |builder| builder).shared();
    let at_rest = standin.live();
    // There is one port.
    let (mut stream, mut first) = hello(&target, 1, true);
    first.extend_from_slice(&PairAddress { port: 1, ..PAIR }.encode());
    stream.write_all(&first).unwrap();
    assert_eq!(welcome(&mut stream).refusal, Some(Refusal::NoPair));
    // A number that no queue pair has.
    let (mut stream, mut first) = hello(&target, 2, true);
    first.extend_from_slice(&PairAddress { number: 0, ..PAIR }.encode());
    stream.write_all(&first).unwrap();
    assert!(is_closed(&mut stream));
    // A lane without a queue pair, where RDMA is demanded.
    let (mut stream, first) = hello(&target, 3, false);
    stream.write_all(&first).unwrap();
    assert_eq!(welcome(&mut stream).refusal, Some(Refusal::Transport));
    assert_eq!(target.engine().status().lanes_accepted, 0);
    assert_eq!(standin.live(), at_rest);
}

#[test]
fn keys_that_are_lent_out_of_order_or_twice_cost_the_lane_and_no_more() {
    let standin = StandIn::with_adapters(1);
    let target = End::new(&standin, 64, |builder| builder).shared();
    let region = RegionId { slot: 0, generation: 1 };
    let part = KeyLoan { region, offset: 0, bytes: 4096, address: 0x1000, key: 5 };
    for (number, second) in (0..).zip([part, KeyLoan { offset: 8192, ..part }]) {
        let mut stream = lane(&target, number);
        let mut frames = Vec::new();
        Request::encode_lend_key(&mut frames, part);
        Request::encode_lend_key(&mut frames, second);
        stream.write_all(&frames).unwrap();
        assert!(is_closed(&mut stream), "{second:?}");
    }
    let initiator = End::new(&standin, 64, |builder| builder);
    initiator.fill(1);
    let (peer, remote) = initiator.meet(&target);
    let request = peer.write(initiator.layer.blocks(initiator.all()), remote.blocks(target.all()));
    request.submit().unwrap().wait().unwrap();
    assert_eq!(target.first_wrong(1), None);
}
