//! The functions of libibverbs that the transport calls.
#![allow(clippy::missing_safety_doc, reason = "as their manual pages say")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use crate::abi::{
    IBV_LINK_LAYER_ETHERNET, IBV_PORT_ACTIVE, IBV_QP_DEST_QPN, IBV_QPS_ERR, ibv_async_event,
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};
use crate::driver::{standin_poll_cq, standin_post_recv, standin_post_send, standin_req_notify_cq};
use crate::world::{Listener, Pair, Queue, world};

/// How many identifiers a port has.
const GIDS: c_int = 16;

pub(crate) fn refuse(errno: c_int) {
    // SAFETY: the thread's own number.
    unsafe { *libc::__errno_location() = errno };
}

/// All zeros, which is a value of each of these structures.
fn blank<T>() -> T {
    // SAFETY: numbers, pointers and optional functions.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// A device's name.
pub(crate) fn name_of(device: &ibv_device) -> Vec<u8> {
    device.name.iter().flat_map(|byte| byte.to_ne_bytes()).take_while(|byte| *byte != 0).collect()
}

fn eventfd() -> c_int {
    // SAFETY: no pointers.
    unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }
}

/// Gives back what [`Box::into_raw`] gave away.
///
/// # Safety
/// It did, and nobody uses it any more.
pub(crate) unsafe fn free<T>(object: *mut T) {
    // SAFETY: as the caller says.
    drop(unsafe { Box::from_raw(object) });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let devices = world().device_count;
    let mut list: Vec<*mut ibv_device> = (0..devices)
        .map(|number| {
            let mut device: ibv_device = blank();
            for (into, from) in device.name.iter_mut().zip(format!("standin{number}").bytes()) {
                *into = c_char::from_ne_bytes([from]);
            }
            Box::into_raw(Box::new(device))
        })
        .collect();
    list.push(ptr::null_mut());
    // SAFETY: the caller's number.
    unsafe { count.write(c_int::try_from(devices).unwrap_or(0)) };
    Box::leak(list.into_boxed_slice()).as_mut_ptr()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_device_list(_list: *mut *mut ibv_device) {
    // Contexts point to their devices; the list of a test is small, and stays.
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let mut world = world();
    if world.is_refused("ibv_open_device") {
        refuse(libc::EACCES);
        return ptr::null_mut();
    }
    // SAFETY: a device of the list.
    let name = name_of(unsafe { &*device });
    if world.broken.contains(&name) {
        refuse(libc::EIO);
        return ptr::null_mut();
    }
    world.contexts += 1;
    let mut context: ibv_context = blank();
    context.device = device;
    context.async_fd = eventfd();
    context.ops.poll_cq = Some(standin_poll_cq);
    context.ops.req_notify_cq = Some(standin_req_notify_cq);
    context.ops.post_send = Some(standin_post_send);
    context.ops.post_recv = Some(standin_post_recv);
    let fd = context.async_fd;
    let context = Box::into_raw(Box::new(context));
    let listener = Listener { device: name, fd, events: [].into(), is_broken: false };
    world.listeners.insert(context.addr(), listener);
    context
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    let mut world = world();
    world.contexts -= 1;
    world.listeners.remove(&context.addr());
    // SAFETY: as `ibv_open_device` made it.
    unsafe {
        libc::close((*context).async_fd);
        free(context);
    }
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_device(
    _context: *mut ibv_context,
    told: *mut ibv_device_attr,
) -> c_int {
    let mut limits: ibv_device_attr = blank();
    limits.max_mr_size = world().region_bytes;
    limits.max_qp_wr = 1024;
    limits.max_sge = 16;
    limits.max_cqe = 4096;
    limits.max_qp_rd_atom = 16;
    limits.max_qp_init_rd_atom = 16;
    limits.phys_port_cnt = 1;
    // SAFETY: the caller's structure.
    unsafe { told.write(limits) };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    told: *mut ibv_port_attr,
) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    let mut facts: ibv_port_attr = blank();
    let world = world();
    let is_down =
        world.listeners.get(&context.addr()).is_some_and(|on| world.down.contains(&on.device));
    facts.state = if world.port_down || is_down { 1 } else { IBV_PORT_ACTIVE };
    facts.active_mtu = 5;
    facts.link_layer = IBV_LINK_LAYER_ETHERNET;
    // SAFETY: the caller's structure.
    unsafe { told.write(facts) };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    _port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    if index >= GIDS {
        refuse(libc::ENODATA);
        return -1;
    }
    let world = world();
    let has_moved =
        world.listeners.get(&context.addr()).is_some_and(|on| world.moved.contains(&on.device));
    let last = if has_moved { 2 } else { 1 };
    // SAFETY: the caller's bytes.
    unsafe { gid.write(ibv_gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last])) };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    let mut world = world();
    let listener = world.listeners.get_mut(&context.addr());
    let Some((kind, fd, is_last)) = listener.and_then(|listener| {
        let kind = listener.events.pop_front()?;
        Some((kind, listener.fd, listener.events.is_empty()))
    }) else {
        refuse(libc::EAGAIN);
        return -1;
    };
    let mut told: ibv_async_event = blank();
    // The number of the port stands where a pointer would.
    (told.event_type, told.element) = (kind, ptr::without_provenance_mut(1));
    let mut count = 0_u64;
    // SAFETY: the caller's event; eight bytes, which the second call writes.
    unsafe {
        event.write(told);
        if is_last {
            libc::read(fd, (&raw mut count).cast(), 8);
        }
    }
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_async_event(_event: *mut ibv_async_event) {}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let mut world = world();
    world.domains += 1;
    let handle = world.number();
    Box::into_raw(Box::new(ibv_pd { context, handle }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int {
    world().domains -= 1;
    // SAFETY: as `ibv_alloc_pd` made it.
    unsafe { free(domain) };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    world().channels += 1;
    Box::into_raw(Box::new(ibv_comp_channel { context, fd: eventfd(), refcnt: 0 }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    world().channels -= 1;
    // SAFETY: as `ibv_create_comp_channel` made it.
    unsafe {
        libc::close((*channel).fd);
        free(channel);
    }
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    depth: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _vector: c_int,
) -> *mut ibv_cq {
    let mut world = world();
    if world.is_broken(context) || world.is_refused("ibv_create_cq") {
        refuse(libc::ENOMEM);
        return ptr::null_mut();
    }
    let queue = ibv_cq { context, channel, cq_context, handle: 0, cqe: depth };
    let queue = Box::into_raw(Box::new(queue));
    // SAFETY: the caller's channel.
    let channel_fd = unsafe { (*channel).fd };
    let depth = usize::try_from(depth).unwrap_or(0);
    world.queues.insert(queue.addr(), Queue { depth, channel_fd, ..Queue::default() });
    queue
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int {
    world().queues.remove(&queue.addr());
    // SAFETY: as `ibv_create_cq` made it.
    unsafe { free(queue) };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
    _context: *mut *mut c_void,
) -> c_int {
    let mut count = 0_u64;
    // SAFETY: the caller's channel; eight bytes, which the call writes.
    let (fd, read) = unsafe {
        let fd = (*channel).fd;
        (fd, libc::read(fd, (&raw mut count).cast(), 8))
    };
    if read != 8 {
        return -1;
    }
    let world = world();
    let served = world.queues.iter().find(|(_, queue)| queue.channel_fd == fd);
    let address = served.map_or(0, |(address, _)| *address);
    // SAFETY: the caller's pointer.
    unsafe { queue.write(ptr::without_provenance_mut(address)) };
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(_queue: *mut ibv_cq, _count: c_uint) {}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(
    domain: *mut ibv_pd,
    wish: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    let mut world = world();
    // SAFETY: the caller's structures.
    let (wish, context) = unsafe { (&mut *wish, (*domain).context) };
    if world.is_broken(context) || world.is_refused("ibv_create_qp") {
        refuse(libc::ENOMEM);
        return ptr::null_mut();
    }
    let number = world.number();
    // SAFETY: the context's device exists as long as it does.
    let device = name_of(unsafe { &*(*context).device });
    world.pairs.insert(
        number,
        Pair {
            device,
            domain: domain.addr(),
            queue: wish.send_cq.addr(),
            state: 0,
            peer: 0,
            requests: 0,
            // More than was asked for, as many drivers give.
            most_requests: wish.cap.max_send_wr.next_power_of_two() as usize * 2,
            expected: [].into(),
            most_expected: wish.cap.max_recv_wr.next_power_of_two() as usize * 2,
        },
    );
    let mut pair: ibv_qp = blank();
    (pair.context, pair.pd, pair.qp_num) = (context, domain, number);
    Box::into_raw(Box::new(pair))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    pair: *mut ibv_qp,
    wish: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    let mut world = world();
    // SAFETY: the caller's structures.
    let (number, wish) = unsafe { ((*pair).qp_num, &*wish) };
    if wish.qp_state == IBV_QPS_ERR {
        world.fail(number);
        return 0;
    }
    let Some(found) = world.pairs.get_mut(&number) else { return libc::EINVAL };
    // INIT, RTR, RTS: one after another.
    if wish.qp_state != found.state + 1 {
        return libc::EINVAL;
    }
    found.state = wish.qp_state;
    if mask & IBV_QP_DEST_QPN != 0 {
        found.peer = wish.dest_qp_num;
    }
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int {
    let mut world = world();
    if world.is_refused("ibv_destroy_qp") {
        return libc::EBUSY;
    }
    // SAFETY: as `ibv_create_qp` made it.
    unsafe {
        world.pairs.remove(&(*pair).qp_num);
        free(pair);
    }
    0
}
