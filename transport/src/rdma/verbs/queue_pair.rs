//! Connections of adapters.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use parking_lot::Mutex;

use super::abi::{
    IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_QP_ACCESS_FLAGS, IBV_QP_AV,
    IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER,
    IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY,
    IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_ERR, IBV_QPS_INIT,
    IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_RC, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr,
    ibv_recv_wr,
};
use super::completion::{CompletionQueue, Ledger, Queue};
use super::context::{Context, Link, PortFacts};
use super::domain::{Domain, ProtectionDomain};
use super::error::VerbsError;
use super::work::{Posting, Room, Work};
use crate::rdma::device::{Gid, GidIndex, Lid, PKeyIndex, PortNumber};

/// Numbers of queue pairs and packets have 24 bits.
const NUMBER_BITS: u32 = 0x00ff_ffff;

/// How long the adapter waits for an acknowledgement before it sends again: 4.096 us x 2^14, 67 ms
/// (InfiniBand Architecture Specification volume 1, section 9.7.6.1.3). The silence of a path shorter
/// than this, times the retries, is ridden through.
const ACKNOWLEDGE_TIMEOUT: u8 = 14;

/// How often it sends again. 7 would be for ever with some adapters, of which one is Soft-RoCE.
const RETRIES: u8 = 6;

/// How long a peer without a posted receive asks to be left alone: code 12 is 0.64 ms (the same
/// specification, table 45).
const NOT_READY_TIMER: u8 = 12;

/// How far packets may be routed: as far as the usual 64 hops of IP.
const HOP_LIMIT: u8 = 64;

/// The longest payload of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mtu(u8);

/// How a queue pair leaves this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The port of the device.
    pub port: PortNumber,
    /// Which of the port's global identifiers.
    pub gid: GidIndex,
    /// Which of the port's partition keys.
    pub pkey: PKeyIndex,
}

/// What a queue pair has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Requests that are posted and not completed.
    pub requests: u32,
    /// Announcements of the peer that are expected.
    pub announcements: u32,
    /// Local spans of a request.
    pub spans: u32,
    /// Bytes of a write that are copied when it is posted, so that its memory is not read later: the
    /// least; a device may offer more.
    pub inline_bytes: u32,
}

/// What peers tell each other of their queue pairs, to be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The queue pair's number, 24 bits.
    pub number: u32,
    /// The number of its first packet, 24 bits.
    pub first_packet: u32,
    /// The port's global identifier.
    pub gid: Gid,
    /// The port's local identifier; 0 on Ethernet.
    pub lid: Lid,
    /// The longest payload that the port takes.
    pub mtu: Mtu,
    /// How many reads of the peer may be under way.
    pub reads: u8,
}

/// A queue pair that has no peer yet.
#[derive(Debug)]
pub struct Unconnected {
    pair: Pair,
    route: Route,
    link: Link,
    address: Address,
}

/// A reliable connection to a queue pair of a peer. It is torn down by [`destroy`](Self::destroy), which
/// says whether that was possible, or when it is dropped, which cannot say it.
#[derive(Debug)]
pub struct QueuePair {
    pair: Pair,
}

#[derive(Debug)]
struct Pair {
    pair: NonNull<ibv_qp>,
    number: u32,
    room: Room,
    posting: Mutex<Posting>,
    ledger: Arc<Mutex<Ledger>>,
    /// It was destroyed, or could not be.
    is_over: bool,
    queue: Arc<Queue>,
    domain: Arc<Domain>,
}

// SAFETY: the library's functions on a queue pair may be called from any thread; of the structure
// only its number is read, once.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

impl Mtu {
    /// The library's code for it: 1 is 256 bytes, 5 is 4,096. What is none of them is the least.
    pub(super) fn from_code(code: c_int) -> Self {
        Self(u8::try_from(code).ok().filter(|code| (1..=5).contains(code)).unwrap_or(1))
    }

    /// The payload, in bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        128 << self.0
    }

    /// The payload of this many bytes: a power of two from 256 to 4,096.
    #[must_use]
    pub fn of_bytes(bytes: u32) -> Option<Self> {
        (1..=5).map(Self).find(|mtu| mtu.bytes() == bytes)
    }
}

impl Unconnected {
    /// A queue pair on a port, whose completions go to `queue`.
    ///
    /// `first_packet` should be drawn at random, so that packets of an earlier connection that are
    /// late are not taken for its own.
    ///
    /// # Errors
    /// Where the port is not active, its GID cannot be used, the queue is of another device or has no
    /// room for its completions, or the device has no such queue pair.
    pub fn new(
        domain: &ProtectionDomain,
        queue: &CompletionQueue,
        route: Route,
        capacity: Capacity,
        first_packet: u32,
    ) -> Result<Self, VerbsError> {
        let context = Context(Arc::clone(&domain.0.open));
        let device = context.name();
        if !Arc::ptr_eq(&domain.0.open, &queue.0.open) {
            return Err(VerbsError::OtherDevice {
                what: "the completion queue",
                found: queue.0.open.name.clone(),
                device: device.clone(),
            });
        }
        if u8::try_from(route.gid.0).is_err() {
            return Err(VerbsError::GidIndex { device: device.clone(), index: route.gid.0 });
        }
        let facts = context.port(route.port)?;
        if !facts.is_active {
            return Err(VerbsError::NotActive {
                device: device.clone(),
                port: route.port,
                state: facts.state,
            });
        }
        let gid = context.gid(route.port, route.gid)?;
        let pair = Pair::new(domain, queue, capacity)?;
        pair.initialise(route)?;
        let PortFacts { mtu, lid, link, .. } = facts;
        let first_packet = first_packet & NUMBER_BITS;
        let reads = context.limits().reads_served;
        let address = Address { number: pair.number, first_packet, gid, lid, mtu, reads };
        Ok(Self { pair, route, link, address })
    }

    /// What the peer needs to know of it.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// Expects announcements of the peer, one for each number, which its completion will carry. To
    /// be done before the peer can announce anything.
    ///
    /// # Errors
    /// Where the queue pair has no room for as many.
    pub fn expect(&self, ids: &[u64]) -> Result<(), VerbsError> {
        self.pair.expect(ids)
    }

    /// Connects it to the queue pair of a peer, which has to do the same.
    ///
    /// # Errors
    /// Where the peer's address leads nowhere from this port, or the device refuses.
    pub fn connect(self, peer: &Address) -> Result<QueuePair, VerbsError> {
        self.pair.make_ready_to_receive(self.route, self.link, &self.address, peer)?;
        self.pair.make_ready_to_send(&self.address, peer)?;
        Ok(QueuePair { pair: self.pair })
    }
}

impl QueuePair {
    /// Its number, as completions name it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.pair.number
    }

    /// Expects further announcements of the peer: see [`Unconnected::expect`].
    ///
    /// # Errors
    /// Where the queue pair has no room for as many.
    pub fn expect(&self, ids: &[u64]) -> Result<(), VerbsError> {
        self.pair.expect(ids)
    }

    /// Posts requests, in this order, all of them with one call of the driver.
    ///
    /// # Errors
    /// Where a span lies outside its region or a request has too many, which posts nothing; where
    /// there is no room for all, with how many were posted; where the queue pair does not work.
    pub fn post(&self, work: &[Work<'_>]) -> Result<(), VerbsError> {
        let Pair { pair, room, domain, .. } = &self.pair;
        let mut posting = self.pair.posting.lock();
        // All of them are looked at before any is posted, whether there is room for it or not.
        posting.prepare(work, domain, *room)?;
        let mut ledger = self.pair.ledger.lock();
        let fitting = work.len().min(ledger.free_requests()?);
        posting.truncate(fitting);
        // SAFETY: the queue pair exists.
        let (posted, result) = unsafe { posting.post(*pair, &domain.open) };
        work[..posted].iter().for_each(|work| ledger.post(work.signaled));
        result?;
        if fitting < work.len() { Err(VerbsError::QueueFull { posted }) } else { Ok(()) }
    }

    /// Tears it down and says whether that was possible: after `Ok`, nothing that was posted on it
    /// reads or writes memory here.
    ///
    /// # Errors
    /// Where the device refuses, as when it is gone: memory may then still be touched.
    pub fn destroy(mut self) -> Result<(), VerbsError> {
        self.pair.destroy()
    }

    /// Has everything that is posted and not completed end with an error, and lets nothing through
    /// any more, in either direction. Completions tell when it has: to be sure that memory is not
    /// touched, wait for them or drop the queue pair.
    ///
    /// # Errors
    /// Where the device refuses, as when it is gone.
    pub fn fail(&self) -> Result<(), VerbsError> {
        let mut attributes = Pair::attributes();
        attributes.qp_state = IBV_QPS_ERR;
        self.pair.modify(attributes, IBV_QP_STATE)
    }
}

impl Pair {
    fn new(
        domain: &ProtectionDomain,
        queue: &CompletionQueue,
        capacity: Capacity,
    ) -> Result<Self, VerbsError> {
        let domain = Arc::clone(&domain.0);
        let queue = Arc::clone(&queue.0);
        let ledger = Ledger::new(capacity.requests, capacity.announcements);
        queue.reserve(&ledger)?;
        let mut wish = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: queue.queue.as_ptr(),
            recv_cq: queue.queue.as_ptr(),
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: capacity.requests,
                max_recv_wr: capacity.announcements.max(1),
                max_send_sge: capacity.spans,
                max_recv_sge: 1,
                max_inline_data: capacity.inline_bytes,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queue exist, and outlive the queue pair, which holds both; the call
        // reads the wish, and writes what was granted into it.
        let pair =
            unsafe { (domain.open.library().create_qp)(domain.domain.as_ptr(), &raw mut wish) };
        let Some(pair) = NonNull::new(pair) else {
            let error = domain.open.last_error("ibv_create_qp");
            queue.forgo(&ledger);
            return Err(error);
        };
        // SAFETY: the library has just made it, and its number never changes.
        let number = unsafe { (*pair.as_ptr()).qp_num };
        let ledger = Arc::new(Mutex::new(ledger));
        queue.serve(number, &ledger);
        Ok(Self {
            pair,
            number,
            room: Room { inline_bytes: wish.cap.max_inline_data, spans: capacity.spans },
            posting: Mutex::default(),
            ledger,
            is_over: false,
            queue,
            domain,
        })
    }

    fn initialise(&self, route: Route) -> Result<(), VerbsError> {
        let mut attributes = Self::attributes();
        attributes.qp_state = IBV_QPS_INIT;
        attributes.pkey_index = route.pkey.0;
        attributes.port_num = route.port.0;
        attributes.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
        self.modify(
            attributes,
            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        )
    }

    fn make_ready_to_receive(
        &self,
        route: Route,
        link: Link,
        here: &Address,
        peer: &Address,
    ) -> Result<(), VerbsError> {
        let mut attributes = Self::attributes();
        attributes.qp_state = IBV_QPS_RTR;
        attributes.path_mtu = c_int::from(here.mtu.min(peer.mtu).0);
        attributes.dest_qp_num = peer.number & NUMBER_BITS;
        attributes.rq_psn = peer.first_packet & NUMBER_BITS;
        attributes.max_dest_rd_atomic = here.reads;
        attributes.min_rnr_timer = NOT_READY_TIMER;
        let way = &mut attributes.ah_attr;
        way.port_num = route.port.0;
        way.dlid = peer.lid.0;
        // Ethernet has no other address; an InfiniBand subnet needs it for other subnets only.
        let crosses = here.gid.0[..8] != peer.gid.0[..8];
        way.is_global = u8::from(link != Link::InfiniBand || crosses);
        way.grh.dgid.0 = peer.gid.0;
        // That it fits was seen to before.
        way.grh.sgid_index = u8::try_from(route.gid.0).unwrap_or(u8::MAX);
        way.grh.hop_limit = HOP_LIMIT;
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify(attributes, mask)
    }

    fn make_ready_to_send(&self, here: &Address, peer: &Address) -> Result<(), VerbsError> {
        let mut attributes = Self::attributes();
        attributes.qp_state = IBV_QPS_RTS;
        attributes.timeout = ACKNOWLEDGE_TIMEOUT;
        attributes.retry_cnt = RETRIES;
        attributes.rnr_retry = RETRIES;
        attributes.sq_psn = here.first_packet;
        attributes.max_rd_atomic = self.domain.open.limits.reads.min(peer.reads).max(1);
        let mask = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(attributes, mask)
    }

    fn attributes() -> ibv_qp_attr {
        // SAFETY: plain numbers, for which zero is a value.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    fn modify(&self, mut attributes: ibv_qp_attr, mask: c_int) -> Result<(), VerbsError> {
        let open = &self.domain.open;
        // SAFETY: the queue pair exists, and the call reads what the mask names.
        let status =
            unsafe { (open.library().modify_qp)(self.pair.as_ptr(), &raw mut attributes, mask) };
        let call = match attributes.qp_state {
            IBV_QPS_INIT => "ibv_modify_qp to INIT",
            IBV_QPS_RTR => "ibv_modify_qp to RTR",
            IBV_QPS_RTS => "ibv_modify_qp to RTS",
            _ => "ibv_modify_qp to ERR",
        };
        open.check(call, status)
    }

    fn expect(&self, ids: &[u64]) -> Result<(), VerbsError> {
        let open = &self.domain.open;
        let mut ledger = self.ledger.lock();
        for (posted, &id) in ids.iter().enumerate() {
            if ledger.free_announcements()? == 0 {
                return Err(VerbsError::QueueFull { posted });
            }
            let mut request = ibv_recv_wr {
                wr_id: id,
                next: ptr::null_mut(),
                sg_list: ptr::null_mut(),
                num_sge: 0,
            };
            let mut refused = ptr::null_mut();
            // SAFETY: the queue pair exists, its context's table does not change, and the call reads
            // the request, which names no memory.
            let status = unsafe {
                let post = (*open.context.as_ptr()).ops.post_recv;
                post.map_or(libc::ENOSYS, |post| {
                    post(self.pair.as_ptr(), &raw mut request, &raw mut refused)
                })
            };
            if status == libc::ENOMEM {
                return Err(VerbsError::QueueFull { posted });
            }
            open.check("ibv_post_recv", status)?;
            ledger.expect();
        }
        Ok(())
    }

    fn destroy(&mut self) -> Result<(), VerbsError> {
        self.is_over = true;
        let open = &self.domain.open;
        // SAFETY: it was made once and is destroyed once; its events were acknowledged as they were
        // taken, which is what the call waits for.
        let status = unsafe { (open.library().destroy_qp)(self.pair.as_ptr()) };
        open.check("ibv_destroy_qp", status)?;
        self.queue.retire(self.number);
        Ok(())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if !self.is_over
            && let Err(error) = self.destroy()
        {
            // What it may still complete keeps its room.
            tracing::error!(%error, "a queue pair is left behind");
        }
    }
}
