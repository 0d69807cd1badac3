//! Bytes between two processes of one host without a system call: each end writes into a memfd of its
//! own, and maps the other's for reading only.
//!
//! ```text
//!  an end's memfd: | sent | taken | watchers | wants room |  ...  | bytes, round and round |
//!                    page 0, each on cache lines of its own          RING_BYTES
//! ```
//!
//! `sent` is how many bytes the end has ever written, `taken` how many of the other's it has ever read.
//! Nobody stores into another's memory, and what the other says is only read and never believed: a
//! position that cannot be is an error, and bytes are copied out before they are looked at.
//!
//! An end that looks says so (`watchers`), and is not woken. One that sleeps is, by a doorbell: an
//! eventfd of its own, of which the other has a descriptor too.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use super::peer::Mapping;
use crate::descriptor;
use crate::doorbell::{publish, reached, settle};
use crate::lanes::send_bytes;
use crate::memory::allocate::{map_aligned, seal, sealed_memfd};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// How many bytes may be on their way: what a request for a slice of 1 MiB takes in blocks of 1 KiB, a
/// few times over.
const RING_BYTES: usize = 128 << 10;

const RING: u64 = RING_BYTES as u64;

/// Where the bytes begin: behind a page of positions and marks.
const HEADER_BYTES: usize = 4096;

const LENGTH: usize = HEADER_BYTES + RING_BYTES;

/// Two cache lines, which processors fetch together, for each position and mark.
const SENT: usize = 0;
const TAKEN: usize = 128;
const WATCHERS: usize = 256;
const WANTS_ROOM: usize = 384;

/// What passes with each descriptor, and what is sent where there is none.
const WITH: [u8; 1] = [1];
const WITHOUT: [u8; 1] = [0];

/// What is shared of an end: a memfd and a doorbell.
pub const PARTS: usize = 2;

/// An end of a ring that has no other yet.
#[derive(Debug)]
pub struct RingEnd {
    memory: Mapping,
    memfd: OwnedFd,
    bell: OwnedFd,
}

impl RingEnd {
    /// Memory and a doorbell for one end.
    ///
    /// # Errors
    /// What the kernel says when it gives none, or does not seal memory against writes of others.
    pub fn new() -> io::Result<Self> {
        let memfd = sealed_memfd(c"kvferry-ring", LENGTH).map_err(io::Error::other)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let base = map_aligned(memfd.as_fd(), LENGTH, access).map_err(io::Error::other)?;
        let memory = Mapping::new(base, LENGTH);
        // Before Linux 5.1 there is no such seal.
        seal(&memfd, libc::F_SEAL_FUTURE_WRITE)?;
        // SAFETY: the call takes two integers; the result is checked before use.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if bell < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor fresh from the kernel that nobody else owns.
        let bell = unsafe { OwnedFd::from_raw_fd(bell) };
        Ok(Self { memory, memfd: memfd.into(), bell })
    }

    /// Sends one of the [`PARTS`] of an end to the other, or says that there is none, without blocking.
    ///
    /// # Errors
    /// What the kernel says; `WouldBlock` when it takes nothing now.
    pub fn send(end: Option<&Self>, part: usize, socket: BorrowedFd<'_>) -> io::Result<()> {
        let socket = socket.as_raw_fd();
        let sent = match end {
            Some(end) => {
                let part = if part == 0 { &end.memfd } else { &end.bell };
                descriptor::send(socket, &WITH, part.as_fd())?
            }
            None => send_bytes(socket, &WITHOUT)?,
        };
        if sent == 1 { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Receives a part of the other end, without blocking; `None` where it has none.
    ///
    /// # Errors
    /// What the kernel says; `UnexpectedEof` when the other end is gone.
    pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
        let (received, part) = descriptor::receive(socket.as_raw_fd(), &mut [0])?;
        if received == 1 { Ok(part) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Puts both ends together.
    ///
    /// # Errors
    /// `InvalidData` when what the other end has passed is not a sealed memfd of the size and an
    /// eventfd that does not block; what the kernel says when it cannot be mapped.
    pub fn join(self, memory: OwnedFd, bell: OwnedFd) -> io::Result<Ring> {
        let theirs = Mapping::of_lent(memory, LENGTH as u64).map_err(invalid)?;
        check_bell(bell.as_fd())?;
        let ours = self.memory;
        let shared = Arc::new(Shared { ours, theirs, bell: self.bell, their_bell: bell });
        Ok(Ring {
            producer: Producer {
                shared: shared.clone(),
                sent: 0,
                their_taken: 0,
                is_full: false,
                has_refused: false,
                is_bell_due: false,
            },
            consumer: Consumer { shared: shared.clone(), taken: 0 },
            shared,
        })
    }
}

/// Whether ringing it cannot block: only an eventfd is known to do what we want.
fn check_bell(bell: BorrowedFd<'_>) -> io::Result<()> {
    let name = std::fs::read_link(format!("/proc/self/fd/{}", bell.as_raw_fd()))?;
    // SAFETY: a descriptor that is borrowed; the call takes no other argument.
    let flags = unsafe { libc::fcntl(bell.as_raw_fd(), libc::F_GETFL) };
    if name.as_os_str().as_bytes() != b"anon_inode:[eventfd]" || flags & libc::O_NONBLOCK == 0 {
        let what = "the doorbell that it passes is no eventfd, or one that blocks";
        return Err(invalid(what));
    }
    Ok(())
}

fn invalid(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Two ends put together, as one of them has it.
#[derive(Debug)]
pub struct Ring {
    pub(crate) producer: Producer,
    pub(crate) consumer: Consumer,
    pub(crate) shared: Arc<Shared>,
}

/// What the threads of one end share of a ring.
pub(crate) struct Shared {
    ours: Mapping,
    theirs: Mapping,
    bell: OwnedFd,
    their_bell: OwnedFd,
}

impl Shared {
    /// Readable, as epoll tells it, when this end is to look.
    pub(crate) fn bell(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// From now on this end is not woken, because a thread of its looks.
    pub(crate) fn watch(&self) {
        self.ours.mark(WATCHERS).fetch_add(1, Ordering::Relaxed);
    }

    /// A thread looks no more. Whether there is something that nobody may be woken for.
    pub(crate) fn unwatch(&self) -> bool {
        self.ours.mark(WATCHERS).fetch_sub(1, Ordering::Relaxed);
        settle(self.theirs.position(SENT)) != self.taken()
    }

    /// Whether bytes have come that were not taken.
    pub(crate) fn has_more(&self) -> bool {
        reached(self.theirs.position(SENT)) != self.taken()
    }

    fn taken(&self) -> u64 {
        self.ours.position(TAKEN).load(Ordering::Relaxed)
    }

    fn ring_bell(&self) {
        let one = 1_u64.to_ne_bytes();
        // Full is as good as rung, and there is no other error for an eventfd.
        // SAFETY: the buffer is borrowed for this call, which only reads it. It does not block, unless a
        // process of the same user changes what it has passed to make it.
        let _ = unsafe { libc::write(self.their_bell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("taken", &self.taken()).finish_non_exhaustive()
    }
}

/// What is where in the memory of an end, which is of [`LENGTH`].
trait Layout {
    fn position(&self, offset: usize) -> &AtomicU64;
    fn mark(&self, offset: usize) -> &AtomicU32;
    fn data(&self) -> *mut u8;
}

impl Layout for Mapping {
    fn position(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset <= WANTS_ROOM);
        // SAFETY: within the mapping, which lives as long as what is returned, and aligned, since
        // the mapping is to pages. Nobody touches it but by atomics; where the mapping is for reading
        // only it is loaded only, relaxed.
        unsafe { AtomicU64::from_ptr(self.base().add(offset).cast()) }
    }

    fn mark(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset <= WANTS_ROOM);
        // SAFETY: as in `position`.
        unsafe { AtomicU32::from_ptr(self.base().add(offset).cast()) }
    }

    fn data(&self) -> *mut u8 {
        self.base().wrapping_add(HEADER_BYTES)
    }
}

/// Where a position lies among the bytes, and how many bytes of `bytes` come before the end there.
fn place(position: u64, bytes: usize) -> (usize, usize) {
    // Less than the length, which is a power of two.
    let at = usize::try_from(position % RING).unwrap_or(0);
    (at, bytes.min(RING_BYTES - at))
}

const _: () = assert!(RING_BYTES.is_power_of_two());

fn impossible() -> io::Error {
    invalid("a position in the ring that cannot be")
}

/// The end that writes.
#[derive(Debug)]
pub(crate) struct Producer {
    shared: Arc<Shared>,
    sent: u64,
    /// How much the other end had taken when that was last looked at.
    their_taken: u64,
    /// It has said that it wants to be told of room.
    is_full: bool,
    /// There was no room when it was last asked for any.
    has_refused: bool,
    is_bell_due: bool,
}

impl Producer {
    /// Writes as much as there is room for. Whoever awaits it is woken by [`Self::ring_if_due`].
    ///
    /// # Errors
    /// `WouldBlock` when there is no room: the doorbell tells when there is. `InvalidData` when the
    /// other end says what cannot be.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        self.fill(bytes.len(), |place| {
            let (now, later) = rest.split_at(place.len());
            place.copy_from_slice(now);
            rest = later;
            Ok(now.len())
        })
    }

    /// As [`Self::push`], for `wanted` bytes that somebody else copies into place: into one piece, and
    /// where that was filled into another.
    ///
    /// # Errors
    /// As [`Self::push`], and what `copy` says, which was asked for nothing more then.
    pub(crate) fn fill(
        &mut self,
        wanted: usize,
        mut copy: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let bytes = self.room_for(wanted)?.min(wanted);
        let (at, until_end) = place(self.sent, bytes);
        let mut filled = 0;
        for (at, length) in [(at, until_end), (0, bytes - until_end)] {
            if length == 0 {
                break;
            }
            // SAFETY: within our mapping, behind its header: `at + length` is at most the length of the
            // ring. There is room here, so the other end does not read it, nobody but we can write it, and
            // no other reference to it exists.
            let piece =
                unsafe { std::slice::from_raw_parts_mut(self.shared.ours.data().add(at), length) };
            let copied = copy(piece)?.min(length);
            filled += copied;
            if copied < length {
                break;
            }
        }
        self.sent += filled as u64;
        let (sent, watchers) = (self.shared.ours.position(SENT), self.shared.theirs.mark(WATCHERS));
        self.is_bell_due |= publish(sent, self.sent, watchers) == 0;
        Ok(filled)
    }

    /// How much room there is for `wanted` bytes: some, and maybe more than that.
    ///
    /// # Errors
    /// As [`Self::push`].
    fn room_for(&mut self, wanted: usize) -> io::Result<usize> {
        let mut room = self.room()?;
        if room < wanted {
            self.their_taken = reached(self.shared.theirs.position(TAKEN));
            room = self.room()?;
        }
        if room == 0 {
            self.want_room(true);
            self.their_taken = settle(self.shared.theirs.position(TAKEN));
            room = self.room()?;
            if room == 0 {
                self.has_refused = true;
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        if self.is_full {
            self.want_room(false);
        }
        Ok(room)
    }

    fn room(&self) -> io::Result<usize> {
        let under_way = self.sent.wrapping_sub(self.their_taken);
        let room = RING.checked_sub(under_way).ok_or_else(impossible)?;
        usize::try_from(room).map_err(|_| impossible())
    }

    fn want_room(&mut self, wanted: bool) {
        self.is_full = wanted;
        self.shared.ours.mark(WANTS_ROOM).store(u32::from(wanted), Ordering::Relaxed);
    }

    /// Whether there was no room for something, since this was last asked: then the doorbell tells when
    /// there is.
    pub(crate) fn has_refused(&mut self) -> bool {
        std::mem::take(&mut self.has_refused)
    }

    /// Wakes the other end, if something was written while nobody there looked.
    pub(crate) fn ring_if_due(&mut self) {
        if std::mem::take(&mut self.is_bell_due) {
            self.shared.ring_bell();
        }
    }
}

/// The end that reads.
#[derive(Debug)]
pub(crate) struct Consumer {
    shared: Arc<Shared>,
    taken: u64,
}

impl Consumer {
    /// Whether bytes have come that were not taken.
    pub(crate) fn has_more(&self) -> bool {
        self.shared.has_more()
    }

    /// Takes what is there, as much as fits: 0 where nothing is.
    ///
    /// # Errors
    /// `InvalidData` when the other end says what cannot be.
    pub(crate) fn take(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let sent = reached(self.shared.theirs.position(SENT));
        let there = sent.wrapping_sub(self.taken);
        if there > RING {
            return Err(impossible());
        }
        let bytes = usize::try_from(there).map_err(|_| impossible())?.min(into.len());
        if bytes == 0 {
            return Ok(0);
        }
        let (at, until_end) = place(self.taken, bytes);
        let (first, second) = into[..bytes].split_at_mut(until_end);
        let data = self.shared.theirs.data().cast_const();
        // SAFETY: both ranges lie within the other end's mapping, behind its header, as in
        // `Producer::push`; `into` is exclusively ours. What the other end writes there meanwhile, which
        // it should not, is garbage to whoever reads the frames, and no more.
        unsafe {
            std::ptr::copy_nonoverlapping(data.add(at), first.as_mut_ptr(), first.len());
            std::ptr::copy_nonoverlapping(data, second.as_mut_ptr(), second.len());
        }
        self.taken += bytes as u64;
        let (taken, wants) =
            (self.shared.ours.position(TAKEN), self.shared.theirs.mark(WANTS_ROOM));
        let wants = publish(taken, self.taken, wants) != 0;
        // Not for each few bytes: what is left is taken next, or much is free by now.
        let left = there - bytes as u64;
        if wants && left <= RING / 2 {
            self.shared.ring_bell();
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests;
