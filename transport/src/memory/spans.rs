//! Lists of spans, checked when they are made, gathered from and scattered into by system calls.

use std::io;
use std::os::fd::{OwnedFd, RawFd};

use crc_fast::{CrcAlgorithm, Digest};

use super::{Memory, MemoryError};
use crate::descriptor::{self, Room};
use crate::local::copy::{self, Store};
use crate::local::{PeerProcess, PeerSpans, Place, ReadError, ranges};

/// The most pieces that one system call takes (Linux: `UIO_MAXIOV`).
const IOV_MAX: usize = 1024;

/// How much is copied at once where bytes have to pass through user space.
const COPY_BYTES: usize = 16 << 10;

/// Room for the arguments of one scatter or gather call, kept so that none is allocated per call,
/// and the descriptors that came with what was scattered.
#[derive(Default)]
pub struct IoVecs {
    pieces: Vec<libc::iovec>,
    room: Room,
    pub(crate) descriptors: Vec<OwnedFd>,
}

// SAFETY: the entries are only meaningful during the call that fills them; between calls the
// vector is nothing but capacity.
unsafe impl Send for IoVecs {}

impl std::fmt::Debug for IoVecs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IoVecs").field("capacity", &self.pieces.capacity()).finish_non_exhaustive()
    }
}

/// From this size on a list of spans is copied past the cache. Its receiver is not about to look at
/// so much at once, and the cache is full of things that somebody is.
const STREAMED_BYTES: u64 = 256 << 10;

#[derive(Clone, Copy, Debug)]
struct RawSpan {
    address: usize,
    bytes: usize,
}

/// The spans from `start` on, up to the next section's, lie in `memory`.
#[derive(Debug)]
struct Section {
    start: usize,
    memory: Memory,
}

/// A list of spans and a position in it. Every span was checked against its memory, which the list
/// keeps alive; the position is where the next gather or scatter goes on.
#[derive(Debug, Default)]
pub struct SpanList {
    spans: Vec<RawSpan>,
    sections: Vec<Section>,
    bytes: u64,
    /// Whether any of the memory is none that a processor may touch at any time: a file's, or a
    /// device's. Whatever follows an address here looks first.
    is_guarded: bool,
    /// The span that is next, and how much of it is done.
    next: usize,
    within: usize,
    done: u64,
}

impl SpanList {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Spans pushed from now on lie in `memory`.
    pub fn attach(&mut self, memory: &Memory) {
        if self.sections.last().is_some_and(|section| section.memory.is_same(memory)) {
            return;
        }
        self.is_guarded |= !memory.is_plain();
        self.sections.push(Section { start: self.spans.len(), memory: memory.clone() });
    }

    /// Makes room for `spans` more.
    pub fn reserve(&mut self, spans: usize) {
        self.spans.reserve(spans);
    }

    /// Appends a span of the memory attached last.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] when it reaches outside, or nothing is attached.
    pub fn push(&mut self, offset: u64, bytes: u32) -> Result<(), MemoryError> {
        let length = u64::from(bytes);
        let Some(section) = self.sections.last() else {
            return Err(MemoryError::OutOfBounds { offset, length, memory_bytes: 0 });
        };
        let at = section.memory.locate(offset, length)?;
        self.spans.push(RawSpan { address: at as usize, bytes: bytes as usize });
        self.bytes += length;
        Ok(())
    }

    /// Bytes of all spans together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many spans there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.spans.len()
    }

    /// Where the spans lie in this process, from the first on: address and length in bytes of each.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        // Each was pushed with a length of 32 bits.
        self.spans
            .iter()
            .map(|span| (span.address as u64, u32::try_from(span.bytes).unwrap_or(u32::MAX)))
    }

    /// Bytes from the position on.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.bytes - self.done
    }

    /// Goes back to the start.
    pub fn rewind(&mut self) {
        (self.next, self.within, self.done) = (0, 0, 0);
    }

    /// Sends `head` and then bytes from the position on to a socket, as much as it takes without
    /// blocking. Returns how many bytes it took, `head`'s included; the position moves by the rest.
    ///
    /// # Errors
    /// What the kernel says; `WouldBlock` when it takes nothing now, `InvalidInput` (or `EFAULT`)
    /// when the memory cannot be read. The position does not move then.
    pub fn gather(
        &mut self,
        socket: RawFd,
        head: &[u8],
        scratch: &mut IoVecs,
    ) -> io::Result<usize> {
        self.check_backing()?;
        let iov = &mut scratch.pieces;
        iov.clear();
        if !head.is_empty() {
            iov.push(libc::iovec {
                iov_base: head.as_ptr().cast_mut().cast(),
                iov_len: head.len(),
            });
        }
        self.fill(iov, IOV_MAX);
        let message = message(iov);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: every entry of `iov` is either `head`, borrowed for this call, or a span that was
        // checked against a memory which this list keeps alive. The kernel only reads them, and
        // answers EFAULT for one that is not mapped.
        let sent = unsafe { libc::sendmsg(socket, &raw const message, flags) };
        iov.clear();
        let sent = result(sent)?;
        self.advance(sent.saturating_sub(head.len()));
        Ok(sent)
    }

    /// Puts pages from the position on into a pipe, as many as it takes without blocking. Returns how
    /// many bytes it took; the position does not move.
    ///
    /// # Errors
    /// What the kernel says; `WouldBlock` when the pipe is full, `EFAULT` when the memory cannot be
    /// read.
    pub(crate) fn lend_pages(&self, pipe: RawFd, scratch: &mut IoVecs) -> io::Result<usize> {
        self.check_backing()?;
        let iov = &mut scratch.pieces;
        iov.clear();
        self.fill(iov, IOV_MAX);
        // SAFETY: every entry of `iov` is a span that was checked against a memory which this list
        // keeps alive. The kernel only reads them, answers EFAULT for one that is not mapped, and
        // holds the pages for as long as they are in the pipe or behind it.
        let taken =
            unsafe { libc::vmsplice(pipe, iov.as_ptr(), iov.len(), libc::SPLICE_F_NONBLOCK) };
        iov.clear();
        result(taken)
    }

    /// Moves the position by bytes that have gone by reference.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.advance(bytes);
    }

    /// Whether any of the memory is a file's or a device's.
    pub(crate) fn is_guarded(&self) -> bool {
        self.is_guarded
    }

    /// Receives from a socket into the spans from the position on, and what comes behind the last
    /// one into `tail`, without blocking. Returns how many bytes came, `tail`'s included.
    ///
    /// # Errors
    /// What the kernel says; `WouldBlock` when nothing is there, `EFAULT` when the memory cannot be
    /// written. The position does not move then.
    pub fn scatter(
        &mut self,
        socket: RawFd,
        tail: &mut [u8],
        scratch: &mut IoVecs,
    ) -> io::Result<usize> {
        self.check_backing()?;
        let iov = &mut scratch.pieces;
        iov.clear();
        self.fill(iov, IOV_MAX - 1);
        // The tail is behind the last span only if all spans fit the call.
        if iov.len() == self.spans.len() - self.next && !tail.is_empty() {
            iov.push(libc::iovec { iov_base: tail.as_mut_ptr().cast(), iov_len: tail.len() });
        }
        let mut message = message(iov);
        scratch.room.lend_to(&mut message);
        // SAFETY: every entry of `iov` is either `tail`, borrowed mutably for this call, or a span
        // that was checked against a memory which this list keeps alive and to which no reference
        // exists. The kernel answers EFAULT for one that is not mapped.
        let received = unsafe { libc::recvmsg(socket, &raw mut message, descriptor::FLAGS) };
        iov.clear();
        let received = result(received)?;
        scratch.descriptors.extend(descriptor::taken_from(&message));
        let remaining = usize::try_from(self.remaining()).unwrap_or(usize::MAX);
        self.advance(received.min(remaining));
        Ok(received)
    }

    /// Copies `from` into the spans from the position on, as much as fits. Returns how much did.
    ///
    /// # Errors
    /// [`MemoryError`] when the memory cannot be touched.
    pub fn copy_in(&mut self, from: &[u8]) -> Result<usize, MemoryError> {
        let mut copied = 0;
        while copied < from.len() {
            let Some((memory, offset, bytes)) = self.current() else { break };
            let bytes = bytes.min(from.len() - copied);
            memory.copy_in(offset, &from[copied..copied + bytes])?;
            copied += bytes;
            self.advance(bytes);
        }
        Ok(copied)
    }

    /// Copies from the spans from the position on into `into`, as much as is left of them. Returns how
    /// much was.
    ///
    /// # Errors
    /// [`MemoryError`] when the memory cannot be touched.
    pub fn copy_out(&mut self, into: &mut [u8]) -> Result<usize, MemoryError> {
        let mut copied = 0;
        while copied < into.len() {
            let Some((memory, offset, bytes)) = self.current() else { break };
            let bytes = bytes.min(into.len() - copied);
            memory.copy_out(offset, &mut into[copied..copied + bytes])?;
            copied += bytes;
            self.advance(bytes);
        }
        Ok(copied)
    }

    /// Copies from memory that a peer lends into the spans from the position on, up to `most`
    /// bytes; both positions move. Returns how much was copied: 0 when nothing is left on one of
    /// the sides.
    ///
    /// # Errors
    /// [`MemoryError`] when the memory cannot be touched, [`MemoryError::PeerFault`] when the peer's
    /// is not there, [`MemoryError::OutOfReach`] when its process cannot be read any more. Some of
    /// what was to be copied may be in place then.
    pub fn copy_from(&mut self, from: &mut PeerSpans, most: usize) -> Result<usize, MemoryError> {
        let mut copied = 0;
        while copied < most {
            let step = match from.place() {
                None => break,
                Some(Place::Mapped) => self.copy_mapped(from, most - copied)?,
                Some(Place::InPlace(process)) => {
                    let process = process.clone();
                    self.read_in_place(&process, from, most - copied)?
                }
            };
            if step == 0 {
                break;
            }
            copied += step;
        }
        copy::settle();
        Ok(copied)
    }

    /// Copies as far as the peer's spans are mapped.
    fn copy_mapped(&mut self, from: &mut PeerSpans, most: usize) -> Result<usize, MemoryError> {
        let store = if self.bytes >= STREAMED_BYTES { Store::Streamed } else { Store::Cached };
        let mut copied = 0;
        while copied < most {
            let Some(span) = self.spans.get(self.next) else { break };
            let Some((source, source_bytes, following)) = from.current() else { break };
            let bytes = (span.bytes - self.within).min(source_bytes).min(most - copied);
            let to = span.address + self.within;
            if bytes == source_bytes
                && let Some(following) = following
            {
                copy::prefetch(following);
            }
            if self.is_guarded {
                self.copy_by_buffer(source, bytes)?;
            } else {
                // SAFETY: both spans were checked against memories which the two lists keep mapped,
                // ours writable and the peer's readable, and they are different mappings.
                unsafe { copy::copy(to as *mut u8, source, bytes, store) };
            }
            copied += bytes;
            self.advance(bytes);
            from.advance(bytes);
        }
        Ok(copied)
    }

    /// Reads from the peer's process by one call.
    fn read_in_place(
        &mut self,
        process: &PeerProcess,
        from: &mut PeerSpans,
        most: usize,
    ) -> Result<usize, MemoryError> {
        for section in self.sections.iter().filter(|_| self.is_guarded) {
            section.memory.check_backing()?;
        }
        let mut theirs = from.ranges(most);
        let spans = self.spans.get(self.next..).unwrap_or_default();
        let spans = spans.iter().map(|span| (span.address, span.bytes));
        let mut ours = ranges(spans, self.within, theirs.bytes());
        if ours.bytes() == 0 {
            return Ok(0);
        }
        let wanted = ours.bytes() as u64;
        // SAFETY: every range of ours is part of a span that was checked against a memory which this
        // list keeps alive and to which no reference exists.
        let read =
            unsafe { process.read(&mut ours, &mut theirs) }.map_err(|error| match error {
                ReadError::Lost(obstacle) => MemoryError::OutOfReach { obstacle },
                ReadError::PeerFault => MemoryError::PeerFault,
                ReadError::Fault => MemoryError::System {
                    what: "reading a peer's memory",
                    bytes: wanted,
                    source: io::Error::from_raw_os_error(libc::EFAULT),
                },
            })?;
        self.advance(read);
        from.advance(read);
        Ok(read)
    }

    /// Copies into the span at the position, where that may be of a file: those are written to by
    /// system calls only. Where it is of a device it is refused.
    fn copy_by_buffer(&self, source: *const u8, bytes: usize) -> Result<(), MemoryError> {
        let mut buffer = [0; COPY_BYTES];
        let mut copied = 0;
        while copied < bytes {
            let Some((memory, offset, _)) = self.current() else { break };
            let chunk = &mut buffer[..COPY_BYTES.min(bytes - copied)];
            // SAFETY: the source has `bytes` readable bytes, and the chunk is ours alone.
            unsafe {
                copy::copy(chunk.as_mut_ptr(), source.add(copied), chunk.len(), Store::Cached);
            }
            memory.copy_in(offset + copied as u64, chunk)?;
            copied += chunk.len();
        }
        Ok(())
    }

    /// CRC-32C (Castagnoli) of all bytes, from the start on. The position is at the start after it.
    ///
    /// # Errors
    /// [`MemoryError`] when the memory cannot be touched.
    pub fn crc32c(&mut self) -> Result<u32, MemoryError> {
        self.rewind();
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        let mut buffer = [0; COPY_BYTES];
        while let Some((memory, offset, bytes)) = self.current() {
            let chunk = &mut buffer[..bytes.min(COPY_BYTES)];
            memory.copy_out(offset, chunk)?;
            digest.update(chunk);
            let bytes = chunk.len();
            self.advance(bytes);
        }
        self.rewind();
        // The algorithm's width is 32 bits.
        Ok(u32::try_from(digest.finalize()).unwrap_or(u32::MAX))
    }

    /// The memory, offset and length of what is left of the span at the position.
    fn current(&self) -> Option<(&Memory, u64, usize)> {
        let span = self.spans.get(self.next)?;
        let behind = self.sections.partition_point(|section| section.start <= self.next);
        let memory = &self.sections.get(behind.checked_sub(1)?)?.memory;
        let offset = (span.address + self.within) as u64 - memory.base();
        Some((memory, offset, span.bytes - self.within))
    }

    fn check_backing(&self) -> io::Result<()> {
        if self.is_guarded {
            for section in &self.sections {
                section.memory.check_backing().map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    fn fill(&self, iov: &mut Vec<libc::iovec>, most: usize) {
        let spans = self.spans.get(self.next..).unwrap_or_default();
        let room = most - iov.len();
        let first = iov.len();
        iov.extend(spans.iter().take(room).map(|span| libc::iovec {
            iov_base: span.address as *mut libc::c_void,
            iov_len: span.bytes,
        }));
        if let Some(entry) = iov.get_mut(first) {
            entry.iov_base = entry.iov_base.wrapping_byte_add(self.within);
            entry.iov_len -= self.within;
        }
    }

    fn advance(&mut self, mut bytes: usize) {
        self.done += bytes as u64;
        while let Some(span) = self.spans.get(self.next) {
            let left = span.bytes - self.within;
            if bytes < left {
                self.within += bytes;
                return;
            }
            bytes -= left;
            self.next += 1;
            self.within = 0;
        }
        debug_assert_eq!(bytes, 0, "advanced past the last span");
    }
}

fn message(iov: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: `msghdr` is plain data for which all zeros is "nothing": null pointers, no lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = iov.len();
    message
}

fn result(count: isize) -> io::Result<usize> {
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}
