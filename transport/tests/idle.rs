//! What a lane's user holds back for company goes out: when nothing more can be dealt with, whoever
//! dealt with the last of it, and before the lane is not read because too much waits. And a lane that has
//! nothing to do has its thread sleep.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use kvferry_transport::lanes::{
    CloseReason, FramePrefix, Incoming, Lane, LaneConfig, LaneHandler, Line, Load, Loader,
    Outgoing, Progress, Reactor, ReactorConfig, Start, Work,
};

/// How many frames may wait before a lane is not read any more.
const BACKLOG: usize = 4;

const CONFIG: LaneConfig = LaneConfig {
    parse: |_| Some(FramePrefix { head_bytes: 0, payload_bytes: 0 }),
    backlog_frames: BACKLOG,
};

/// Counted, and no more.
const COUNT: u8 = 0;
/// Answered later, by a frame that counts as one that waits.
const ANSWER: u8 = 1;
/// Takes a turn and more, then is counted.
const WORK: u8 = 2;
/// Has another thread begin to send.
const KEEP: u8 = 3;

fn frame(kind: u8) -> [u8; 16] {
    let mut frame = [0; 16];
    frame[0] = kind;
    frame
}

/// What was dealt with, and how much of it when the lane was last found idle.
#[derive(Default)]
struct Counts {
    dealt_with: AtomicUsize,
    seen_idle: AtomicUsize,
}

struct Handler {
    counts: Arc<Counts>,
    /// What another thread begins to send at [`KEEP`], and what tells that it has.
    kept: Mutex<Option<(Keeping, Receiver<()>)>>,
}

impl LaneHandler for Handler {
    fn on_frame(&self, lane: &Lane, prefix: &[u8; 16], _head: &[u8]) -> Incoming {
        match prefix[0] {
            WORK => {
                return Incoming::Work(Box::new(Steps { left: 4, counts: self.counts.clone() }));
            }
            ANSWER => {
                let (end, _) = std::io::pipe().unwrap();
                lane.send_later_with(&frame(COUNT), end.into());
            }
            KEEP => {
                let (keeping, is_at_it) = self.kept.lock().unwrap().take().unwrap();
                let lane = lane.clone();
                thread::spawn(move || lane.send_bulk(Box::new(keeping)));
                is_at_it.recv().unwrap();
            }
            _ => {}
        }
        self.counts.dealt_with.fetch_add(1, Ordering::SeqCst);
        Incoming::Done
    }

    fn on_idle(&self, _lane: &Lane) {
        let dealt_with = self.counts.dealt_with.load(Ordering::SeqCst);
        self.counts.seen_idle.fetch_max(dealt_with, Ordering::SeqCst);
    }

    fn on_closed(&self, _lane: &Lane, _reason: &CloseReason) {}
}

struct Steps {
    left: usize,
    counts: Arc<Counts>,
}

impl Work for Steps {
    fn step(&mut self, _line: Line) -> Progress {
        if self.left == 0 {
            return Progress::Over;
        }
        self.left -= 1;
        Progress::More(1 << 20)
    }

    fn finish(self: Box<Self>, _lane: &Lane) {
        self.counts.dealt_with.fetch_add(1, Ordering::SeqCst);
    }
}

struct Ends {
    lane: Lane,
    other_end: UnixStream,
    counts: Arc<Counts>,
}

fn lane(reactor: &Reactor) -> Ends {
    lane_with(reactor, None)
}

fn lane_with(reactor: &Reactor, kept: Option<(Keeping, Receiver<()>)>) -> Ends {
    let (one, other_end) = UnixStream::pair().unwrap();
    let counts = Arc::new(Counts::default());
    let handler = Handler { counts: counts.clone(), kept: Mutex::new(kept) };
    let lane = reactor.add(one.into(), CONFIG, Arc::new(handler)).unwrap();
    Ends { lane, other_end, counts }
}

impl Ends {
    fn dealt_with(&self) -> usize {
        self.counts.dealt_with.load(Ordering::SeqCst)
    }

    fn seen_idle(&self) -> usize {
        self.counts.seen_idle.load(Ordering::SeqCst)
    }
}

fn run(reactor: &Reactor) {
    while reactor.round().unwrap() {}
}

#[test]
fn whoever_deals_with_the_last_frame_finds_the_lane_idle_after_it() {
    let reactor = Reactor::without_thread().unwrap();
    let mut ends = lane(&reactor);
    ends.other_end.write_all(&frame(COUNT)).unwrap();
    run(&reactor);
    assert_eq!((ends.dealt_with(), ends.seen_idle()), (1, 1));
    // A thread that waits for an answer looks by itself: no event comes for what it has dealt with.
    ends.other_end.write_all(&frame(COUNT)).unwrap();
    ends.lane.look();
    assert_eq!((ends.dealt_with(), ends.seen_idle()), (2, 2));
    // It begins what the reactor has to go on with.
    ends.other_end.write_all(&frame(WORK)).unwrap();
    ends.lane.look();
    assert_eq!((ends.dealt_with(), ends.seen_idle()), (2, 2));
    run(&reactor);
    assert_eq!((ends.dealt_with(), ends.seen_idle()), (3, 3));
    // The other end may be in the middle of the next one.
    ends.other_end.write_all(&[frame(COUNT), frame(COUNT)].concat()[..20]).unwrap();
    run(&reactor);
    assert_eq!((ends.dealt_with(), ends.seen_idle()), (4, 4));
}

#[test]
fn nothing_is_left_lying_between_a_thread_that_looks_and_the_one_that_drives() {
    let reactor = Reactor::start("idle", ReactorConfig { spin: Duration::ZERO }).unwrap();
    let mut ends = lane(&reactor);
    for round in 1..=3000 {
        ends.other_end.write_all(&frame(if round % 3 == 0 { WORK } else { COUNT })).unwrap();
        let began = Instant::now();
        while ends.seen_idle() < round {
            ends.lane.look();
            let patience = Duration::from_secs(10);
            assert!(began.elapsed() < patience, "{round}: {} are lying", ends.dealt_with());
        }
    }
}

#[test]
fn a_lane_whose_answers_wait_for_company_is_read_on_when_too_many_wait() {
    let reactor = Reactor::without_thread().unwrap();
    let mut ends = lane(&reactor);
    // They come at once, so nothing but their number has them sent.
    ends.other_end.write_all(&frame(ANSWER).repeat(20 * BACKLOG)).unwrap();
    run(&reactor);
    assert_eq!(ends.dealt_with(), 20 * BACKLOG);
    assert_eq!(ends.lane.backlog_frames(), 0);
}

#[test]
fn a_lane_hears_of_room_only_when_it_has_had_none() {
    let reactor = Reactor::without_thread().unwrap();
    let mut ends = lane(&reactor);
    run(&reactor);
    // It had room, so nothing is to be done when the other end reads.
    ends.lane.send(&frame(COUNT));
    ends.other_end.read_exact(&mut [0; 16]).unwrap();
    assert!(!reactor.round().unwrap());
    // More than fits.
    let sent = frame(COUNT).repeat(1 << 18);
    ends.lane.send(&sent);
    run(&reactor);
    let (mut received, mut buffer) = (0, vec![0; 1 << 16]);
    let began = Instant::now();
    ends.other_end.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    while received < sent.len() {
        received += ends.other_end.read(&mut buffer).unwrap_or(0);
        run(&reactor);
        assert!(began.elapsed() < Duration::from_secs(10), "{received} bytes have come");
    }
    assert_eq!(received, sent.len());
}

/// A frame without a payload that keeps whoever sends it.
struct Keeping {
    begun: Sender<()>,
    end: Receiver<()>,
    gone: Sender<()>,
}

impl Outgoing for Keeping {
    fn start(&mut self, out: &mut Vec<u8>) -> Start {
        self.begun.send(()).unwrap();
        self.end.recv().unwrap();
        out.extend_from_slice(&frame(COUNT));
        Start::Bare
    }

    fn load(&mut self, loader: &mut Loader<'_>) -> Load {
        Load::Sent(Err(std::io::Error::other(format!("no payload: {loader:?}"))))
    }

    fn sent(self: Box<Self>, _whole: bool, _out: &mut Vec<u8>) {
        let _ = self.gone.send(());
    }
}

#[test]
fn a_lane_that_is_not_read_because_another_thread_sends_is_read_on_when_that_is_through() {
    let reactor = Reactor::without_thread().unwrap();
    let (begun, is_at_it) = channel();
    let (go_on, end) = channel();
    let (gone, is_gone) = channel();
    let mut ends = lane_with(&reactor, Some((Keeping { begun, end, gone }, is_at_it)));
    let frames = [vec![frame(KEEP)], vec![frame(ANSWER); 2 * BACKLOG]].concat().concat();
    ends.other_end.write_all(&frames).unwrap();
    run(&reactor);
    let dealt_with = ends.dealt_with();
    assert!((BACKLOG..=2 * BACKLOG).contains(&dealt_with), "{dealt_with} were dealt with");
    go_on.send(()).unwrap();
    is_gone.recv().unwrap();
    // No event comes for it, and whoever sends may not be through with the rest yet.
    let began = Instant::now();
    while ends.dealt_with() <= 2 * BACKLOG {
        run(&reactor);
        assert!(began.elapsed() < Duration::from_secs(10), "{} were dealt with", ends.dealt_with());
    }
}
