//! Lanes of one thread take turns, and a turn is bounded whatever it consists of.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use kvferry_transport::lanes::{
    CloseReason, FramePrefix, Incoming, Lane, LaneConfig, LaneHandler, Load, Loader, Outgoing,
    Reactor, Start, send_afterwards,
};

const MIB: usize = 1 << 20;

/// What a thread does in one turn of a lane: a mebibyte each way, and what does not fit whole.
const TURN: usize = 3 * MIB;

/// What happened, in order.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    /// A frame that wants nothing.
    Heard,
    /// So much was sent.
    Sent(usize),
}

/// A frame of this kind, without a payload.
fn frame(kind: u8) -> [u8; 16] {
    let mut frame = [0; 16];
    frame[0] = kind;
    frame
}

const HEAR: u8 = 0;
/// Answered by a mebibyte.
const ASK: u8 = 1;

const CONFIG: LaneConfig = LaneConfig {
    parse: |_| Some(FramePrefix { head_bytes: 0, payload_bytes: 0 }),
    backlog_frames: usize::MAX,
};

struct Handler(Sender<Event>);

impl LaneHandler for Handler {
    fn on_frame(&self, lane: &Lane, prefix: &[u8; 16], _head: &[u8]) -> Incoming {
        match prefix[0] {
            ASK => lane.send_bulk(Box::new(Mebibyte { left: MIB, sent: self.0.clone() })),
            _ => self.0.send(Event::Heard).unwrap(),
        }
        Incoming::Done
    }

    fn on_closed(&self, _lane: &Lane, _reason: &CloseReason) {}
}

/// A payload that any connection takes whole, since it goes nowhere.
struct Mebibyte {
    left: usize,
    sent: Sender<Event>,
}

impl Outgoing for Mebibyte {
    fn start(&mut self, out: &mut Vec<u8>) -> Start {
        out.extend_from_slice(&frame(HEAR));
        Start::Payload(MIB)
    }

    fn load(&mut self, _loader: &mut Loader<'_>) -> Load {
        // The head counts as sent, too: what it took is sent by the next call.
        let sent = if self.left > 0 { self.left } else { frame(HEAR).len() };
        self.left = 0;
        self.sent.send(Event::Sent(sent)).unwrap();
        Load::Sent(Ok(sent))
    }

    fn sent(self: Box<Self>, _whole: bool, _out: &mut Vec<u8>) {}
}

struct Ends {
    lane: Lane,
    other_end: UnixStream,
    events: Receiver<Event>,
}

fn lane(reactor: &Reactor, events: (Sender<Event>, Receiver<Event>)) -> Ends {
    let (one, other_end) = UnixStream::pair().unwrap();
    let lane = reactor.add(one.into(), CONFIG, Arc::new(Handler(events.0))).unwrap();
    Ends { lane, other_end, events: events.1 }
}

impl Ends {
    fn sent(&self) -> usize {
        let sent = |event| if let Event::Sent(bytes) = event { bytes } else { 0 };
        self.events.try_iter().map(sent).sum()
    }
}

#[test]
fn what_is_sent_because_of_answers_counts_for_the_turn_in_which_they_are_read() {
    let reactor = Reactor::without_thread().unwrap();
    let mut bulk = lane(&reactor, channel());
    let mut small = lane(&reactor, channel());
    bulk.other_end.write_all(&frame(ASK).repeat(64)).unwrap();
    small.other_end.write_all(&frame(HEAR)).unwrap();
    assert!(reactor.round().unwrap());
    assert_eq!(small.events.try_recv(), Ok(Event::Heard));
    let mut all = bulk.sent();
    assert!((MIB..TURN).contains(&all), "{all} bytes in a turn");
    while reactor.round().unwrap() {
        let sent = bulk.sent();
        assert!(sent < TURN, "{sent} bytes in a turn");
        all += sent;
    }
    assert_eq!(all, 64 * (MIB + frame(HEAR).len()));
}

#[test]
fn a_lane_with_something_new_comes_before_one_that_goes_on() {
    let reactor = Reactor::without_thread().unwrap();
    let (told, events) = channel();
    let mut bulk = lane(&reactor, (told.clone(), events));
    let mut small = lane(&reactor, (told, channel().1));
    bulk.other_end.write_all(&frame(ASK).repeat(64)).unwrap();
    assert!(reactor.round().unwrap());
    assert!(bulk.sent() > 0);
    for _ in 0..8 {
        small.other_end.write_all(&frame(HEAR)).unwrap();
        assert!(reactor.round().unwrap());
        assert_eq!(bulk.events.try_recv(), Ok(Event::Heard));
        assert!(bulk.sent() > 0);
    }
}

#[test]
fn frames_that_are_to_go_out_afterwards_wait_for_the_end_of_all_that_is_done() {
    let reactor = Reactor::without_thread().unwrap();
    let bulk = lane(&reactor, channel());
    let (told, sent) = channel();
    let mebibyte = || Box::new(Mebibyte { left: MIB, sent: told.clone() });
    send_afterwards(|| {
        bulk.lane.send_bulk(mebibyte());
        send_afterwards(|| bulk.lane.send_bulk(mebibyte()));
        assert_eq!(sent.try_recv(), Err(TryRecvError::Empty));
    });
    assert_eq!(sent.try_recv(), Ok(Event::Sent(MIB)));
    assert_eq!(sent.try_recv(), Err(TryRecvError::Empty), "more than a turn's worth went out");
    while reactor.round().unwrap() {}
    assert_eq!(bulk.lane.backlog_frames(), 0);
}
