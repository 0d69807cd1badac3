//! How long a thread that drives lanes runs at a time, where others want its processor.

use std::io;

use libc::c_long;

/// How long a turn is to be: about what a piece of a large copy takes. The kernel takes 0.1 to 100 ms.
const TURN_NS: u64 = 100_000;

/// `struct sched_attr` of the kernel (`include/uapi/linux/sched/types.h`), as of its first version.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// Of an ordinary thread, its time slice, since Linux 6.12; not looked at before.
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

const SIZE: c_long = 48;

const _: () = assert!(size_of::<SchedAttr>() == 48);

const THIS_THREAD: c_long = 0;

const NO_FLAGS: c_long = 0;

/// Asks for short turns of the calling thread, at the same share of the processor.
///
/// Whoever has short turns is let in sooner when it wakes, between threads that only compute, and makes
/// room sooner for whoever wakes while it copies. A thread under another policy than the ordinary one is
/// left as it is.
///
/// # Errors
/// What the kernel says.
pub(super) fn ask_for_short_turns() -> io::Result<()> {
    let mut attributes = attributes()?;
    if attributes.policy != u32::try_from(libc::SCHED_OTHER).unwrap_or(0) {
        return Ok(());
    }
    attributes.runtime_ns = TURN_NS;
    // SAFETY: the kernel reads as many bytes as the structure says it has, and changes this thread only.
    let set = unsafe {
        libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, &raw const attributes, NO_FLAGS)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The calling thread's, as it is scheduled now.
fn attributes() -> io::Result<SchedAttr> {
    let mut attributes = SchedAttr::default();
    // SAFETY: the kernel fills at most `SIZE` bytes, which the structure has.
    let read = unsafe {
        libc::syscall(libc::SYS_sched_getattr, THIS_THREAD, &raw mut attributes, SIZE, NO_FLAGS)
    };
    if read == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_thread_has_short_turns_and_keeps_its_nice_value() {
        let before = attributes().unwrap();
        ask_for_short_turns().unwrap();
        let after = attributes().unwrap();
        assert_eq!((after.policy, after.nice), (before.policy, before.nice));
        // Before Linux 6.12 nothing is told of it.
        assert!(after.runtime_ns == TURN_NS || after.runtime_ns == before.runtime_ns);
    }
}
