//! Payloads that go out as pages, and not as copies of them.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

use kvferry_transport::lanes::{
    CloseReason, FramePrefix, Incoming, Lane, LaneConfig, LaneHandler, Load, Loader, Outgoing,
    Reactor, Start,
};
use kvferry_transport::memory::{Memory, SpanList};

const BLOCK: usize = 64 << 10;
const PAYLOAD: usize = 1 << 20;
const HEAD: [u8; 16] = [1; 16];

const CONFIG: LaneConfig = LaneConfig {
    parse: |_| Some(FramePrefix { head_bytes: 0, payload_bytes: 0 }),
    backlog_frames: 64,
};

struct Closed(Sender<String>);

impl LaneHandler for Closed {
    fn on_frame(&self, _lane: &Lane, _prefix: &[u8; 16], _head: &[u8]) -> Incoming {
        Incoming::Violation("nothing is sent to this end".into())
    }

    fn on_closed(&self, _lane: &Lane, reason: &CloseReason) {
        let _ = self.0.send(reason.to_string());
    }
}

/// A mebibyte in blocks, lent for as long as it is not withdrawn.
struct Lent {
    spans: SpanList,
    withdrawn: Arc<AtomicBool>,
}

impl Outgoing for Lent {
    fn start(&mut self, out: &mut Vec<u8>) -> Start {
        out.extend_from_slice(&HEAD);
        Start::Payload(PAYLOAD)
    }

    fn load(&mut self, loader: &mut Loader<'_>) -> Load {
        if self.withdrawn.load(Ordering::Relaxed) {
            return Load::Fill;
        }
        assert!(loader.can_lend(&self.spans));
        Load::Sent(loader.lend(&mut self.spans))
    }

    fn sent(self: Box<Self>, _whole: bool, _out: &mut Vec<u8>) {}
}

fn full_of(byte: u8) -> Memory {
    let memory = Memory::allocate(PAYLOAD).unwrap();
    memory.copy_in(0, &vec![byte; PAYLOAD]).unwrap();
    memory
}

/// Its blocks from the last to the first, so that they are spans of their own.
fn lent(memory: &Memory, withdrawn: &Arc<AtomicBool>) -> Box<Lent> {
    let mut spans = SpanList::new();
    spans.attach(memory);
    for block in (0..PAYLOAD / BLOCK).rev() {
        spans.push((block * BLOCK) as u64, u32::try_from(BLOCK).unwrap()).unwrap();
    }
    Box::new(Lent { spans, withdrawn: withdrawn.clone() })
}

struct Ends {
    reactor: Reactor,
    lane: Lane,
    other_end: UnixStream,
    closed: std::sync::mpsc::Receiver<String>,
}

/// What the connection takes before its other end is read is less than a payload.
fn ends() -> Ends {
    let reactor = Reactor::without_thread().unwrap();
    let (one, other_end) = UnixStream::pair().unwrap();
    other_end.set_nonblocking(true).unwrap();
    let (told, closed) = channel();
    let lane = reactor.add(one.into(), CONFIG, Arc::new(Closed(told))).unwrap();
    Ends { reactor, lane, other_end, closed }
}

impl Ends {
    /// Everything that is sent until nothing more is.
    fn receive(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            match self.other_end.read_to_end(&mut all) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => panic!("{other:?}"),
            }
            if !self.reactor.round().unwrap() {
                return all;
            }
        }
    }
}

/// How many of the bytes are each of `values`, in this order and no others.
fn runs<const N: usize>(bytes: &[u8], values: [u8; N]) -> [usize; N] {
    let mut rest = bytes;
    let counts = values.map(|value| {
        let run = rest.iter().take_while(|byte| **byte == value).count();
        rest = &rest[run..];
        run
    });
    assert!(rest.is_empty(), "{} bytes are left after {counts:?} of {values:?}", rest.len());
    counts
}

#[test]
fn what_is_lent_is_what_the_pages_hold_when_they_are_taken() {
    let mut ends = ends();
    let memory = full_of(7);
    ends.lane.send_bulk(lent(&memory, &Arc::default()));
    // What is in the pipe and in the socket by now, and what is not.
    memory.copy_in(0, &vec![8; PAYLOAD]).unwrap();
    let received = ends.receive();
    assert_eq!(received[..HEAD.len()], HEAD);
    assert_eq!(runs(&received[HEAD.len()..], [8]), [PAYLOAD]);
}

#[test]
fn what_is_left_in_the_pipe_of_a_payload_that_is_withdrawn_is_never_sent() {
    let mut ends = ends();
    let withdrawn = Arc::new(AtomicBool::new(false));
    let (former, next) = (full_of(7), full_of(9));
    ends.lane.send_bulk(lent(&former, &withdrawn));
    ends.lane.send_bulk(lent(&next, &Arc::default()));
    withdrawn.store(true, Ordering::Relaxed);
    let received = ends.receive();
    let (first, second) = received.split_at(HEAD.len() + PAYLOAD);
    let [sent, zeros] = runs(&first[HEAD.len()..], [7, 0]);
    assert!(sent > 0 && zeros > 0, "{sent} bytes were out, {zeros} are missing");
    assert_eq!(runs(&second[HEAD.len()..], [9]), [PAYLOAD]);
}

#[test]
fn a_connection_whose_other_end_is_gone_is_an_error_and_not_a_signal() {
    // SAFETY: the default is put back for a signal that nothing in this process handles: it ends it.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let ends = ends();
    let memory = full_of(7);
    ends.lane.send_bulk(lent(&memory, &Arc::default()));
    drop(ends.other_end);
    // The pages are sent before the lane is looked at: an event tells that they can be.
    while ends.reactor.round().unwrap() {}
    assert!(ends.closed.try_recv().is_ok());
}
