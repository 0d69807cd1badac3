//! Lanes over Unix sockets: descriptors that come with frames, and work that is done in pieces.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use kvferry_transport::lanes::{
    CloseReason, FramePrefix, Incoming, Landed, Landing, Lane, LaneConfig, LaneHandler, Line, Load,
    Loader, Outgoing, Progress, Reactor, ReactorConfig, Start, Store, Storer, Work,
};
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
                let memory = Memory::allocate(1 << 20).unwrap();
                let mut spans = SpanList::new();
                spans.attach(&memory);
                spans.push(0, 1 << 20).unwrap();
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

    fn finish(self: Box<Self>, _lane: &Lane, landed: Landed) {
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
    fn new(note: u8) -> Self {
        let memory = Memory::allocate(1 << 20).unwrap();
        let mut spans = SpanList::new();
        spans.attach(&memory);
        spans.push(0, 1 << 20).unwrap();
        Self { note, spans }
    }
}

impl Outgoing for Bulk {
    fn start(&mut self, out: &mut Vec<u8>) -> Start {
        out.extend_from_slice(&prefix(1, self.note, 1 << 20));
        Start::Payload(1 << 20)
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

fn ends() -> Ends {
    let reactor = Reactor::start("lanes", ReactorConfig { spin: Duration::ZERO }).unwrap();
    let (one, other) = UnixStream::pair().unwrap();
    let (told, events) = channel();
    let (unheard, _) = channel();
    let here = reactor.add(one.into(), CONFIG, Arc::new(Handler(unheard))).unwrap();
    reactor.add(other.into(), CONFIG, Arc::new(Handler(told))).unwrap();
    Ends { _reactor: reactor, here, events }
}

impl Ends {
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
    let ends = ends();
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

#[test]
fn a_frame_that_comes_without_its_descriptor_finds_none() {
    let ends = ends();
    ends.here.send(&prefix(0, 0, 0));
    assert_eq!(ends.next(), Event::NoFile);
}

#[test]
fn descriptors_that_nobody_asks_for_are_bounded_and_closed_with_the_lane() {
    let ends = ends();
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

#[test]
fn work_is_done_in_turns_and_before_the_frame_behind_it() {
    let ends = ends();
    ends.here.send(&prefix(2, 200, 0));
    ends.here.send(&prefix(2, 3, 0));
    assert_eq!(ends.next(), Event::Worked(200));
    assert_eq!(ends.next(), Event::Worked(3));
}
