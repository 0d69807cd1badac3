//! What tests may have the library do.

use std::ffi::{CStr, c_char, c_int};

use crate::abi::{
    IBV_EVENT_DEVICE_FATAL, IBV_EVENT_GID_CHANGE, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR,
};
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

/// Whether requests wait until [`standin_release`], but those that move no bytes.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_hold(on: c_int) {
    world().holding = on != 0;
}

/// Whether those that move no bytes wait, too, while requests do.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_hold_all(on: c_int) {
    world().holding_all = on != 0;
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

/// Whether packets come through by a device, `standin0` being 0. What is under way by one that is cut off
/// ends without an answer.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_cut(device: usize, on: c_int) {
    let mut world = world();
    let name = format!("standin{device}").into_bytes();
    if on == 0 {
        world.cut.remove(&name);
        return;
    }
    world.cut.insert(name);
    // What is held back on other devices waits on.
    world.carry_out_cut();
}

/// Whether the port of a device is up. The device tells so; what is under way stays where it is.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_port(device: usize, is_up: c_int) {
    let mut world = world();
    let name = format!("standin{device}").into_bytes();
    let event = if is_up == 0 {
        world.down.insert(name.clone());
        world.cut.insert(name.clone());
        IBV_EVENT_PORT_ERR
    } else {
        world.down.remove(&name);
        world.cut.remove(&name);
        IBV_EVENT_PORT_ACTIVE
    };
    world.tell(&name, event);
}

/// Whether a device has another address than at first. It tells so.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_move(device: usize, on: c_int) {
    let mut world = world();
    let name = format!("standin{device}").into_bytes();
    if on == 0 {
        world.moved.remove(&name);
    } else {
        world.moved.insert(name.clone());
    }
    world.tell(&name, IBV_EVENT_GID_CHANGE);
}

/// A device fails for good, and tells so. It cannot be opened until it is mended.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_break(device: usize) {
    let mut world = world();
    let name = format!("standin{device}").into_bytes();
    world.break_down(&name);
    world.tell(&name, IBV_EVENT_DEVICE_FATAL);
}

/// A device that has failed can be opened again. What had it open sees no more of it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_mend(device: usize) {
    world().broken.remove(format!("standin{device}").as_bytes());
}

/// How often devices are open.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_contexts() -> usize {
    world().contexts
}

/// How many queue pairs there are on a device.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_pairs(device: usize) -> usize {
    let name = format!("standin{device}").into_bytes();
    world().pairs.values().filter(|pair| pair.device == name).count()
}

/// How many registrations there are.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_registrations() -> usize {
    world().regions.len()
}

/// On how many devices requests were posted.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_devices_used() -> usize {
    world().devices_used.len()
}

/// Whether a device, `standin0` being 0, registers dma-bufs.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn standin_dma_bufs(device: usize, on: c_int) {
    let mut world = world();
    let name = format!("standin{device}").into_bytes();
    if on == 0 {
        world.without_dma_bufs.insert(name);
    } else {
        world.without_dma_bufs.remove(&name);
    }
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
