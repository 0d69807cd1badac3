//! System calls on a lane's socket.

use std::io;
use std::os::fd::{OwnedFd, RawFd};

use socket2::SockRef;

/// Whether the connection is known to be broken, reset, or closed by the other end. Bytes that are
/// still queued on such a connection come from a sender that has given up on them.
#[must_use]
pub fn is_unhealthy(socket: RawFd) -> bool {
    let mut poll = libc::pollfd { fd: socket, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one valid pollfd, and a timeout of 0: the call only looks.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    ready != 0
}

/// Whether a scatter or gather failed because of the memory and not because of the connection.
#[must_use]
pub fn is_memory_fault(error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(code) => code == libc::EFAULT,
        // Not from the kernel: the check of the memory's backing said no.
        None => error.kind() == io::ErrorKind::Other,
    }
}

/// Receives into `buffer` without blocking. For what is read and dropped: a descriptor that comes
/// with it is closed.
pub(super) fn drop_into(socket: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the pointer and length are those of a slice borrowed mutably for this call.
    let received =
        unsafe { libc::recv(socket, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

/// Sends `bytes` without blocking.
pub(crate) fn send(socket: RawFd, bytes: &[u8]) -> io::Result<usize> {
    send_with(socket, bytes, 0)
}

/// Sends `bytes` without blocking, and lets them wait for what follows at once.
pub(super) fn send_more(socket: RawFd, bytes: &[u8]) -> io::Result<usize> {
    send_with(socket, bytes, libc::MSG_MORE)
}

fn send_with(socket: RawFd, bytes: &[u8], flags: libc::c_int) -> io::Result<usize> {
    // SAFETY: the pointer and length are those of a slice borrowed for this call.
    let sent = unsafe {
        libc::send(
            socket,
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | flags,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Holds back wake-ups until this many bytes are there.
pub(super) fn set_receive_low_water(socket: RawFd, bytes: u32) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let length = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(4);
    // SAFETY: the option's value is one int, passed with its length.
    let result = unsafe {
        libc::setsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the close that follows a reset: what is queued is dropped, the other end is told at once.
pub(super) fn reset_on_close(socket: &OwnedFd) -> io::Result<()> {
    SockRef::from(socket).set_linger(Some(std::time::Duration::ZERO))
}
