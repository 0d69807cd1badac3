//! One connection's share of a run, and the thread that drives one or more of them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kvferry_engine::Region;
use kvferry_transport::memory::{IoVecs, SpanList};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cli::Op;
use crate::floor::slices::slices;
use crate::shape::Placement;

/// How long nothing may move before the run is given up.
const STALLED: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// A connection and what it carries.
#[derive(Debug)]
pub(crate) struct Flow {
    socket: TcpStream,
    slices: Vec<SpanList>,
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
    /// A flow that carries the blocks `range` of the list.
    pub(super) fn new(
        socket: &TcpStream,
        range: Range<u64>,
        region: &Region,
        placement: &Placement,
    ) -> anyhow::Result<Self> {
        let socket = socket.try_clone().context("duplicating a connection's descriptor")?;
        let slices = slices(range, region, placement)?;
        Ok(Self { socket, slices, slice: 0 })
    }

    fn send(&mut self, scratch: &mut IoVecs) -> io::Result<Progress> {
        let Some(slice) = self.slices.get_mut(self.slice) else { return Ok(Progress::Finished) };
        match slice.gather(self.socket.as_raw_fd(), &[], scratch) {
            Ok(_) => Ok(self.moved()),
            Err(error) => blocked(error),
        }
    }

    fn receive(&mut self, scratch: &mut IoVecs) -> io::Result<Progress> {
        let Some(slice) = self.slices.get_mut(self.slice) else { return Ok(Progress::Finished) };
        match slice.scatter(self.socket.as_raw_fd(), &mut [], scratch) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(self.moved()),
            Err(error) => blocked(error),
        }
    }

    fn moved(&mut self) -> Progress {
        if self.slices[self.slice].remaining() == 0 {
            self.slice += 1;
        }
        if self.slice == self.slices.len() { Progress::Finished } else { Progress::Moved }
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
    /// Whether it was just at work. The target begins asleep, as its engine does: what spins
    /// already when the clock starts would have a head start.
    awake: bool,
    scratch: IoVecs,
}

impl Worker {
    pub(super) fn new(flows: Vec<Flow>, spin: Duration) -> Self {
        Self { flows, spin, awake: true, scratch: IoVecs::default() }
    }

    /// The initiator's part.
    pub(crate) fn run(&mut self, op: Op) -> anyhow::Result<()> {
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
        .context("the floor's own connections")
    }

    /// The target's part.
    pub(crate) fn serve(&mut self, op: Op) -> anyhow::Result<()> {
        self.awake = false;
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
        .context("the floor's own connections")
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
