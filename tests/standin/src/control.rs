//! What tests may have the library do.

use std::ffi::{CStr, c_char, c_int};

use crate::world::world;

/// How many devices there are, from the next look on: `standin0`, `standin1`, ...
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_devices(count: usize) {
    world().device_count = count;
}

/// How many bytes a registration may have, for devices that are opened from now on.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_region_bytes(most: u64) {
    world().region_bytes = most;
}

/// Whether requests wait until [`standin_release`].
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_hold(on: c_int) {
    world().holding = on != 0;
}

/// Carries out up to `most` requests that wait, and returns how many there were.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_release(most: usize) -> usize {
    world().carry_out(most)
}

/// How many requests wait.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_waiting() -> usize {
    world().under_way.len()
}

/// Has the queue pair fail whose request has waited longest, as if its peer did not answer, and says
/// whether there was one.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_fail_one() -> c_int {
    c_int::from(world().fail_one())
}

/// On how many devices requests were posted.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_devices_used() -> usize {
    world().devices_used.len()
}

/// Whether writes land with their first bit turned.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_corrupt(on: c_int) {
    world().corrupting = on != 0;
}

/// Whether ports are down.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_port_down(on: c_int) {
    world().port_down = on != 0;
}

/// Refuses the next call of this name.
///
/// # Safety
/// The name ends in zero.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn standin_refuse(call: *const c_char) {
    // SAFETY: as the caller says.
    let call = unsafe { CStr::from_ptr(call) }.to_string_lossy().into_owned();
    world().refusing.push(call);
}

/// How many objects there are that were made and not given back.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_live() -> usize {
    let world = world();
    world.contexts
        + world.domains
        + world.channels
        + world.regions.len()
        + world.queues.len()
        + world.pairs.len()
}
