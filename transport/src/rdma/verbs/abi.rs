//! What libibverbs and its drivers expect in memory.
//!
//! The names are the library's, from `infiniband/verbs.h` of rdma-core. Structures that the library
//! owns are given as far as they are looked into; they are longer, and are never made here.
//! `make test-abi` compares sizes, offsets and numbers with those that bindgen finds in the header.
#![allow(non_camel_case_types, reason = "the names of the library")]

use std::ffi::{c_char, c_int, c_uint, c_void};

#[repr(C)]
#[derive(Debug)]
pub(crate) struct ibv_device {
    pub(crate) ops: [*const c_void; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct ibv_context {
    pub(crate) device: *mut ibv_device,
    pub(crate) ops: ibv_context_ops,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
}

/// What a driver does without a call of the library in between.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ibv_context_ops {
    pub(crate) unused_0: [*const c_void; 11],
    pub(crate) poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub(crate) unused_1: [*const c_void; 7],
    pub(crate) post_srq_recv: *const c_void,
    pub(crate) unused_2: [*const c_void; 4],
    pub(crate) post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub(crate) post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub(crate) unused_3: [*const c_void; 5],
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct ibv_pd {
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct ibv_mr {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct ibv_comp_channel {
    pub(crate) context: *mut ibv_context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct ibv_cq {
    pub(crate) context: *mut ibv_context,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct ibv_qp {
    pub(crate) context: *mut ibv_context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_device_attr {
    pub(crate) fw_ver: [c_char; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_int,
    pub(crate) unused: [c_int; 14],
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

/// As `ibv_query_port` fills it where it is called by name: without the last two bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_port_attr {
    pub(crate) state: c_int,
    pub(crate) max_mtu: c_int,
    pub(crate) active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) port_cap_flags2: u16,
}

/// 16 bytes in the order of the network, aligned as the two numbers that the header makes of them.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_gid(pub(crate) [u8; 16]);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_global_route {
    pub(crate) dgid: ibv_gid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_ah_attr {
    pub(crate) grh: ibv_global_route,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_qp_cap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct ibv_qp_init_attr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut c_void,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_qp_attr {
    pub(crate) qp_state: c_int,
    pub(crate) cur_qp_state: c_int,
    pub(crate) path_mtu: c_int,
    pub(crate) path_mig_state: c_int,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) alt_ah_attr: ibv_ah_attr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// The one member that is used of the union `wr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
    pub(crate) unused: [u32; 5],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_send_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_send_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_int,
    pub(crate) send_flags: c_uint,
    /// In the order of the network.
    pub(crate) imm_data: u32,
    pub(crate) wr: rdma,
    pub(crate) remote_srqn: u32,
    pub(crate) unused: [u64; 6],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_recv_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_recv_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_int,
    pub(crate) opcode: c_int,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// In the order of the network.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// Its first member is a union of pointers and a port number.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_async_event {
    pub(crate) element: *mut c_void,
    pub(crate) event_type: c_int,
}

pub(crate) const IBV_QPT_RC: c_int = 2;

pub(crate) const IBV_QPS_INIT: c_int = 1;
pub(crate) const IBV_QPS_RTR: c_int = 2;
pub(crate) const IBV_QPS_RTS: c_int = 3;
pub(crate) const IBV_QPS_ERR: c_int = 6;

pub(crate) const IBV_QP_STATE: c_int = 1;
pub(crate) const IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(crate) const IBV_QP_PKEY_INDEX: c_int = 1 << 4;
pub(crate) const IBV_QP_PORT: c_int = 1 << 5;
pub(crate) const IBV_QP_AV: c_int = 1 << 7;
pub(crate) const IBV_QP_PATH_MTU: c_int = 1 << 8;
pub(crate) const IBV_QP_TIMEOUT: c_int = 1 << 9;
pub(crate) const IBV_QP_RETRY_CNT: c_int = 1 << 10;
pub(crate) const IBV_QP_RNR_RETRY: c_int = 1 << 11;
pub(crate) const IBV_QP_RQ_PSN: c_int = 1 << 12;
pub(crate) const IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(crate) const IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(crate) const IBV_QP_SQ_PSN: c_int = 1 << 16;
pub(crate) const IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(crate) const IBV_QP_DEST_QPN: c_int = 1 << 20;

pub(crate) const IBV_ACCESS_LOCAL_WRITE: c_uint = 1;
pub(crate) const IBV_ACCESS_REMOTE_WRITE: c_uint = 1 << 1;
pub(crate) const IBV_ACCESS_REMOTE_READ: c_uint = 1 << 2;
/// Optional: a driver that does not know it ignores it, where the registration goes by
/// `ibv_reg_mr_iova2`.
pub(crate) const IBV_ACCESS_RELAXED_ORDERING: c_uint = 1 << 20;

pub(crate) const IBV_WR_RDMA_WRITE: c_int = 0;
pub(crate) const IBV_WR_RDMA_WRITE_WITH_IMM: c_int = 1;
pub(crate) const IBV_WR_RDMA_READ: c_int = 4;

pub(crate) const IBV_SEND_SIGNALED: c_uint = 1 << 1;
pub(crate) const IBV_SEND_INLINE: c_uint = 1 << 3;

pub(crate) const IBV_WC_WITH_IMM: c_uint = 1 << 1;
pub(crate) const IBV_WC_RECV: c_int = 1 << 7;

pub(crate) const IBV_PORT_ACTIVE: c_int = 4;
pub(crate) const IBV_LINK_LAYER_INFINIBAND: u8 = 1;
pub(crate) const IBV_LINK_LAYER_ETHERNET: u8 = 2;

pub(crate) const IBV_EVENT_QP_FATAL: c_int = 1;
pub(crate) const IBV_EVENT_QP_REQ_ERR: c_int = 2;
pub(crate) const IBV_EVENT_QP_ACCESS_ERR: c_int = 3;
pub(crate) const IBV_EVENT_COMM_EST: c_int = 4;
pub(crate) const IBV_EVENT_CQ_ERR: c_int = 0;
pub(crate) const IBV_EVENT_DEVICE_FATAL: c_int = 8;
pub(crate) const IBV_EVENT_PORT_ACTIVE: c_int = 9;
pub(crate) const IBV_EVENT_PORT_ERR: c_int = 10;
pub(crate) const IBV_EVENT_LID_CHANGE: c_int = 11;
pub(crate) const IBV_EVENT_PKEY_CHANGE: c_int = 12;
pub(crate) const IBV_EVENT_SM_CHANGE: c_int = 13;
pub(crate) const IBV_EVENT_CLIENT_REREGISTER: c_int = 17;
pub(crate) const IBV_EVENT_GID_CHANGE: c_int = 18;
