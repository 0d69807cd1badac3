//! Two ends in one process.

use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::lanes::{
    CloseReason, FramePrefix, Incoming, Lane, LaneConfig, LaneHandler, Load, Loader, Outgoing,
    Reactor, ReactorConfig, Start,
};

fn pass(socket: (&UnixStream, &UnixStream), end: &RingEnd) -> [OwnedFd; PARTS] {
    [0, 1].map(|part| {
        RingEnd::send(Some(end), part, socket.0.as_fd()).unwrap();
        RingEnd::receive(socket.1.as_fd()).unwrap().unwrap()
    })
}

fn pair() -> (Ring, Ring) {
    let (one, other) = UnixStream::pair().unwrap();
    let (ours, theirs) = (RingEnd::new().unwrap(), RingEnd::new().unwrap());
    let [our_memory, our_bell] = pass((&one, &other), &ours);
    let [their_memory, their_bell] = pass((&other, &one), &theirs);
    (ours.join(their_memory, their_bell).unwrap(), theirs.join(our_memory, our_bell).unwrap())
}

/// How often the doorbell of an end was rung since this was last asked.
fn rung(ring: &Ring) -> u64 {
    let mut count = [0; 8];
    // SAFETY: the buffer is borrowed mutably for this call, which does not block.
    let read = unsafe { libc::read(ring.shared.bell(), count.as_mut_ptr().cast(), count.len()) };
    if read == 8 { u64::from_ne_bytes(count) } else { 0 }
}

/// Has an end say something that is not so.
fn lie(ring: &Ring, offset: usize, value: u64) {
    ring.shared.ours.position(offset).store(value, Ordering::Release);
}

fn is_violation(result: &io::Result<usize>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::InvalidData)
}

#[test]
fn an_end_that_does_not_look_is_woken_once_for_all_that_is_written_before_its_doorbell() {
    let (mut ours, mut theirs) = pair();
    assert_eq!(ours.producer.push(b"one").unwrap(), 3);
    assert_eq!(ours.producer.push(b"two").unwrap(), 3);
    ours.producer.ring_if_due();
    ours.producer.ring_if_due();
    assert_eq!(rung(&theirs), 1);
    let mut bytes = [0; 16];
    assert_eq!(theirs.consumer.take(&mut bytes).unwrap(), 6);
    assert_eq!(&bytes[..6], b"onetwo");
    assert_eq!(theirs.consumer.take(&mut bytes).unwrap(), 0);
}

#[test]
fn an_end_that_looks_is_not_woken_and_finds_what_came_when_it_stops() {
    let (mut ours, mut theirs) = pair();
    theirs.shared.watch();
    theirs.shared.watch();
    ours.producer.push(b"seen").unwrap();
    ours.producer.ring_if_due();
    assert_eq!(rung(&theirs), 0);
    assert!(theirs.shared.has_more());
    assert!(theirs.shared.unwatch(), "it came while it was looked for");
    theirs.consumer.take(&mut [0; 16]).unwrap();
    ours.producer.push(b"another looks").unwrap();
    ours.producer.ring_if_due();
    assert_eq!(rung(&theirs), 0);
    theirs.consumer.take(&mut [0; 16]).unwrap();
    assert!(!theirs.shared.unwatch());
    ours.producer.push(b"nobody does").unwrap();
    ours.producer.ring_if_due();
    assert_eq!(rung(&theirs), 1);
}

#[test]
fn an_end_that_found_no_room_is_told_of_it() {
    let (mut ours, mut theirs) = pair();
    let full = vec![7; RING_BYTES + 1];
    assert_eq!(ours.producer.push(&full).unwrap(), RING_BYTES);
    let refused = ours.producer.push(&full).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    assert!(ours.producer.has_refused());
    let mut bytes = vec![0; RING_BYTES];
    let mut taken = 0;
    while taken < RING_BYTES {
        taken += theirs.consumer.take(&mut bytes[..RING_BYTES / 4]).unwrap();
    }
    assert!(rung(&ours) >= 1);
    assert_eq!(ours.producer.push(&full).unwrap(), RING_BYTES);
    assert!(!ours.producer.has_refused());
    theirs.consumer.take(&mut bytes).unwrap();
    assert_eq!(rung(&ours), 0, "it does not wait for room any more");
}

#[test]
fn what_cannot_be_is_an_error_and_no_access() {
    let (mut ours, mut theirs) = pair();
    ours.producer.push(b"fine").unwrap();
    for sent in [RING + 1, u64::MAX, u64::MAX - RING] {
        lie(&ours, SENT, sent);
        assert!(is_violation(&theirs.consumer.take(&mut [0; 16])), "sent {sent}");
    }
    for taken in [5, u64::MAX / 2] {
        lie(&theirs, TAKEN, taken);
        let written = ours.producer.push(&vec![0; RING_BYTES]);
        assert!(is_violation(&written), "taken {taken}");
    }
}

#[test]
fn only_a_sealed_memfd_of_the_size_and_an_eventfd_that_does_not_block_are_taken() {
    let (one, other) = UnixStream::pair().unwrap();
    let parts = || pass((&one, &other), &RingEnd::new().unwrap());
    let join = |memory: OwnedFd, bell: OwnedFd| RingEnd::new().unwrap().join(memory, bell);
    let refused = |memory: OwnedFd, bell: OwnedFd| {
        join(memory, bell).unwrap_err().kind() == io::ErrorKind::InvalidData
    };
    let [memory, bell] = parts();
    assert!(join(memory, bell).is_ok());
    let [memory, bell] = parts();
    assert!(refused(bell, memory), "one is taken for the other");
    let [memory, _] = parts();
    assert!(refused(memory, UnixStream::pair().unwrap().0.into()), "no eventfd");
    let [memory, _] = parts();
    // SAFETY: the call takes two integers; the result is checked before use.
    let blocking = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    assert!(blocking >= 0);
    // SAFETY: a descriptor fresh from the kernel that nobody else owns.
    assert!(refused(memory, unsafe { OwnedFd::from_raw_fd(blocking) }), "an eventfd that blocks");
    let short = sealed_memfd(c"short", HEADER_BYTES).unwrap();
    let [_, bell] = parts();
    assert!(refused(short.into(), bell), "too short");
}

#[test]
fn the_other_end_cannot_write_into_what_it_was_passed() {
    let (one, other) = UnixStream::pair().unwrap();
    let [memory, _] = pass((&one, &other), &RingEnd::new().unwrap());
    let access = libc::PROT_READ | libc::PROT_WRITE;
    assert!(map_aligned(memory.as_fd(), LENGTH, access).is_err());
}

#[test]
fn an_end_that_has_none_says_so() {
    let (one, other) = UnixStream::pair().unwrap();
    RingEnd::send(None, 0, one.as_fd()).unwrap();
    assert!(RingEnd::receive(other.as_fd()).unwrap().is_none());
    drop(one);
    let gone = RingEnd::receive(other.as_fd()).unwrap_err();
    assert_eq!(gone.kind(), io::ErrorKind::UnexpectedEof);
}

proptest! {
    #[test]
    fn bytes_come_out_as_they_went_in(
        writes in prop::collection::vec((0..RING_BYTES * 2, 1..RING_BYTES * 2), 1..40)
    ) {
        let (mut ours, mut theirs) = pair();
        let (mut written, mut read) = (0_u64, 0_u64);
        // A byte tells where it stands, whatever its place in the ring.
        let byte = |at: u64| u8::try_from(at % 251).unwrap_or(0);
        let mut buffer = vec![0; RING_BYTES * 2];
        for (write, take) in writes {
            let bytes: Vec<u8> = (written..written + write as u64).map(byte).collect();
            match ours.producer.push(&bytes) {
                Ok(taken) => written += taken as u64,
                Err(error) => prop_assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            prop_assert!(written - read <= RING);
            let taken = theirs.consumer.take(&mut buffer[..take]).unwrap();
            for (at, got) in (read..).zip(&buffer[..taken]) {
                prop_assert_eq!(*got, byte(at));
            }
            read += taken as u64;
            prop_assert_eq!(theirs.consumer.has_more(), read != written);
        }
    }
}

/// A lane that takes no frame, and whose end is told.
struct Told(Sender<String>);

impl LaneHandler for Told {
    fn on_frame(&self, _lane: &Lane, _prefix: &[u8; 16], _head: &[u8]) -> Incoming {
        Incoming::Done
    }

    fn on_closed(&self, _lane: &Lane, reason: &CloseReason) {
        let _ = self.0.send(reason.to_string());
    }
}

struct Lanes(Reactor);

impl Lanes {
    fn new() -> Self {
        Self(Reactor::start("ring", ReactorConfig { spin: Duration::ZERO }).unwrap())
    }

    /// A lane, the other end of its stream, and where its end is told.
    fn add(&self, ring: Ring) -> (Lane, UnixStream, Receiver<String>) {
        let (stream, other) = UnixStream::pair().unwrap();
        let (told, ends) = channel();
        let parse = |_: &[u8; 16]| Some(FramePrefix { head_bytes: 0, payload_bytes: 0 });
        let config = LaneConfig { parse, backlog_frames: BACKLOG };
        let lane = self.0.add_with(stream.into(), Some(ring), config, Arc::new(Told(told)));
        (lane.unwrap(), other, ends)
    }
}

const BACKLOG: usize = 64;

fn next<T>(of: &Receiver<T>) -> T {
    of.recv_timeout(Duration::from_secs(10)).expect("it comes")
}

#[test]
fn a_lane_whose_other_end_says_what_cannot_be_is_closed() {
    let lanes = Lanes::new();
    let (ours, theirs) = pair();
    let (_lane, _other, ends) = lanes.add(theirs);
    lie(&ours, SENT, u64::MAX);
    ours.shared.ring_bell();
    assert!(next(&ends).contains("cannot be"));
    let (ours, theirs) = pair();
    let (lane, _other, ends) = lanes.add(theirs);
    lie(&ours, TAKEN, 1);
    // What it says is looked at when there is no room as far as is known.
    lane.send(&vec![0; RING_BYTES + 16]);
    assert_eq!(next(&ends), CloseReason::Reset.to_string());
}

#[test]
fn a_lane_that_has_no_room_and_is_not_read_hears_that_the_other_end_has_gone() {
    let lanes = Lanes::new();
    let (ours, mut theirs) = pair();
    let (lane, other, ends) = lanes.add(ours);
    let _owed: Vec<_> = (0..=BACKLOG).map(|_| lane.owe()).collect();
    lane.send(&vec![0; 2 * RING_BYTES]);
    theirs.producer.push(&[0; 16]).unwrap();
    theirs.producer.ring_if_due();
    std::thread::sleep(Duration::from_millis(20));
    drop(other);
    assert_eq!(next(&ends), CloseReason::Eof.to_string());
}

/// A frame whose permission is withdrawn before any of it has gone.
struct Withdrawn(Sender<bool>);

impl Outgoing for Withdrawn {
    fn start(&mut self, out: &mut Vec<u8>) -> Start {
        out.extend_from_slice(&[1; 16]);
        Start::Payload(16)
    }

    fn load(&mut self, _loader: &mut Loader<'_>) -> Load {
        Load::Reset
    }

    fn sent(self: Box<Self>, whole: bool, _out: &mut Vec<u8>) {
        let _ = self.0.send(whole);
    }
}

#[test]
fn a_frame_that_may_not_go_any_more_is_taken_back_and_its_neighbours_go() {
    let lanes = Lanes::new();
    let (ours, mut theirs) = pair();
    let (lane, _other, _ends) = lanes.add(ours);
    let (told, sent) = channel();
    lane.send_later(&[2; 16]);
    lane.send_all([Box::new(Withdrawn(told)) as Box<dyn Outgoing>]);
    lane.send(&[3; 16]);
    assert!(!next(&sent), "it was taken back");
    let mut frames = [0; 64];
    assert_eq!(theirs.consumer.take(&mut frames).unwrap(), 32);
    assert_eq!(frames[..32], [[2; 16], [3; 16]].concat());
}
