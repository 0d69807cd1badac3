//! Memory of a peer that is read where it lies, in the peer's own address space.
//!
//! The kernel reads it by process id, and that proves nothing: in another pid namespace it is 0 or
//! somebody else's, it names whoever made the socket and not who uses it, and it is given to the
//! next once its process is gone. So each end keeps a number at an address that it names, its
//! [`Beacon`], and every call that reads takes the number along, as its first range. The kernel looks
//! the process's memory up once for a call (`process_vm_rw` in `mm/process_vm_access.c`), so what
//! came with the right number came from the right process.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use super::proof::{NUMBER_BYTES, peer_credentials};

/// How many ranges one call takes, the beacon's included. Measured: 64 are within 2 % of 512.
pub(crate) const MOST_RANGES: usize = 64;

/// Why memory of a process cannot be read where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Obstacle {
    /// Its process has no number here.
    #[error("its process has no id here: it is in another pid namespace (share one: --pid=host)")]
    OtherNamespace,
    /// The kernel does not permit it.
    #[error(
        "the kernel does not permit reading its memory: the same user, a dumpable process and \
         kernel.yama.ptrace_scope=0 (or CAP_SYS_PTRACE) are needed, and no seccomp filter against \
         process_vm_readv"
    )]
    Forbidden,
    /// There is no such call.
    #[error("this kernel has no process_vm_readv, or no pidfd_open")]
    Unsupported,
    /// Another process has its id, or made its socket.
    #[error("the process with its id is another one")]
    Stranger,
    /// It has ended.
    #[error("its process has ended")]
    Gone,
    /// It shows no number by which it could be recognised.
    #[error("it shows no number by which its process can be recognised")]
    NoBeacon,
    /// Anything else that the kernel says.
    #[error("the kernel has no means left to read its memory")]
    Exhausted,
}

impl Obstacle {
    const ALL: [(Self, u8); 7] = [
        (Self::OtherNamespace, 1),
        (Self::Forbidden, 2),
        (Self::Unsupported, 3),
        (Self::Stranger, 4),
        (Self::Gone, 5),
        (Self::NoBeacon, 6),
        (Self::Exhausted, 7),
    ];

    /// What one end tells the other of whether it can read its memory.
    #[must_use]
    pub fn encode(verdict: Result<(), Self>) -> u8 {
        let Err(obstacle) = verdict else { return 0 };
        Self::ALL.iter().find(|(one, _)| *one == obstacle).map_or(u8::MAX, |(_, code)| *code)
    }

    /// Reads [`Obstacle::encode`]'s. What this version does not know counts as
    /// [`Obstacle::Exhausted`].
    ///
    /// # Errors
    /// The obstacle, where there is one.
    pub fn decode(code: u8) -> Result<(), Self> {
        if code == 0 {
            return Ok(());
        }
        let known = Self::ALL.iter().find(|(_, one)| *one == code);
        Err(known.map_or(Self::Exhausted, |(obstacle, _)| *obstacle))
    }

    fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Forbidden,
            Some(libc::ENOSYS) => Self::Unsupported,
            Some(libc::ESRCH) => Self::Gone,
            // The beacon is the first range: whoever has this id has none there.
            Some(libc::EFAULT) => Self::Stranger,
            _ => Self::Exhausted,
        }
    }
}

/// A number at an address of this process, for a peer to recognise it by. Gone when dropped, and in
/// forked children.
pub struct Beacon {
    page: NonNull<u8>,
}

// SAFETY: a page of our own that nobody writes to any more; it belongs to no thread.
unsafe impl Send for Beacon {}
// SAFETY: as above; no method hands out a reference into the page.
unsafe impl Sync for Beacon {}

/// The least that can be mapped.
const PAGE_BYTES: usize = 4096;

impl Beacon {
    /// Puts a number that nobody can guess at an address of this process.
    ///
    /// # Errors
    /// What the kernel says; it has to be Linux 4.14 at least.
    pub fn new(number: [u8; NUMBER_BYTES]) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice; the result is checked.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let failed = io::Error::last_os_error();
        let page = NonNull::new(page.cast::<u8>()).filter(|_| page != libc::MAP_FAILED);
        let beacon = Self { page: page.ok_or(failed)? };
        let at = beacon.page.as_ptr();
        // A child has the same addresses and is somebody else: it finds zeros there.
        // SAFETY: a page of our own, of which nobody else knows yet.
        let wiped = unsafe { libc::madvise(at.cast(), PAGE_BYTES, libc::MADV_WIPEONFORK) };
        if wiped != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above; the number is shorter than a page.
        unsafe { std::ptr::copy_nonoverlapping(number.as_ptr(), at, NUMBER_BYTES) };
        Ok(beacon)
    }

    /// Where the number is.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.page.as_ptr() as u64
    }
}

impl Drop for Beacon {
    fn drop(&mut self) {
        // SAFETY: the page is ours, and nobody of this process reads it.
        unsafe { libc::munmap(self.page.as_ptr().cast(), PAGE_BYTES) };
    }
}

impl fmt::Debug for Beacon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Beacon").finish_non_exhaustive()
    }
}

/// The process at the other end of a Unix socket, whose memory can be read.
pub struct PeerProcess {
    pid: libc::pid_t,
    /// Tells when the id may be somebody else's.
    pidfd: OwnedFd,
    beacon: usize,
    number: [u8; NUMBER_BYTES],
}

impl PeerProcess {
    /// The process that shows `number` at `beacon`, if it is the one that the kernel names as the
    /// other end of `socket`, and its memory can be read.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn find(
        socket: BorrowedFd<'_>,
        beacon: u64,
        number: [u8; NUMBER_BYTES],
    ) -> Result<Self, Obstacle> {
        let beacon = usize::try_from(beacon).ok().filter(|at| *at != 0);
        let beacon = beacon.ok_or(Obstacle::NoBeacon)?;
        let pid = peer_credentials(socket).map_err(|error| Obstacle::of(&error))?.pid;
        // It would be this process's, or a group's.
        if pid <= 0 {
            return Err(Obstacle::OtherNamespace);
        }
        let pidfd = peer_pidfd(socket, pid).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => Obstacle::Gone,
            _ => Obstacle::of(&error),
        })?;
        let found = Self { pid, pidfd, beacon, number };
        // SAFETY: no range of ours is named but the number's.
        unsafe { found.read(&mut Ranges::default(), &mut Ranges::default()) }
            .map(|_| found)
            .map_err(|error| match error {
                ReadError::Lost(obstacle) => obstacle,
                ReadError::Fault | ReadError::PeerFault => Obstacle::Stranger,
            })
    }

    /// Reads ranges of the process's memory into ranges of ours, both without the first, which is the
    /// number's. Returns how many bytes were read: all that both lists have in common.
    ///
    /// # Safety
    /// The ranges of ours are for nobody else to hold references into. Those that are not mapped are
    /// an error.
    pub(crate) unsafe fn read(
        &self,
        ours: &mut Ranges,
        theirs: &mut Ranges,
    ) -> Result<usize, ReadError> {
        // What has ended has no memory, and its id may be another's. That it ends after this look
        // is found by the number.
        if self.has_ended() {
            return Err(ReadError::Lost(Obstacle::Gone));
        }
        let mut number = [0_u8; NUMBER_BYTES];
        ours.put_first(number.as_mut_ptr() as usize, NUMBER_BYTES);
        theirs.put_first(self.beacon, NUMBER_BYTES);
        let wanted = ours.bytes.min(theirs.bytes);
        // SAFETY: the kernel writes to the number, which is borrowed here alone, and to the caller's
        // ranges, of which the caller says that they may be written to; it answers EFAULT where they
        // or the other process's are not mapped.
        let read = unsafe {
            libc::process_vm_readv(
                self.pid,
                ours.pieces.as_ptr(),
                ours.count as libc::c_ulong,
                theirs.pieces.as_ptr(),
                theirs.count as libc::c_ulong,
                0,
            )
        };
        let Ok(read) = usize::try_from(read) else {
            return Err(ReadError::Lost(Obstacle::of(&io::Error::last_os_error())));
        };
        if read < NUMBER_BYTES || number != self.number {
            return Err(ReadError::Lost(Obstacle::Stranger));
        }
        if read < wanted {
            let is_theirs = theirs.at(read).is_some_and(|address| !self.has(address));
            return Err(if is_theirs { ReadError::PeerFault } else { ReadError::Fault });
        }
        Ok(read - NUMBER_BYTES)
    }

    /// Whether a byte of its memory can be read.
    fn has(&self, address: usize) -> bool {
        let mut byte = 0_u8;
        let ours = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let theirs = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: 1 };
        // SAFETY: the kernel writes to one byte, which is borrowed here alone.
        let read = unsafe {
            libc::process_vm_readv(self.pid, &raw const ours, 1, &raw const theirs, 1, 0)
        };
        read == 1
    }

    fn has_ended(&self) -> bool {
        let mut poll =
            libc::pollfd { fd: self.pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd, and a timeout of 0: the call only looks.
        unsafe { libc::poll(&raw mut poll, 1, 0) != 0 }
    }
}

impl fmt::Debug for PeerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerProcess").field("pid", &self.pid).finish_non_exhaustive()
    }
}

/// Why memory of a process was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadError {
    /// Some of this process's memory is not mapped. What was read before it may be in place.
    Fault,
    /// Some of the other's is not. What was read before it may be in place.
    PeerFault,
    /// The process cannot be read any more.
    Lost(Obstacle),
}

/// Ranges of one side of a call, the first place left for the number.
pub(crate) struct Ranges {
    pieces: [libc::iovec; MOST_RANGES],
    count: usize,
    bytes: usize,
}

impl Default for Ranges {
    fn default() -> Self {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self { pieces: [none; MOST_RANGES], count: 1, bytes: 0 }
    }
}

impl Ranges {
    pub(crate) fn is_full(&self) -> bool {
        self.count == MOST_RANGES
    }

    /// Bytes of all ranges together.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends a range; one too many is left out.
    pub(crate) fn push(&mut self, address: usize, bytes: usize) {
        if let Some(piece) = self.pieces.get_mut(self.count) {
            *piece = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes };
            self.count += 1;
            self.bytes += bytes;
        }
    }

    /// The address of the byte before which there are so many: where the kernel stopped, which does
    /// so at the first page that is not there.
    fn at(&self, mut bytes: usize) -> Option<usize> {
        for piece in self.pieces.get(..self.count)? {
            if bytes < piece.iov_len {
                return Some(piece.iov_base as usize + bytes);
            }
            bytes -= piece.iov_len;
        }
        None
    }

    fn put_first(&mut self, address: usize, bytes: usize) {
        self.pieces[0] = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes };
        self.bytes += bytes;
    }
}

/// A descriptor of the process at the other end of a socket.
fn peer_pidfd(socket: BorrowedFd<'_>, pid: libc::pid_t) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut length = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(0);
    // SAFETY: the option's value is one int, passed with its length; the socket is borrowed.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut length,
        )
    };
    let failed = io::Error::last_os_error();
    if result == 0 && fd >= 0 {
        // SAFETY: a descriptor fresh from the kernel that nobody else owns.
        return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    // Before Linux 6.5. It may be another's by now, which has no such number in its memory.
    if failed.raw_os_error() != Some(libc::ENOPROTOOPT) {
        return Err(failed);
    }
    // SAFETY: the call takes two integers; the result is checked before use.
    let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match libc::c_int::try_from(opened) {
        // SAFETY: a descriptor fresh from the kernel that nobody else owns.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
