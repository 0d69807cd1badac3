//! The functions that a driver puts into the table of a context. They have names that profilers see, so that
//! what they take can be left out.
#![allow(clippy::missing_safety_doc, reason = "as their manual pages say")]

use std::ffi::c_int;

use crate::abi::{
    IBV_QPS_ERR, IBV_QPS_RTS, IBV_WR_RDMA_READ, ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_wc,
};
use crate::verbs::name_of;
use crate::world::{Request, world};

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn standin_poll_cq(
    queue: *mut ibv_cq,
    most: c_int,
    into: *mut ibv_wc,
) -> c_int {
    let mut world = world();
    let Some(queue) = world.queues.get_mut(&queue.addr()) else { return -1 };
    let count = queue.entries.len().min(usize::try_from(most).unwrap_or(0));
    for (index, entry) in queue.entries.drain(..count).enumerate() {
        // SAFETY: the caller has room for `most` entries.
        unsafe { into.add(index).write(entry) };
    }
    c_int::try_from(count).unwrap_or(-1)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn standin_req_notify_cq(
    queue: *mut ibv_cq,
    _solicited: c_int,
) -> c_int {
    if let Some(queue) = world().queues.get_mut(&queue.addr()) {
        queue.armed = Some(queue.channel_fd);
    }
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn standin_post_send(
    pair: *mut ibv_qp,
    mut request: *mut ibv_send_wr,
    refused: *mut *mut ibv_send_wr,
) -> c_int {
    let mut world = world();
    // SAFETY: the caller's queue pair, whose context and device exist as long.
    let (number, device) = unsafe { ((*pair).qp_num, &*(*(*pair).context).device) };
    let device = name_of(device);
    let mut status = 0;
    while !request.is_null() {
        // SAFETY: a request of the caller's chain.
        let is_unreadable = unsafe { world.is_unreadable(&*request) };
        let Some(found) = world.pairs.get_mut(&number) else { return libc::EINVAL };
        status = match found.state {
            IBV_QPS_RTS | IBV_QPS_ERR if is_unreadable => libc::EFAULT,
            IBV_QPS_RTS | IBV_QPS_ERR if found.requests < found.most_requests => 0,
            IBV_QPS_RTS | IBV_QPS_ERR => libc::ENOMEM,
            _ => libc::EINVAL,
        };
        if status != 0 {
            // SAFETY: the caller's pointer.
            unsafe { refused.write(request) };
            break;
        }
        found.requests += 1;
        // SAFETY: a request of the caller's chain, whose list has as many spans as it says.
        let (posted, next) = unsafe {
            let it = &*request;
            let count = usize::try_from(it.num_sge).unwrap_or(0);
            let spans = (0..count).map(|index| it.sg_list.add(index).read());
            let posted = Request {
                pair: number,
                id: it.wr_id,
                opcode: it.opcode,
                flags: it.send_flags,
                word: it.imm_data,
                remote: it.wr.remote_addr,
                key: it.wr.rkey,
                spans: spans.map(|span| (span.addr, span.length, span.lkey)).collect(),
            };
            (posted, it.next)
        };
        request = next;
        // What moves no bytes only asks whether packets come through.
        let is_probe = posted.spans.is_empty() && posted.opcode == IBV_WR_RDMA_READ;
        if is_probe && !(world.holding && world.holding_all) {
            world.carry_out_one(&posted);
            continue;
        }
        world.devices_used.insert(device.clone());
        world.under_way.push_back(posted);
    }
    if !world.holding {
        world.carry_out(usize::MAX);
    }
    status
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn standin_post_recv(
    pair: *mut ibv_qp,
    mut request: *mut ibv_recv_wr,
    refused: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut world = world();
    // SAFETY: the caller's queue pair.
    let number = unsafe { (*pair).qp_num };
    let Some(found) = world.pairs.get_mut(&number) else { return libc::EINVAL };
    while !request.is_null() {
        if found.expected.len() >= found.most_expected {
            // SAFETY: the caller's pointer.
            unsafe { refused.write(request) };
            return libc::ENOMEM;
        }
        // SAFETY: a request of the caller's chain.
        let it = unsafe { &*request };
        found.expected.push_back(it.wr_id);
        request = it.next;
    }
    0
}
