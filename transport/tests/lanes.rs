//! Lanes over Unix sockets, with a ring beside them and without: descriptors that come with frames, and
//! work that is done in pieces.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use kvferry_transport::lanes::{
    CloseReason, FramePrefix, Incoming, Landed, Landing, Lane, LaneConfig, LaneHandler, Line, Load,
    Loader, Outgoing, Progress, Reactor, ReactorConfig, Start, Store, Storer, Work,
};
use kvferry_transport::local::{Ring, RingEnd};
use kvferry_transport::memory::{Memory, SpanList};

/// What happened at the receiving end.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    /// A frame whose first byte took a file along, and what that says.
    File(String),
    /// A frame that was to have one and had none.
    NoFile,
    Payload(u8, Landed),
    Worked(usize),
    Closed,
}

struct Handler(Sender<Event>);

/// The prefix of a frame of this kind; the second byte is the handler's.
fn prefix(kind: u8, note: u8, payload_bytes: u32) -> [u8; 16] {
    let mut prefix = [0; 16];
    prefix[0] = kind;
    prefix[1] = note;
    prefix[8..12].copy_from_slice(&payload_bytes.to_le_bytes());
    prefix
}

fn parse(prefix: &[u8; 16]) -> Option<FramePrefix> {
    let payload = u32::from_le_bytes(prefix[8..12].try_into().ok()?);
    (prefix[0] < 4).then_some(FramePrefix { head_bytes: 0, payload_bytes: payload as usize })
}

const CONFIG: LaneConfig = LaneConfig { parse, backlog_frames: 64 };

impl LaneHandler for Handler {
    fn on_frame(&self, lane: &Lane, prefix: &[u8; 16], _head: &[u8]) -> Incoming {
        match prefix[0] {
            0 => {
                let event = match lane.take_descriptor() {
                    Some(descriptor) => {
                        let mut text = String::new();
                        File::from(descriptor).read_to_string(&mut text).unwrap();
                        Event::File(text)
                    }
                    None => Event::NoFile,
                };
                self.0.send(event).unwrap();
                Incoming::Done
            }
            1 => {
                let mut spans = spans(prefix[1]);
                spans.copy_in(&vec![0; bytes_of(prefix[1]) as usize]).unwrap();
                spans.rewind();
                Incoming::Payload(Box::new(Place { note: prefix[1], spans, told: self.0.clone() }))
            }
            2 => {
                let steps = usize::from(prefix[1]);
                Incoming::Work(Box::new(Steps { steps, done: 0, told: self.0.clone() }))
            }
            _ => Incoming::Violation("none of ours".into()),
        }
    }

    fn on_closed(&self, _lane: &Lane, _reason: &CloseReason) {
        let _ = self.0.send(Event::Closed);
    }
}

struct Place {
    note: u8,
    spans: SpanList,
    told: Sender<Event>,
}

impl Landing for Place {
    fn store(&mut self, storer: &mut Storer<'_>) -> Store {
        Store::Stored(storer.store(&mut self.spans))
    }

    fn finish(mut self: Box<Self>, _lane: &Lane, landed: Landed) {
        self.spans.rewind();
        let mut bytes = vec![0; bytes_of(self.note) as usize];
        self.spans.copy_out(&mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == self.note), "not what was sent");
        self.told.send(Event::Payload(self.note, landed)).unwrap();
    }
}

struct Steps {
    steps: usize,
    done: usize,
    told: Sender<Event>,
}

impl Work for Steps {
    fn step(&mut self, line: Line) -> Progress {
        if self.done == self.steps || line.is_unhealthy() {
            return Progress::Over;
        }
        self.done += 1;
        // A turn's worth.
        Progress::More(1 << 20)
    }

    fn finish(self: Box<Self>, _lane: &Lane) {
        self.told.send(Event::Worked(self.done)).unwrap();
    }
}

/// A frame with a payload.
struct Bulk {
    note: u8,
    spans: SpanList,
}

impl Bulk {
    /// Of 1 MiB, or 32 KiB, or a byte more, by the note; filled with that.
    fn new(note: u8) -> Self {
        Self { note, spans: spans(note) }
    }
}

fn bytes_of(note: u8) -> u32 {
    [1 << 20, 32 << 10, (32 << 10) + 1][usize::from(note) % 3]
}

/// Memory for a payload: what is sent, or where it lands.
fn spans(note: u8) -> SpanList {
    let memory = Memory::allocate(1 << 20).unwrap();
    memory.copy_in(0, &vec![note; bytes_of(note) as usize]).unwrap();
    let mut spans = SpanList::new();
    spans.attach(&memory);
    // Piece by piece, from behind.
    let mut end = bytes_of(note);
    while end > 0 {
        let start = end.saturating_sub(5_000);
        spans.push(u64::from(start), end - start).unwrap();
        end = start;
    }
    spans
}

impl Outgoing for Bulk {
    fn start(&mut self, out: &mut Vec<u8>) -> Start {
        out.extend_from_slice(&prefix(1, self.note, bytes_of(self.note)));
        Start::Payload(bytes_of(self.note) as usize)
    }

    fn load(&mut self, loader: &mut Loader<'_>) -> Load {
        Load::Sent(loader.load(&mut self.spans))
    }

    fn sent(self: Box<Self>, _whole: bool, _out: &mut Vec<u8>) {}
}

fn file(text: &str) -> OwnedFd {
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(text.as_bytes()).unwrap();
    reader.into()
}

struct Ends {
    _reactor: Reactor,
    here: Lane,
    events: Receiver<Event>,
}

/// How the frames of a lane go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Socket,
    /// A ring, and threads that look for a while before they sleep, or that sleep at once.
    Ring {
        looking: Duration,
    },
}

const WAYS: [By; 3] = [
    By::Socket,
    By::Ring { looking: Duration::ZERO },
    By::Ring { looking: Duration::from_micros(50) },
];

/// Both ends of a ring, put together over a socket as two processes do it.
fn ring() -> [Ring; 2] {
    let (one, other) = UnixStream::pair().unwrap();
    let ends = [RingEnd::new().unwrap(), RingEnd::new().unwrap()];
    let pass = |from: &RingEnd, by: &UnixStream, to: &UnixStream| {
        [0, 1].map(|part| {
            RingEnd::send(Some(from), part, by.as_fd()).unwrap();
            RingEnd::receive(to.as_fd()).unwrap().unwrap()
        })
    };
    let [first, second] = [pass(&ends[0], &one, &other), pass(&ends[1], &other, &one)];
    let [here, there] = ends;
    let join = |end: RingEnd, [memory, bell]: [OwnedFd; 2]| end.join(memory, bell).unwrap();
    [join(here, second), join(there, first)]
}

impl Ends {
    fn new(by: By) -> Self {
        let looking = if let By::Ring { looking } = by { looking } else { Duration::ZERO };
        let reactor = Reactor::start("lanes", ReactorConfig { spin: looking }).unwrap();
        let (one, other) = UnixStream::pair().unwrap();
        let (told, events) = channel();
        let (unheard, _) = channel();
        let rings = if by == By::Socket { [None, None] } else { ring().map(Some) };
        let [our_ring, their_ring] = rings;
        let ours = Arc::new(Handler(unheard));
        let here = reactor.add_with(one.into(), our_ring, CONFIG, ours).unwrap();
        reactor.add_with(other.into(), their_ring, CONFIG, Arc::new(Handler(told))).unwrap();
        Self { _reactor: reactor, here, events }
    }

    fn send_with(&self, frame: &[u8], descriptor: OwnedFd) {
        self.here.send_later_with(frame, descriptor);
        self.here.send_queued();
    }

    fn next(&self) -> Event {
        self.events.recv_timeout(Duration::from_secs(10)).expect("something happens")
    }
}

#[test]
fn each_descriptor_arrives_with_its_frame_whatever_goes_before_and_behind() {
    for by in WAYS {
        let ends = Ends::new(by);
        for round in 0..50_u8 {
            ends.send_with(&prefix(0, 0, 0), file(&format!("first {round}")));
            ends.here.send_bulk(Box::new(Bulk::new(round)));
            ends.send_with(&prefix(0, 0, 0), file(&format!("second {round}")));
            ends.send_with(&prefix(0, 0, 0), file(&format!("third {round}")));
            ends.here.send(&prefix(2, 0, 0));
        }
        for round in 0..50_u8 {
            assert_eq!(ends.next(), Event::File(format!("first {round}")));
            assert_eq!(ends.next(), Event::Payload(round, Landed::Whole));
            assert_eq!(ends.next(), Event::File(format!("second {round}")));
            assert_eq!(ends.next(), Event::File(format!("third {round}")));
            assert_eq!(ends.next(), Event::Worked(0));
        }
    }
}

#[test]
fn a_frame_that_comes_without_its_descriptor_finds_none() {
    for by in WAYS {
        let ends = Ends::new(by);
        ends.here.send(&prefix(0, 0, 0));
        assert_eq!(ends.next(), Event::NoFile);
    }
}

#[test]
fn descriptors_that_nobody_asks_for_are_bounded_and_closed_with_the_lane() {
    for by in WAYS {
        let ends = Ends::new(by);
        let mut readers = Vec::new();
        for _ in 0..40 {
            let (reader, writer) = std::io::pipe().unwrap();
            // A frame that asks for none.
            ends.send_with(&prefix(2, 1, 0), writer.into());
            readers.push(reader);
        }
        for _ in 0..40 {
            assert_eq!(ends.next(), Event::Worked(1));
        }
        ends.here.close();
        assert_eq!(ends.next(), Event::Closed);
        for mut reader in readers {
            // It ends once no writer is left anywhere.
            assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        }
    }
}

#[test]
fn work_is_done_in_turns_and_before_the_frame_behind_it() {
    for by in WAYS {
        let ends = Ends::new(by);
        ends.here.send(&prefix(2, 200, 0));
        ends.here.send(&prefix(2, 3, 0));
        assert_eq!(ends.next(), Event::Worked(200));
        assert_eq!(ends.next(), Event::Worked(3));
    }
}

#[test]
fn frames_larger_than_a_ring_arrive_whole_and_in_order() {
    for by in WAYS {
        let ends = Ends::new(by);
        // Of 16 bytes each: a quarter more than a ring takes, at once, and again.
        for _ in 0..2 {
            let frames: Vec<u8> = (0..10_240).flat_map(|_| prefix(2, 1, 0)).collect();
            ends.here.send(&frames);
            ends.here.send(&prefix(2, 7, 0));
        }
        for _ in 0..2 {
            for _ in 0..10_240 {
                assert_eq!(ends.next(), Event::Worked(1), "{by:?}");
            }
            assert_eq!(ends.next(), Event::Worked(7), "{by:?}");
        }
    }
}

#[test]
fn what_was_sent_before_the_lane_closed_arrives_before_its_end() {
    for by in WAYS {
        for round in 0..50 {
            let ends = Ends::new(by);
            ends.send_with(&prefix(0, 0, 0), file("last words"));
            // Of 32 KiB, and more than what a ring takes.
            for note in [1, 2] {
                ends.here.send_bulk(Box::new(Bulk::new(note)));
            }
            ends.here.close();
            assert_eq!(ends.next(), Event::File("last words".into()), "{by:?}, round {round}");
            assert_eq!(ends.next(), Event::Payload(1, Landed::Whole), "{by:?}, round {round}");
            assert_eq!(ends.next(), Event::Payload(2, Landed::Whole), "{by:?}, round {round}");
            assert_eq!(ends.next(), Event::Closed, "{by:?}, round {round}");
        }
    }
}

#[test]
fn frames_that_come_now_and_then_are_found_whether_a_thread_looks_or_sleeps() {
    for by in WAYS {
        let ends = Ends::new(by);
        for round in 0..2_000_u32 {
            ends.here.send(&prefix(2, 1, 0));
            assert_eq!(ends.next(), Event::Worked(1), "{by:?}");
            // Around the time after which a thread stops looking.
            std::thread::sleep(Duration::from_micros(u64::from(round % 80)));
        }
    }
}
