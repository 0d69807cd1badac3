//! Promise 8: the network cannot hurt us.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use kvferry_proto::frame::{Control, Kind, Prefix, Refusal, Request, limits};
use kvferry_proto::{GrantId, LaneId, RegionId, TransferId};
use kvferry_tests::process::{Process, pull, push};
use kvferry_tests::wire::{RawLane, write_frame};

/// Memory that garbage may make a process keep, over what it held before.
const GROWTH_BYTES: u64 = 64 << 20;

/// Bytes without a meaning, the same for everybody.
fn noise(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[0]
    };
    (0..length).map(step).collect()
}

/// That the peer still serves an honest one, in both directions.
fn assert_serves(target: &mut Process) {
    let mut honest = Process::start();
    honest.connect(target);
    honest.fill(0..256, 1);
    assert!(honest.transfer(push(target, 256)).is_done());
    target.assert_holds(0..256, 1);
    assert!(honest.transfer(pull(target, 256)).is_done());
}

fn control_port(target: &Process) -> u16 {
    target.address.rsplit_once(':').unwrap().1.parse().unwrap()
}

#[test]
fn garbage_on_every_port_harms_nobody() {
    let mut target = Process::start();
    assert_serves(&mut target);
    let before = target.held();
    let probes: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        // A TLS client hello's beginning.
        vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(),
        vec![0; 4096],
        vec![0xff; 4096],
        noise(100_000, 1),
        Vec::new(),
    ];
    for port in [control_port(&target), target.lane_port] {
        for (index, probe) in probes.iter().enumerate() {
            for seed in 0..10 {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
                // The other end may hang up in the middle.
                let _ = stream.write_all(probe);
                let _ = stream.write_all(&noise(1 + index * 97, seed));
            }
        }
    }
    assert_serves(&mut target);
    let after = target.await_held("free", |held| held.descriptors <= before.descriptors + 2);
    let grown = after.resident_bytes.saturating_sub(before.resident_bytes);
    assert!(grown < GROWTH_BYTES, "{grown}");
}

#[test]
fn damaged_frames_close_their_lane_and_no_other() {
    let mut target = Process::start();
    let mut honest = Process::start();
    honest.connect(&target);
    let region = RegionId { slot: 0, generation: 1 };
    let whole = write_frame(1, GrantId::new(0, 1), region, 0, &[7; 64]);
    for lane_number in 1..400_u32 {
        let mut lane = RawLane::open(&target, 1000 + u64::from(lane_number), 1).unwrap();
        let mut frame = whole.clone();
        let at = lane_number as usize % (frame.len() - 64);
        frame[at] ^= 1 << (lane_number % 8);
        lane.send_to_whom_it_may_concern(&frame);
        lane.send_to_whom_it_may_concern(&noise(200, lane_number));
    }
    honest.fill(0..256, 2);
    assert!(honest.transfer(push(&target, 256)).is_done());
    target.assert_holds(0..256, 2);
    target.await_held("closed", |held| held.lanes_accepted == 2);
}

#[test]
fn lengths_beyond_their_limits_close_the_lane_before_anything_is_allocated() {
    let target = Process::start();
    let frames = [
        Prefix { head_bytes: u32::MAX, ..Prefix::new(Kind::Notify) },
        Prefix { payload_bytes: u32::MAX, ..Prefix::new(Kind::Write) },
        Prefix { head_bytes: limits::HEAD_BYTES + 1, ..Prefix::new(Kind::Read) },
        Prefix { payload_bytes: 1, ..Prefix::new(Kind::Ping) },
        // A reply, which initiators do not send.
        Prefix::new(Kind::Ack),
    ];
    for (index, prefix) in (0..).zip(frames) {
        let mut lane = RawLane::open(&target, 5, index).unwrap();
        lane.send(&prefix.encode());
        assert!(lane.is_closed(), "{prefix:?}");
    }
}

#[test]
fn transfers_too_far_apart_close_the_lane() {
    let target = Process::start();
    let mut lane = RawLane::open(&target, 5, 1).unwrap();
    let mut frame = Vec::new();
    let far = TransferId(limits::TRANSFER_SPREAD + 1);
    Request::encode_notify(&mut frame, far, TransferId(1), b"x");
    lane.send(&frame);
    assert!(lane.is_closed());
}

#[test]
fn lanes_of_one_initiator_are_bounded_and_need_a_hello_of_ours() {
    let mut target = Process::start();
    let lanes: Vec<_> = (0..64).map(|lane| RawLane::open(&target, 5, lane).unwrap()).collect();
    assert_eq!(RawLane::open(&target, 5, 64).unwrap_err(), Refusal::TooManyLanes);
    assert_eq!(RawLane::open(&target, 5, 3).unwrap_err(), Refusal::LaneReused);
    assert!(RawLane::open(&target, 6, 1).is_ok());
    drop(lanes);
    target.await_held("free", |held| held.lanes_accepted <= 1);
    let mut other = Process::start();
    std::mem::swap(&mut target.incarnation, &mut other.incarnation);
    assert_eq!(RawLane::open(&target, 5, 1).unwrap_err(), Refusal::OtherIncarnation);
}

#[test]
fn half_open_clients_do_not_keep_others_out() {
    let mut target = Process::start();
    let idle: Vec<_> =
        (0..300).map(|_| TcpStream::connect(("127.0.0.1", target.lane_port)).unwrap()).collect();
    let began = Instant::now();
    assert_serves(&mut target);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // They are hung up on in the end.
    for mut stream in idle {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
    }
}

#[test]
fn a_peer_that_asks_without_listening_fills_its_own_socket_and_not_our_memory() {
    let mut target = Process::start();
    let before = target.held().resident_bytes;
    let mut lane = RawLane::open(&target, 5, 1).unwrap();
    let mut pings = Vec::new();
    for nonce in 0..1000 {
        Control::Ping { nonce, floor: TransferId(1) }.encode(&mut pings);
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // Far more answers than any socket takes, none of which is read.
        for _ in 0..3000 {
            lane.send_to_whom_it_may_concern(&pings);
        }
        let _ = sender.send(());
    });
    let stuck = receiver.recv_timeout(Duration::from_secs(3)).is_err();
    assert!(stuck, "three million unread answers went somewhere");
    assert_serves(&mut target);
    let grown = target.held().resident_bytes.saturating_sub(before);
    assert!(grown < GROWTH_BYTES, "{grown}");
}

#[test]
fn unknown_and_late_identifiers_are_ignored() {
    let mut target = Process::start();
    let mut lane = RawLane::open(&target, 5, 1).unwrap();
    for number in 0..1000_u64 {
        let mut frame = Vec::new();
        Control::Cancel { transfer: TransferId(number * 31), floor: TransferId(1) }
            .encode(&mut frame);
        let lost = LaneId(u32::try_from(number).unwrap() + 100);
        Control::FenceLane { lane: lost }.encode(&mut frame);
        lane.send(&frame);
        lane.reply();
        lane.reply();
    }
    assert_serves(&mut target);
}
