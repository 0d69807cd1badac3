//! Pages of region memory on their way into a socket by reference: through a pipe, without being
//! copied.
//!
//! What lies in the pipe and in the socket are the pages themselves. Whoever reads them, at either
//! end, reads what is in them then, and nothing recalls them. So a source must stay as it is until
//! the receiver has said that it has all of it.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsRawFd, RawFd};

use crate::memory::{IoVecs, SpanList};

/// How much the pipe holds: a slice, and as much as an unprivileged process may set
/// (`fs.pipe-max-size`).
const PIPE_BYTES: libc::c_int = 1 << 20;

/// From this many bytes a span, on average, a list goes by reference: a page, from which on that was
/// measured to pay (docs/performance.md). Each page that a span touches costs a place in the pipe and in
/// the socket, however little of it is sent.
const SPAN_BYTES: u64 = 4 << 10;

/// From this many bytes in all. Below it, what is saved is less than a read's additional round trip.
const LIST_BYTES: u64 = 512 << 10;

/// A lane's pipe, once it is needed. It goes with the lane, and what is left in it too.
#[derive(Debug, Default)]
pub(super) struct PagePipe {
    open: Option<Open>,
    refused: bool,
}

#[derive(Debug)]
struct Open {
    reader: PipeReader,
    writer: PipeWriter,
    /// Bytes in the pipe: always of the payload at hand, from its position on.
    filled: usize,
}

impl PagePipe {
    /// Whether `spans` go by reference. Once they did, they do to their end.
    pub(super) fn takes(&mut self, spans: &SpanList) -> bool {
        let pays = spans.bytes() >= LIST_BYTES
            && spans.bytes() / SPAN_BYTES >= spans.count() as u64
            && !spans.is_guarded();
        if pays && self.open.is_none() && !self.refused {
            match Open::new() {
                Ok(open) => self.open = Some(open),
                Err(error) => {
                    self.refused = true;
                    tracing::warn!(
                        %error,
                        "payloads of this lane are copied: no pipe of {PIPE_BYTES} bytes is to be \
                         had; raise fs.pipe-max-size or fs.pipe-user-pages-soft"
                    );
                }
            }
        }
        pays && self.open.is_some()
    }

    /// Hands pages from the position on to a socket, as many as it takes without blocking, and
    /// moves the position by them.
    pub(super) fn pass(
        &mut self,
        socket: RawFd,
        spans: &mut SpanList,
        scratch: &mut IoVecs,
    ) -> io::Result<usize> {
        let Some(open) = &mut self.open else { return Err(io::ErrorKind::BrokenPipe.into()) };
        if open.filled == 0 {
            open.filled = spans.lend_pages(open.writer.as_raw_fd(), scratch)?;
        }
        let is_last = spans.remaining() == open.filled as u64;
        let passed = splice(open.reader.as_raw_fd(), socket, open.filled, is_last)?;
        open.filled -= passed;
        spans.skip(passed);
        Ok(passed)
    }

    /// What is in the pipe is not to be sent any more.
    pub(super) fn discard(&mut self) {
        if self.open.as_ref().is_some_and(|open| open.filled > 0) {
            self.open = None;
        }
    }
}

impl Open {
    fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        // SAFETY: the call takes a descriptor that is open and a number.
        let size = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_BYTES) };
        if size < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { reader, writer, filled: 0 })
    }
}

/// Moves what is in a pipe to a socket that does not block.
fn splice(pipe: RawFd, socket: RawFd, bytes: usize, is_last: bool) -> io::Result<usize> {
    let more = if is_last { 0 } else { libc::SPLICE_F_MORE };
    let moved = without_signal(bytes, || {
        // SAFETY: two open descriptors, and no offsets.
        unsafe {
            libc::splice(
                pipe,
                std::ptr::null_mut(),
                socket,
                std::ptr::null_mut(),
                bytes,
                libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE | more,
            )
        }
    });
    usize::try_from(moved?).map_err(io::Error::other)
}

/// Makes a call that raises SIGPIPE where the other end is gone, and is not to: it takes no flag
/// that says so, and the process may be one that does not ignore the signal. What moved `bytes` in
/// whole raised none; what moved some may have met the end with the rest.
fn without_signal(bytes: usize, call: impl FnOnce() -> isize) -> io::Result<isize> {
    // SAFETY: signal sets are plain data, all zeros included, and are initialised by the calls
    // below before they are read; all pointers are to locals. Only this thread's mask changes,
    // and it is put back.
    unsafe {
        let mut pipe: libc::sigset_t = std::mem::zeroed();
        let (mut before, mut pending) = (pipe, pipe);
        libc::sigemptyset(&raw mut pipe);
        libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
        libc::sigpending(&raw mut pending);
        let was_pending = libc::sigismember(&raw const pending, libc::SIGPIPE) == 1;
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut before);
        let result = call();
        let error = io::Error::last_os_error();
        let is_short = usize::try_from(result).is_ok_and(|moved| moved < bytes);
        if (is_short || result < 0) && !was_pending {
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&raw const pipe, std::ptr::null_mut(), &raw const at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        if result < 0 { Err(error) } else { Ok(result) }
    }
}
