//! Descriptors that nobody waits in.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Has reads of a descriptor that the library made return at once.
pub(super) fn set_nonblocking(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let descriptor = descriptor.as_raw_fd();
    // SAFETY: both calls read and set flags of a descriptor that is borrowed, hence open.
    let status = unsafe {
        match libc::fcntl(descriptor, libc::F_GETFL) {
            -1 => -1,
            flags => libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK),
        }
    };
    if status == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
