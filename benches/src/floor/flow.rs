//! One connection's share of a run, and the thread that drives one or more of them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kvferry_engine::Region;
use kvferry_transport::memory::{IoVecs, SpanList};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cli::Op;
use crate::floor::Job;
use crate::floor::slices::slices;
use crate::shape::Placement;

/// How long nothing may move before the run is given up.
const STALLED: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// A connection and what it carries.
#[derive(Debug)]
pub(crate) struct Flow {
    socket: TcpStream,
    /// Of all transfers, one behind the other.
    slices: Vec<SpanList>,
    /// Where each transfer ends among them.
    ends: Vec<usize>,
    /// The transfer that is under way.
    transfer: usize,
    /// The slice that is under way.
    slice: usize,
}

/// What a call on a connection came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Moved,
    Blocked,
    Finished,
}

impl Flow {
    /// A flow that carries these parts of the list, each as a transfer.
    pub(super) fn new(
        socket: &TcpStream,
        transfers: impl Iterator<Item = Range<u64>>,
        region: &Region,
        placement: &Placement,
    ) -> anyhow::Result<Self> {
        let socket = socket.try_clone().context("duplicating a connection's descriptor")?;
        let (mut all, mut ends) = (Vec::new(), Vec::new());
        for range in transfers {
            all.append(&mut slices(range, region, placement)?);
            ends.push(all.len());
        }
        Ok(Self { socket, slices: all, ends, transfer: 0, slice: 0 })
    }

    /// The slice that is next in this transfer.
    fn open(&mut self) -> Option<&mut SpanList> {
        let end = *self.ends.get(self.transfer)?;
        self.slices[..end].get_mut(self.slice)
    }

    fn send(&mut self, scratch: &mut IoVecs) -> io::Result<Progress> {
        let socket = self.socket.as_raw_fd();
        let Some(slice) = self.open() else { return Ok(Progress::Finished) };
        match slice.gather(socket, &[], scratch) {
            Ok(_) => Ok(self.moved()),
            Err(error) => blocked(error),
        }
    }

    fn receive(&mut self, scratch: &mut IoVecs) -> io::Result<Progress> {
        let socket = self.socket.as_raw_fd();
        let Some(slice) = self.open() else { return Ok(Progress::Finished) };
        match slice.scatter(socket, &mut [], scratch) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(self.moved()),
            Err(error) => blocked(error),
        }
    }

    fn moved(&mut self) -> Progress {
        if self.slices[self.slice].remaining() == 0 {
            self.slice += 1;
        }
        if self.open().is_none() { Progress::Finished } else { Progress::Moved }
    }

    fn send_byte(&mut self) -> io::Result<Progress> {
        match self.socket.write(&[1]) {
            Ok(0) => Ok(Progress::Blocked),
            Ok(_) => Ok(Progress::Finished),
            Err(error) => blocked(error),
        }
    }

    fn receive_byte(&mut self) -> io::Result<Progress> {
        match self.socket.read(&mut [0]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(Progress::Finished),
            Err(error) => blocked(error),
        }
    }
}

fn blocked(error: io::Error) -> io::Result<Progress> {
    match error.kind() {
        io::ErrorKind::WouldBlock => Ok(Progress::Blocked),
        io::ErrorKind::Interrupted => Ok(Progress::Moved),
        _ => Err(error),
    }
}

/// A thread's work.
#[derive(Debug)]
pub(crate) struct Worker {
    flows: Vec<Flow>,
    spin: Duration,
    /// Before each transfer, at the initiator.
    pause: Duration,
    /// Whether it was just at work. The target begins asleep, as its engine does: what spins
    /// already when the clock starts would have a head start.
    awake: bool,
    scratch: IoVecs,
}

impl Worker {
    pub(super) fn new(flows: Vec<Flow>, job: &Job) -> Self {
        let pause = job.pace.pause().unwrap_or_default();
        let spin = job.strategy.spin();
        Self { flows, spin, pause, awake: true, scratch: IoVecs::default() }
    }

    /// The initiator's part: how long each transfer took.
    pub(crate) fn run(&mut self, op: Op) -> anyhow::Result<Vec<Duration>> {
        let transfers = self.transfers();
        let mut latencies = Vec::with_capacity(transfers);
        for _ in 0..transfers {
            if !self.pause.is_zero() {
                thread::sleep(self.pause);
            }
            let begun = Instant::now();
            self.initiate(op).context("the floor's own connections")?;
            latencies.push(begun.elapsed());
            self.next();
        }
        Ok(latencies)
    }

    /// The target's part.
    pub(crate) fn serve(&mut self, op: Op) -> anyhow::Result<()> {
        self.awake = false;
        for _ in 0..self.transfers() {
            self.respond(op).context("the floor's own connections")?;
            self.next();
        }
        Ok(())
    }

    /// As many on each connection.
    fn transfers(&self) -> usize {
        self.flows.iter().map(|flow| flow.ends.len()).max().unwrap_or_default()
    }

    fn next(&mut self) {
        for flow in &mut self.flows {
            flow.transfer += 1;
        }
    }

    fn initiate(&mut self, op: Op) -> anyhow::Result<()> {
        match op {
            Op::Write => {
                self.send(Flow::send)?;
                self.receive(|flow, _| flow.receive_byte())
            }
            Op::Read => {
                self.send(|flow, _| flow.send_byte())?;
                self.receive(Flow::receive)?;
                self.receive(|flow, _| flow.receive_byte())
            }
        }
    }

    fn respond(&mut self, op: Op) -> anyhow::Result<()> {
        match op {
            Op::Write => {
                self.receive(Flow::receive)?;
                self.send(|flow, _| flow.send_byte())
            }
            Op::Read => {
                self.receive(|flow, _| flow.receive_byte())?;
                self.send(Flow::send)?;
                self.send(|flow, _| flow.send_byte())
            }
        }
    }

    fn send(
        &mut self,
        step: impl FnMut(&mut Flow, &mut IoVecs) -> io::Result<Progress>,
    ) -> anyhow::Result<()> {
        self.drive(PollFlags::OUT, Duration::ZERO, step)
    }

    fn receive(
        &mut self,
        step: impl FnMut(&mut Flow, &mut IoVecs) -> io::Result<Progress>,
    ) -> anyhow::Result<()> {
        self.drive(PollFlags::IN, self.spin, step)
    }

    /// Takes a step on each flow in turn until all have finished; where none moves, looks again for
    /// `spin`, then sleeps until one can.
    fn drive(
        &mut self,
        interest: PollFlags,
        spin: Duration,
        mut step: impl FnMut(&mut Flow, &mut IoVecs) -> io::Result<Progress>,
    ) -> anyhow::Result<()> {
        let mut pending: Vec<&mut Flow> = self.flows.iter_mut().collect();
        let mut idle_since = None;
        while !pending.is_empty() {
            let mut moved = false;
            let mut at = 0;
            while let Some(flow) = pending.get_mut(at) {
                let progress = step(flow, &mut self.scratch)?;
                moved |= progress != Progress::Blocked;
                if progress == Progress::Finished {
                    pending.remove(at);
                } else {
                    at += 1;
                }
            }
            if moved {
                idle_since = None;
                self.awake = true;
                continue;
            }
            let spin = if self.awake { spin } else { Duration::ZERO };
            if !spin.is_zero() && idle_since.get_or_insert_with(Instant::now).elapsed() < spin {
                std::hint::spin_loop();
                continue;
            }
            sleep(&pending, interest)?;
            idle_since = None;
        }
        Ok(())
    }
}

/// Sleeps until one of the sockets can go on.
fn sleep(flows: &[&mut Flow], interest: PollFlags) -> anyhow::Result<()> {
    let mut sockets: Vec<_> =
        flows.iter().map(|flow| PollFd::new(&flow.socket, interest)).collect();
    match poll(&mut sockets, Some(&STALLED)) {
        Ok(0) => bail!("nothing moved for {} s: the other process is stuck", STALLED.tv_sec),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(io::Error::from(error).into()),
    }
}
