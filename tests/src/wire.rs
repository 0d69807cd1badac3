//! A peer that is no engine: it speaks frames on a lane, well or badly.

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kvferry_proto::frame::{
    Descriptor, Hello, Kind, PairAddress, Prefix, Refusal, Reply, SliceHead, Welcome,
};
use kvferry_proto::message::{Ticket, VERSION_MAJOR};
use kvferry_proto::{GrantId, Incarnation, LaneId, RegionId, TransferId};

use kvferry_transport::local::{
    Beacon, Challenge, NUMBER_BYTES, Obstacle, RING_PARTS, answer, receive_greeting, send_greeting,
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::command::Setup;
use crate::process::{Cache, Process, run_directory};

/// A lane to a peer process, spoken by hand.
#[derive(Debug)]
pub struct RawLane {
    stream: Stream,
    /// By what the other end knows this process.
    beacon: Option<Beacon>,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const PATIENCE: Duration = Duration::from_secs(10);

impl RawLane {
    /// Connects, and says nothing yet.
    #[must_use]
    pub fn connect(to: &Process) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", to.lane_port)).expect("it accepts lanes");
        stream.set_read_timeout(Some(PATIENCE)).expect("not zero");
        Self { stream: Stream::Tcp(stream), beacon: None }
    }

    /// Connects to its socket in the run directory, and says nothing yet.
    #[must_use]
    pub fn connect_locally(to: &Process) -> Self {
        Self::over(UnixStream::connect(Self::socket(to)).expect("it listens there"))
    }

    /// Where its socket is.
    #[must_use]
    pub fn socket(to: &Process) -> PathBuf {
        run_directory().join(format!("{}.sock", Incarnation(to.incarnation)))
    }

    /// A lane over a Unix socket that is connected.
    #[must_use]
    pub fn over(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("not zero");
        Self { stream: Stream::Unix(stream), beacon: None }
    }

    /// Proves to it that this process is on its host, and shows it this process's memory.
    pub fn prove(&mut self) {
        let number = [7; NUMBER_BYTES];
        let beacon = Beacon::new(number).expect("a page");
        assert_eq!(self.prove_with(number, beacon.address()), Ok(()));
        self.beacon = Some(beacon);
    }

    /// Proves to it that this process is on its host, by this number, which it says is found at this
    /// address of its memory. Returns whether the other end found it there.
    pub fn prove_with(&mut self, number: [u8; NUMBER_BYTES], address: u64) -> Result<(), Obstacle> {
        let Stream::Unix(stream) = &mut self.stream else { panic!("not a local lane") };
        let challenge = Challenge::new(number).expect("a memfd");
        send_greeting(stream.as_fd(), &challenge).expect("it takes a greeting");
        let began = Instant::now();
        let theirs = loop {
            match receive_greeting(stream.as_fd()) {
                Ok(theirs) => break theirs,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    assert!(began.elapsed() < PATIENCE, "no greeting");
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("{error}"),
            }
        };
        stream.write_all(&answer(theirs).expect("a challenge")).expect("it reads the answer");
        let mut answered = [0; NUMBER_BYTES];
        stream.read_exact(&mut answered).expect("it answers");
        assert!(challenge.is_met_by(answered));
        stream.write_all(&address.to_le_bytes()).expect("it reads the address");
        let mut theirs = [0; 8];
        stream.read_exact(&mut theirs).expect("it shows its own");
        stream.write_all(&[Obstacle::encode(Ok(()))]).expect("it reads the verdict");
        let mut verdict = [0];
        stream.read_exact(&mut verdict).expect("it says what it found");
        self.decline_ring();
        Obstacle::decode(verdict[0])
    }

    /// Has no part of a ring to pass, so all goes through the socket.
    fn decline_ring(&mut self) {
        let parts_and_verdict = [0; RING_PARTS + 1];
        self.stream.write_all(&parts_and_verdict).expect("it reads that there is no ring");
        let mut theirs = parts_and_verdict;
        self.stream.read_exact(&mut theirs).expect("it shows its own");
        assert_eq!(theirs[RING_PARTS], 0, "there is no ring to take");
    }

    /// Connects locally as `initiator`, proves that it is on the host, and says hello.
    ///
    /// # Errors
    /// Why the lane is refused.
    pub fn open_locally(to: &Process, initiator: u64, lane: u32) -> Result<Self, Refusal> {
        let mut raw = Self::connect_locally(to);
        raw.prove();
        raw.greet(to, initiator, lane)
    }

    /// Has another process believe that this one cannot be recognised any more.
    pub fn hide(&mut self) {
        self.beacon = None;
    }

    /// Sends a frame whose first byte takes a descriptor along.
    pub fn send_with(&mut self, frame: &[u8], descriptor: BorrowedFd<'_>) {
        let Stream::Unix(stream) = &self.stream else { panic!("not a local lane") };
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        let descriptors = [descriptor];
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let sent = sendmsg(stream, &[IoSlice::new(frame)], &mut control, SendFlags::empty());
        assert_eq!(sent.expect("it reads what it gets"), frame.len());
    }

    /// Connects as `initiator`, and says hello.
    ///
    /// # Errors
    /// Why the lane is refused.
    pub fn open(to: &Process, initiator: u64, lane: u32) -> Result<Self, Refusal> {
        Self::connect(to).greet(to, initiator, lane)
    }

    /// Connects as `initiator` a lane to which this queue pair belongs. Returns what the other end says
    /// of its own.
    ///
    /// # Errors
    /// Why the lane is refused.
    pub fn open_with_pair(
        to: &Process,
        initiator: u64,
        lane: u32,
        pair: &PairAddress,
    ) -> Result<(Self, PairAddress), Refusal> {
        let mut raw = Self::connect(to);
        raw.say_hello(to, initiator, lane, true);
        raw.send(&pair.encode());
        let mut raw = raw.welcomed()?;
        let mut theirs = [0; PairAddress::BYTES];
        raw.stream.read_exact(&mut theirs).expect("it has a queue pair too");
        Ok((raw, PairAddress::decode(&theirs).expect("it can be connected to")))
    }

    /// Says hello as `initiator`.
    ///
    /// # Errors
    /// Why the lane is refused.
    pub fn greet(mut self, to: &Process, initiator: u64, lane: u32) -> Result<Self, Refusal> {
        self.say_hello(to, initiator, lane, false);
        self.welcomed()
    }

    fn say_hello(&mut self, to: &Process, initiator: u64, lane: u32, with_pair: bool) {
        let hello = Hello {
            version: VERSION_MAJOR,
            initiator: Incarnation(initiator),
            target: Incarnation(to.incarnation),
            session: 0,
            lane: LaneId(lane),
            ping_ms: 2000,
            with_pair,
        };
        self.send(&hello.encode());
    }

    fn welcomed(mut self) -> Result<Self, Refusal> {
        let mut welcome = [0; Welcome::BYTES];
        self.stream.read_exact(&mut welcome).expect("it answers a hello");
        match Welcome::decode(&welcome).expect("it answers with a welcome").refusal {
            Some(refusal) => Err(refusal),
            None => Ok(self),
        }
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("it reads what it gets");
    }

    /// Sends bytes that may find the connection closed already.
    pub fn send_to_whom_it_may_concern(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Reads one reply without a payload.
    pub fn reply(&mut self) -> Reply {
        let mut prefix = [0; Prefix::BYTES];
        self.stream.read_exact(&mut prefix).expect("a reply comes");
        let prefix = Prefix::decode(&prefix).expect("a reply has a prefix");
        let mut head = vec![0; prefix.head_bytes as usize];
        self.stream.read_exact(&mut head).expect("a reply has a head");
        Reply::decode(&prefix, &head).expect("it is a reply")
    }

    /// Whether the other end closes the connection, within ten seconds.
    pub fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        match self.stream.read(&mut byte) {
            Ok(count) => count == 0,
            Err(error) => {
                !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
            }
        }
    }
}

/// A peer of whose 8 blocks of 4 KiB one initiator was granted all, and the ticket.
#[must_use]
pub fn granted_to(initiator: u64) -> (Process, Ticket) {
    let cache = Cache { blocks: 8, block_bytes: 4096, share: false };
    let mut target = Process::start_with(Setup::default(), cache);
    let ticket = grant(&mut target, "g", initiator, 0..8);
    (target, ticket)
}

/// Has a peer grant blocks to an initiator that is no engine, to be written for a minute.
#[must_use]
pub fn grant(target: &mut Process, name: &str, initiator: u64, blocks: Range<u32>) -> Ticket {
    let ticket = target.grant_to(name, blocks, initiator, true, Duration::from_secs(60));
    Ticket::decode(&ticket).expect("it is a ticket")
}

/// The frame of a write of `payload` to one span, under a grant.
#[must_use]
pub fn write_frame(
    transfer: u64,
    grant: GrantId,
    region: RegionId,
    offset: u64,
    payload: &[u8],
) -> Vec<u8> {
    write_frame_with(transfer, transfer, grant, region, offset, payload, None)
}

/// The same, with a floor and a notification of its own.
#[must_use]
pub fn write_frame_with(
    transfer: u64,
    floor: u64,
    grant: GrantId,
    region: RegionId,
    offset: u64,
    payload: &[u8],
    notification: Option<&[u8]>,
) -> Vec<u8> {
    let bytes = u32::try_from(payload.len()).expect("a small payload");
    let head = SliceHead {
        transfer: TransferId(transfer),
        floor: TransferId(floor),
        slice: 0,
        remaining_us: 10_000_000,
        crc32c: 0,
    };
    let prefix = Prefix { answer_now: true, payload_bytes: bytes, ..Prefix::new(Kind::Write) };
    let mut frame = Vec::new();
    head.encode(&mut frame, prefix, notification, |writer| {
        writer.push(grant, region, Descriptor { offset, bytes, count: 1, stride: 0 });
    });
    frame.extend_from_slice(payload);
    frame
}
