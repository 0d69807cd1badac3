//! What this project says of libibverbs' structures and numbers, compared with what bindgen finds in
//! the header of rdma-core.
#![cfg(test)]
#![allow(dead_code, reason = "what is compared is used elsewhere")]

#[path = "../../../transport/src/rdma/verbs/abi.rs"]
mod abi;

use std::mem::{offset_of, size_of};

use ibverbs_sys::{
    self as header, ibv_port_state, ibv_qp_state, ibv_qp_type, ibv_wc_opcode, ibv_wr_opcode,
};

/// Where bindgen puts what has no module.
mod outside {
    pub(crate) use ibverbs_sys::*;
}

/// Fields at the same place and of the same size. `ours as theirs` where the names differ.
macro_rules! fields {
    ($structure:ident: $($ours:ident $(as $($theirs:ident).+)?),*) => {$(
        assert_eq!(
            offset_of!(abi::$structure, $ours),
            fields!(@offset $structure, $ours $(, $($theirs).+)?),
            "{}.{}", stringify!($structure), stringify!($ours)
        );
        assert_eq!(
            size_at(|it: &abi::$structure| size_of_val(&it.$ours)),
            fields!(@size $structure, $ours $(, $($theirs).+)?),
            "the size of {}.{}", stringify!($structure), stringify!($ours)
        );
    )*};
    (@offset $structure:ident, $ours:ident) => { offset_of!(header::$structure, $ours) };
    (@offset $structure:ident, $ours:ident, $($theirs:ident).+) => {
        offset_of!(header::$structure, $($theirs).+)
    };
    (@size $structure:ident, $ours:ident) => {
        size_at(|it: &header::$structure| size_of_val(&it.$ours))
    };
    (@size $structure:ident, $ours:ident, $($theirs:ident).+) => {
        size_at(|it: &header::$structure| size_of_val(&it.$($theirs).+))
    };
}

/// The size of a field, of a value that need not be one: all zeros.
fn size_at<T>(of: impl Fn(&T) -> usize) -> usize {
    // SAFETY: the structures are numbers, pointers and optional functions, for which zero is a value.
    of(&unsafe { std::mem::zeroed::<T>() })
}

macro_rules! whole {
    ($structure:ident: $($fields:tt)*) => {
        assert_eq!(
            size_of::<abi::$structure>(), size_of::<header::$structure>(), stringify!($structure)
        );
        assert_eq!(
            align_of::<abi::$structure>(), align_of::<header::$structure>(), stringify!($structure)
        );
        fields!($structure: $($fields)*);
    };
}

macro_rules! start {
    ($structure:ident: $($fields:tt)*) => {
        assert!(size_of::<abi::$structure>() <= size_of::<header::$structure>());
        fields!($structure: $($fields)*);
    };
}

#[test]
fn structures_that_the_library_owns_start_as_the_header_says() {
    start!(ibv_device: node_type, transport_type, name);
    start!(ibv_context: device, ops, cmd_fd, async_fd, num_comp_vectors);
    whole!(ibv_context_ops: poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv);
    whole!(ibv_pd: context, handle);
    whole!(ibv_mr: context, pd, addr, length, handle, lkey, rkey);
    whole!(ibv_comp_channel: context, fd, refcnt);
    start!(ibv_cq: context, channel, cq_context, handle, cqe);
    start!(ibv_qp: context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num);
}

#[test]
fn structures_that_are_passed_are_as_the_header_says() {
    whole!(ibv_device_attr: fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id,
        vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq,
        max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom,
        max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_pkeys, local_ca_ack_delay,
        phys_port_cnt);
    // In newer headers it is longer. Called by name, the library fills what was there at first.
    start!(ibv_port_attr: state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz,
        bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl,
        subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer, flags,
        port_cap_flags2);
    whole!(ibv_gid:);
    whole!(ibv_global_route: dgid, flow_label, sgid_index, hop_limit, traffic_class);
    whole!(ibv_ah_attr: grh, dlid, sl, src_path_bits, static_rate, is_global, port_num);
    whole!(ibv_qp_cap: max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data);
    whole!(ibv_qp_init_attr: qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all);
    whole!(ibv_qp_attr: qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn,
        dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
        en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num,
        timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit);
    whole!(ibv_sge: addr, length, lkey);
    whole!(ibv_send_wr: wr_id, next, sg_list, num_sge, opcode, send_flags,
        imm_data as __bindgen_anon_1, wr, remote_srqn as qp_type, unused as __bindgen_anon_2);
    assert_eq!(offset_of!(abi::ibv_send_wr, wr.rkey), offset_of!(header::ibv_send_wr, wr) + 8);
    whole!(ibv_recv_wr: wr_id, next, sg_list, num_sge);
    // The binding keeps the first fields of this one to itself; what follows is as far on.
    whole!(ibv_wc: imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits);
    whole!(ibv_async_event: element, event_type);
}

/// Numbers of the same name, in the module that bindgen has put them into.
macro_rules! numbers {
    ($module:ident: $($name:ident),*) => {{
        use $module as theirs;
        $(assert_eq!(i64::from(abi::$name), i64::from(theirs::$name), stringify!($name));)*
    }};
}

/// The same of numbers that are bits.
macro_rules! bits {
    ($kind:ident: $($name:ident),*) => {$(
        assert_eq!(i64::from(abi::$name), i64::from(header::$kind::$name.0), stringify!($name));
    )*};
}

#[test]
fn numbers_are_as_the_header_says() {
    numbers!(ibv_qp_type: IBV_QPT_RC);
    numbers!(ibv_qp_state: IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR);
    bits!(ibv_qp_attr_mask: IBV_QP_STATE, IBV_QP_ACCESS_FLAGS, IBV_QP_PKEY_INDEX, IBV_QP_PORT,
        IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY,
        IBV_QP_RQ_PSN, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_SQ_PSN,
        IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_DEST_QPN);
    bits!(ibv_access_flags: IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ,
        IBV_ACCESS_RELAXED_ORDERING);
    numbers!(ibv_wr_opcode: IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ);
    bits!(ibv_send_flags: IBV_SEND_SIGNALED, IBV_SEND_INLINE);
    bits!(ibv_wc_flags: IBV_WC_WITH_IMM);
    numbers!(ibv_wc_opcode: IBV_WC_RECV);
    numbers!(ibv_port_state: IBV_PORT_ACTIVE);
    numbers!(outside: IBV_LINK_LAYER_INFINIBAND, IBV_LINK_LAYER_ETHERNET, IBV_EVENT_QP_FATAL,
        IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR,
        IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_LID_CHANGE,
        IBV_EVENT_PKEY_CHANGE, IBV_EVENT_SM_CHANGE, IBV_EVENT_CLIENT_REREGISTER,
        IBV_EVENT_GID_CHANGE);
}

#[test]
fn statuses_are_numbered_as_the_header_says() {
    use header::ibv_wc_status as status;
    assert_eq!(status::IBV_WC_LOC_PROT_ERR, 4);
    assert_eq!(status::IBV_WC_WR_FLUSH_ERR, 5);
    assert_eq!(status::IBV_WC_REM_ACCESS_ERR, 10);
    assert_eq!(status::IBV_WC_REM_OP_ERR, 11);
    assert_eq!(status::IBV_WC_RETRY_EXC_ERR, 12);
    assert_eq!(status::IBV_WC_RNR_RETRY_EXC_ERR, 13);
}
