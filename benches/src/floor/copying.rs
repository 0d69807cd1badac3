//! The floor of transfers within one host: the same blocks copied within one process, between the
//! region and a twin of it, by the means that processes of one host have.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use kvferry_engine::{Region, Registry};
use kvferry_transport::local::{Beacon, PeerMemory, PeerProcess, PeerSpans};
use kvferry_transport::memory::{IoVecs, SpanList};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::slices::{peer_slices, slices};
use crate::cli::{Memory, Op};
use crate::shape::{Placement, split};

/// How it is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From a read-only mapping of the source.
    Mapped,
    /// By `process_vm_readv`.
    InPlace,
    /// Through a Unix socket, which has a thread at either end.
    Socket,
}

impl Way {
    /// Those that there are for a kind of memory.
    pub(crate) fn of(memory: Memory) -> &'static [Self] {
        match memory {
            Memory::Shared => &[Self::Mapped],
            Memory::Foreign | Memory::ForeignHuge => &[Self::InPlace, Self::Socket],
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Mapped => "copied from a mapping",
            Self::InPlace => "process_vm_readv",
            Self::Socket => "a Unix socket",
        })
    }
}

const NUMBER: [u8; 16] = *b"kvbench's floor.";

/// A region like another, in the same process.
#[derive(Debug)]
pub(crate) struct Twin {
    region: Region,
    /// This process, as others find it.
    process: Arc<PeerProcess>,
    _beacon: Beacon,
}

impl Twin {
    /// A twin of a region of this kind of memory.
    pub(crate) fn of(region: &Region, memory: Memory) -> anyhow::Result<Self> {
        let twin = memory.region(&Registry::new(), region.length())?;
        let beacon = Beacon::new(NUMBER).context("mapping a page")?;
        let (here, _there) = UnixStream::pair().context("making a pair of sockets")?;
        let process = PeerProcess::find(here.as_fd(), beacon.address(), NUMBER)
            .context("reading this process's own memory by process_vm_readv")?;
        Ok(Self { region: twin, process: Arc::new(process), _beacon: beacon })
    }

    /// The region.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// The threads' work in one run: the list of blocks in equal parts, in order. `here` is how they
    /// lie in the other region, `there` in the twin.
    pub(crate) fn workers(
        &self,
        op: Op,
        (way, threads): (Way, u32),
        (other, here): (&Region, &Placement),
        there: &Placement,
    ) -> anyhow::Result<Vec<Copier>> {
        let ((from, from_order), (to, to_order)) = match op {
            Op::Write => ((other, here), (&self.region, there)),
            Op::Read => ((&self.region, there), (other, here)),
        };
        let source = match way {
            Way::Socket => None,
            Way::InPlace => Some(PeerMemory::in_place(&self.process, from.base(), from.length())?),
            Way::Mapped => {
                let lent = from.memory()?.lend()?.context("such memory cannot be mapped")?;
                Some(PeerMemory::map(lent, from.length())?)
            }
        };
        let parts = split(0..here.shape().count(), threads.into());
        parts
            .map(|range| {
                let to = slices(range.clone(), to, to_order)?;
                let from = match &source {
                    Some(source) => Source::Peer(peer_slices(range, source, from_order)?),
                    None => Source::Own(slices(range, from, from_order)?),
                };
                Ok(Copier { from, to })
            })
            .collect()
    }
}

#[derive(Debug)]
enum Source {
    Peer(Vec<PeerSpans>),
    Own(Vec<SpanList>),
}

/// A thread's work.
#[derive(Debug)]
pub(crate) struct Copier {
    from: Source,
    to: Vec<SpanList>,
}

/// How long nothing may move before the run is given up.
const STALLED: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

impl Copier {
    /// How long it took.
    pub(crate) fn run(self) -> anyhow::Result<Vec<Duration>> {
        let begun = Instant::now();
        match self.from {
            Source::Peer(from) => copy(from, self.to)?,
            Source::Own(from) => through_a_socket(from, self.to)?,
        }
        Ok(vec![begun.elapsed()])
    }
}

fn copy(from: Vec<PeerSpans>, to: Vec<SpanList>) -> anyhow::Result<()> {
    for (mut from, mut to) in from.into_iter().zip(to) {
        while to.remaining() > 0 {
            ensure!(to.copy_from(&mut from, usize::MAX)? > 0, "the lists differ in length");
        }
    }
    Ok(())
}

fn through_a_socket(from: Vec<SpanList>, to: Vec<SpanList>) -> anyhow::Result<()> {
    let (here, there) = UnixStream::pair().context("making a pair of sockets")?;
    thread::scope(|scope| {
        let sender = scope.spawn(move || {
            each(from, &here, PollFlags::OUT, |slice, scratch| {
                slice.gather(here.as_raw_fd(), &[], scratch)
            })
        });
        each(to, &there, PollFlags::IN, |slice, scratch| {
            slice.scatter(there.as_raw_fd(), &mut [], scratch)
        })?;
        sender.join().map_err(|_| anyhow!("a thread of the floor panicked: see above"))?
    })
}

/// Takes steps on each slice until nothing is left of it.
fn each(
    slices: Vec<SpanList>,
    socket: &UnixStream,
    interest: PollFlags,
    mut step: impl FnMut(&mut SpanList, &mut IoVecs) -> io::Result<usize>,
) -> anyhow::Result<()> {
    let mut scratch = IoVecs::default();
    for mut slice in slices {
        while slice.remaining() > 0 {
            match step(&mut slice, &mut scratch) {
                Ok(0) => bail!("the other thread of the floor is gone"),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let ready = poll(&mut [PollFd::new(socket, interest)], Some(&STALLED))?;
                    ensure!(ready > 0, "nothing moved for {} s", STALLED.tv_sec);
                }
                Err(error) => return Err(error).context("the floor's own socket"),
            }
        }
    }
    Ok(())
}
