//! The proof that the other end of a Unix socket is on this host.
//!
//! A socket file may be reached through a program that relays its bytes to another host, and boot
//! ids or process ids that are sent prove nothing: machines are cloned, and containers count from 1.
//! But a descriptor passes between processes of one kernel only. So each end passes one, of a memfd
//! with a number in it that nobody can guess, and is answered with that number by who has read it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use crate::descriptor;

/// How long the number is that answers a challenge.
pub const NUMBER_BYTES: usize = 16;

/// How long the greeting is that takes a challenge along.
const GREETING_BYTES: usize = 8;

const GREETING: [u8; GREETING_BYTES] = *b"kvfLOCAL";

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;

/// A number in a sealed memfd, for the other end to read.
#[derive(Debug)]
pub struct Challenge {
    number: [u8; NUMBER_BYTES],
    memfd: File,
}

impl Challenge {
    /// Puts a number that nobody can guess where only a process of this host can read it.
    ///
    /// # Errors
    /// What the kernel says when it gives no memfd.
    pub fn new(number: [u8; NUMBER_BYTES]) -> io::Result<Self> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string; the result is checked before use.
        let fd = unsafe { libc::memfd_create(c"kvferry-proof".as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor fresh from the kernel that nobody else owns.
        let mut memfd = unsafe { File::from_raw_fd(fd) };
        memfd.write_all(&number)?;
        // SAFETY: an integer argument on a descriptor that we own.
        if unsafe { libc::fcntl(memfd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { number, memfd })
    }

    /// Whether this is what only who has read the memfd can say.
    #[must_use]
    pub fn is_met_by(&self, answer: [u8; NUMBER_BYTES]) -> bool {
        self.number == answer
    }
}

/// Sends the greeting that takes a challenge along, without blocking.
///
/// # Errors
/// What the kernel says; `WouldBlock` when it takes nothing now.
pub fn send_greeting(socket: BorrowedFd<'_>, challenge: &Challenge) -> io::Result<()> {
    let sent = descriptor::send(socket.as_raw_fd(), &GREETING, challenge.memfd.as_fd())?;
    // So few bytes are taken whole or not at all.
    if sent == GREETING_BYTES { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives the other end's greeting, without blocking.
///
/// # Errors
/// What the kernel says; `InvalidData` when this is no greeting, or nothing came with it: then the
/// other end is reached through something that passes no descriptors.
pub fn receive_greeting(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut greeting = [0; GREETING_BYTES];
    let (received, descriptor) = descriptor::receive(socket.as_raw_fd(), &mut greeting)?;
    // So few bytes, sent whole, arrive whole.
    if received != GREETING_BYTES || greeting != GREETING {
        return Err(invalid("it does not greet as an engine does"));
    }
    descriptor.ok_or_else(|| invalid("no descriptor passes: a relay to another host, perhaps"))
}

/// The answer to a challenge: the number that the memfd holds.
///
/// # Errors
/// `InvalidData` when the descriptor is of something else.
pub fn answer(challenge: OwnedFd) -> io::Result<[u8; NUMBER_BYTES]> {
    // Only memfds have seals, and reading one never blocks.
    // SAFETY: a descriptor that we own; the call takes no other argument.
    let seals = unsafe { libc::fcntl(challenge.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & SEALS != SEALS {
        return Err(invalid("what it passes is no sealed memfd"));
    }
    let mut number = [0; NUMBER_BYTES];
    File::from(challenge).read_exact_at(&mut number, 0)?;
    Ok(number)
}

/// Whether the process at the other end runs as the same user as this one: whoever does may read
/// this one's memory anyway.
///
/// # Errors
/// What the kernel says when it does not know.
pub fn is_same_user(socket: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: the call takes nothing and changes nothing.
    let ours = unsafe { libc::geteuid() };
    Ok(peer_credentials(socket)?.uid == ours)
}

/// Who made the other end of a Unix socket, as it is called in this process's namespaces.
pub(super) fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: the option's value is one `ucred`, passed with its length; the socket is borrowed.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(credentials) } else { Err(io::Error::last_os_error()) }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
