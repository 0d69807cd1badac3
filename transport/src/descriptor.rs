//! Descriptors that travel with bytes over Unix sockets.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The length of a control message with one descriptor, as the kernel counts it: room for this much
/// takes one descriptor, and the kernel closes any others that were sent with it.
// SAFETY: `CMSG_LEN` computes a length and touches nothing.
const ONE_DESCRIPTOR_BYTES: usize = unsafe { libc::CMSG_LEN(DESCRIPTOR_BYTES) } as usize;

const DESCRIPTOR_BYTES: libc::c_uint = 4;

/// Room for a control message with one descriptor, aligned as its header needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room([u64; 4]);

const _: () = assert!(ONE_DESCRIPTOR_BYTES <= size_of::<Room>());

impl Room {
    /// Has a call of `recvmsg` put a descriptor here.
    pub(crate) fn lend_to(&mut self, message: &mut libc::msghdr) {
        message.msg_control = self.0.as_mut_ptr().cast();
        message.msg_controllen = ONE_DESCRIPTOR_BYTES;
    }
}

/// The descriptor that came with the bytes of a `recvmsg` that has succeeded.
pub(crate) fn taken_from(message: &libc::msghdr) -> Option<OwnedFd> {
    // SAFETY: the kernel has filled the message's control buffer, which is the `Room` lent to it,
    // and has set its length to what it has written.
    let header = unsafe { libc::CMSG_FIRSTHDR(message) };
    if header.is_null() {
        return None;
    }
    // SAFETY: `CMSG_FIRSTHDR` returns a header that lies within the control buffer, or null.
    let (level, kind, length) =
        unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len) };
    let is_descriptor =
        level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS && length >= ONE_DESCRIPTOR_BYTES;
    if !is_descriptor {
        return None;
    }
    // SAFETY: the header's length says that a descriptor lies behind it; the kernel has just made
    // it, and nobody else knows of it.
    unsafe {
        let fd = libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned();
        Some(OwnedFd::from_raw_fd(fd))
    }
}

/// Sends `bytes` without blocking, and `descriptor` with the first of them. Where fewer were taken
/// than there are, and any at all, the descriptor has gone.
pub(crate) fn send(socket: RawFd, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<usize> {
    let mut room = Room::default();
    let mut piece =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: `msghdr` is plain data for which all zeros is "nothing": null pointers, no lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    room.lend_to(&mut message);
    // SAFETY: the control buffer has room for this one header and descriptor, as asserted above,
    // and is aligned for them; the pieces it points to are borrowed for this call, which only
    // reads them.
    let sent = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = ONE_DESCRIPTOR_BYTES;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(descriptor.as_raw_fd());
        libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives into `buffer` without blocking, and a descriptor, where one came with these bytes.
pub(crate) fn receive(socket: RawFd, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut room = Room::default();
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: as in `send`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    room.lend_to(&mut message);
    // SAFETY: the buffer and the room are borrowed mutably for this call.
    let received = unsafe { libc::recvmsg(socket, &raw mut message, FLAGS) };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    Ok((received, taken_from(&message)))
}

/// Nothing here blocks, and no descriptor that arrives is inherited by programs started later.
pub(crate) const FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
