//! What there is: devices, what was made with them, and requests under way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::c_int;
use std::ptr;
use std::sync::LazyLock;

use parking_lot::{Mutex, MutexGuard};

use crate::abi::{
    IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_QPS_ERR, IBV_QPS_RTR, IBV_QPS_RTS,
    IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WC_RECV, IBV_WC_WITH_IMM, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE_WITH_IMM, ibv_context, ibv_send_wr, ibv_wc,
};
use crate::registration::Mapping;

pub(crate) const SUCCESS: c_int = 0;
const LOCAL_PROTECTION: c_int = 4;
const FLUSHED: c_int = 5;
const REMOTE_ACCESS: c_int = 10;
const UNANSWERED: c_int = 12;
const NOT_EXPECTED: c_int = 13;

/// Everything, behind one lock. Objects are known by the addresses of their structures.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) device_count: usize,
    pub(crate) port_down: bool,
    /// Devices whose port is down.
    pub(crate) down: BTreeSet<Vec<u8>>,
    /// Devices whose address is another than it was.
    pub(crate) moved: BTreeSet<Vec<u8>>,
    /// What open devices have to tell, by the addresses of their contexts.
    pub(crate) listeners: BTreeMap<usize, Listener>,
    /// The longest registration.
    pub(crate) region_bytes: u64,
    /// Requests wait until they are released.
    pub(crate) holding: bool,
    /// Those that move no bytes, too.
    pub(crate) holding_all: bool,
    /// Devices that have failed, and cannot be opened.
    pub(crate) broken: BTreeSet<Vec<u8>>,
    /// Devices by whose ports no packet comes through.
    pub(crate) cut: BTreeSet<Vec<u8>>,
    /// Writes land one bit off.
    pub(crate) corrupting: bool,
    /// Devices that register no dma-bufs.
    pub(crate) without_dma_bufs: BTreeSet<Vec<u8>>,
    /// Names of calls of which the next one is refused.
    pub(crate) refusing: Vec<String>,
    pub(crate) contexts: usize,
    pub(crate) domains: usize,
    pub(crate) channels: usize,
    /// By their keys.
    pub(crate) regions: BTreeMap<u32, Region>,
    pub(crate) queues: BTreeMap<usize, Queue>,
    /// By their numbers.
    pub(crate) pairs: BTreeMap<u32, Pair>,
    pub(crate) under_way: VecDeque<Request>,
    /// Names of devices on which requests were posted.
    pub(crate) devices_used: BTreeSet<Vec<u8>>,
    pub(crate) last_number: u32,
}

/// Who has a device open.
pub(crate) struct Listener {
    pub(crate) device: Vec<u8>,
    pub(crate) fd: c_int,
    /// Kinds of events, all of port 1.
    pub(crate) events: VecDeque<c_int>,
    /// The device has failed since it was opened: nothing can be made with it any more.
    pub(crate) is_broken: bool,
}

pub(crate) struct Region {
    pub(crate) domain: usize,
    /// By which requests name it.
    pub(crate) address: u64,
    /// Where it is in this process.
    pub(crate) at: usize,
    pub(crate) bytes: u64,
    pub(crate) access: u32,
    /// It is of a device: no processor but the stand-in's touches it.
    pub(crate) on_device: Option<Mapping>,
}

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) entries: VecDeque<ibv_wc>,
    pub(crate) depth: usize,
    /// The next completion is announced by this descriptor.
    pub(crate) armed: Option<c_int>,
    pub(crate) channel_fd: c_int,
}

pub(crate) struct Pair {
    /// The name of its device.
    pub(crate) device: Vec<u8>,
    pub(crate) domain: usize,
    pub(crate) queue: usize,
    pub(crate) state: c_int,
    pub(crate) peer: u32,
    pub(crate) requests: usize,
    pub(crate) most_requests: usize,
    pub(crate) expected: VecDeque<u64>,
    pub(crate) most_expected: usize,
}

pub(crate) struct Request {
    pub(crate) pair: u32,
    pub(crate) id: u64,
    pub(crate) opcode: c_int,
    pub(crate) flags: u32,
    pub(crate) word: u32,
    pub(crate) remote: u64,
    pub(crate) key: u32,
    /// Address, length and key.
    pub(crate) spans: Vec<(u64, u32, u32)>,
}

// SAFETY: a completion is numbers; everything else is, too.
unsafe impl Send for World {}

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(|| {
    Mutex::new(World {
        device_count: 1,
        region_bytes: 1 << 30,
        last_number: 0x100,
        ..World::default()
    })
});

/// The world, locked.
pub(crate) fn world() -> MutexGuard<'static, World> {
    WORLD.lock()
}

impl World {
    /// A number that nothing else has.
    pub(crate) fn number(&mut self) -> u32 {
        self.last_number += 1;
        self.last_number
    }

    /// Whether this call is to be refused, once.
    pub(crate) fn is_refused(&mut self, call: &str) -> bool {
        let found = self.refusing.iter().position(|refused| refused == call);
        found.map(|index| self.refusing.swap_remove(index)).is_some()
    }

    /// Carries out what is under way, up to `most` requests, and says how many there were.
    pub(crate) fn carry_out(&mut self, most: usize) -> usize {
        let mut done = 0;
        while done < most {
            let Some(request) = self.under_way.pop_front() else { break };
            done += 1;
            self.carry_out_one(&request);
        }
        done
    }

    /// Carries out a request that is not under way any more.
    pub(crate) fn carry_out_one(&mut self, request: &Request) {
        let Some(pair) = self.pairs.get(&request.pair) else { return };
        let status = if pair.state == IBV_QPS_RTS { self.attempt(request) } else { FLUSHED };
        self.finish(request, status);
        if status != SUCCESS {
            self.fail(request.pair);
        }
    }

    /// Whether what a context is of has failed since it was opened.
    pub(crate) fn is_broken(&self, context: *mut ibv_context) -> bool {
        self.listeners.get(&context.addr()).is_some_and(|listener| listener.is_broken)
    }

    /// A device fails for good: its queue pairs do, and it cannot be opened.
    pub(crate) fn break_down(&mut self, device: &[u8]) {
        self.broken.insert(device.to_vec());
        for listener in self.listeners.values_mut().filter(|one| one.device == device) {
            listener.is_broken = true;
        }
        let pairs = self.pairs.iter().filter(|(_, pair)| pair.device == device);
        for number in pairs.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.fail(number);
        }
    }

    /// Whether a request is to be carried by value, which a processor reads when it is posted, and is of
    /// memory that none reads.
    ///
    /// # Safety
    /// It has as many spans as it says.
    pub(crate) unsafe fn is_unreadable(&self, request: &ibv_send_wr) -> bool {
        let count = usize::try_from(request.num_sge).unwrap_or(0);
        // SAFETY: as the caller says.
        let mut keys = (0..count).map(|index| unsafe { (*request.sg_list.add(index)).lkey });
        let is_on_device = |key| self.regions.get(&key).is_some_and(|it| it.on_device.is_some());
        request.send_flags & IBV_SEND_INLINE != 0 && keys.any(is_on_device)
    }

    /// A device tells everybody who has it open.
    pub(crate) fn tell(&mut self, device: &[u8], event: c_int) {
        for listener in self.listeners.values_mut().filter(|one| one.device == device) {
            listener.events.push_back(event);
            ring(listener.fd);
        }
    }

    /// Ends what is under way by devices that are cut off.
    pub(crate) fn carry_out_cut(&mut self) {
        let requests = std::mem::take(&mut self.under_way);
        for request in requests {
            let ends = [Some(request.pair), self.pairs.get(&request.pair).map(|pair| pair.peer)];
            let mut devices = ends.iter().flatten().filter_map(|end| self.pairs.get(end));
            if devices.any(|pair| self.cut.contains(&pair.device)) {
                self.carry_out_one(&request);
            } else {
                self.under_way.push_back(request);
            }
        }
    }

    /// Has the queue pair fail of the request that has waited longest: its peer does not answer.
    pub(crate) fn fail_one(&mut self) -> bool {
        let Some(request) = self.under_way.pop_front() else { return false };
        self.finish(&request, UNANSWERED);
        self.fail(request.pair);
        true
    }

    /// Has a queue pair fail, as its peer's does when a request of it is refused.
    pub(crate) fn fail(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        if pair.state == IBV_QPS_ERR {
            return;
        }
        pair.state = IBV_QPS_ERR;
        let expected = std::mem::take(&mut pair.expected);
        let (of_pair, others) =
            std::mem::take(&mut self.under_way).into_iter().partition(|it| it.pair == number);
        self.under_way = others;
        let flushed: VecDeque<Request> = of_pair;
        for request in flushed {
            self.finish(&request, FLUSHED);
        }
        for id in expected {
            self.complete(number, id, FLUSHED, IBV_WC_RECV, None);
        }
    }

    fn attempt(&mut self, request: &Request) -> c_int {
        let from = &self.pairs[&request.pair];
        let (domain, peer) = (from.domain, from.peer);
        let is_there = |pair: &&Pair| matches!(pair.state, IBV_QPS_RTR | IBV_QPS_RTS);
        let Some(target) = self.pairs.get(&peer).filter(is_there) else { return UNANSWERED };
        if self.cut.contains(&from.device) || self.cut.contains(&target.device) {
            return UNANSWERED;
        }
        if request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM {
            let Some(target) = self.pairs.get_mut(&peer) else { return UNANSWERED };
            let Some(id) = target.expected.pop_front() else { return NOT_EXPECTED };
            self.complete(peer, id, SUCCESS, IBV_WC_RECV + 1, Some(request.word));
            return SUCCESS;
        }
        let (is_read, wanted) = match request.opcode {
            IBV_WR_RDMA_READ => (true, IBV_ACCESS_REMOTE_READ),
            _ => (false, IBV_ACCESS_REMOTE_WRITE),
        };
        let covers = |key: &u32, domain: usize, address: u64, bytes: u64, access: u32| {
            self.regions.get(key).is_some_and(|region| {
                region.domain == domain
                    && region.access & access == access
                    && address >= region.address
                    && address + bytes <= region.address + region.bytes
            })
        };
        let bytes = request.spans.iter().map(|(_, bytes, _)| u64::from(*bytes)).sum();
        if bytes == 0 {
            return SUCCESS;
        }
        if !covers(&request.key, target.domain, request.remote, bytes, wanted) {
            self.fail(peer);
            return REMOTE_ACCESS;
        }
        if request
            .spans
            .iter()
            .any(|(at, bytes, key)| !covers(key, domain, *at, u64::from(*bytes), 0))
        {
            return LOCAL_PROTECTION;
        }
        // Keys are of regions, as seen above.
        let place = |key: &u32, at: u64| {
            let region = &self.regions[key];
            region.at + address(at - region.address)
        };
        let mut remote = request.remote;
        for &(local, bytes, key) in &request.spans {
            let (there, here) = (place(&request.key, remote), place(&key, local));
            let (from, to) = if is_read { (there, here) } else { (here, there) };
            // SAFETY: both ranges lie in regions that are registered, as seen above, whose memory the
            // program keeps for as long as they are.
            unsafe {
                let to = ptr::with_exposed_provenance_mut::<u8>(to);
                ptr::copy(ptr::with_exposed_provenance::<u8>(from), to, bytes as usize);
                if self.corrupting && !is_read {
                    to.write(to.read() ^ 1);
                }
            }
            remote += u64::from(bytes);
        }
        SUCCESS
    }

    fn finish(&mut self, request: &Request, status: c_int) {
        if let Some(pair) = self.pairs.get_mut(&request.pair) {
            pair.requests -= 1;
        }
        if status != SUCCESS || request.flags & IBV_SEND_SIGNALED != 0 {
            self.complete(request.pair, request.id, status, 0, None);
        }
    }

    fn complete(&mut self, pair: u32, id: u64, status: c_int, opcode: c_int, word: Option<u32>) {
        let Some(queue) = self.pairs.get(&pair).map(|pair| pair.queue) else { return };
        let Some(queue) = self.queues.get_mut(&queue) else { return };
        assert!(queue.entries.len() < queue.depth, "the completion queue has overflowed");
        queue.entries.push_back(ibv_wc {
            wr_id: id,
            status,
            opcode,
            vendor_err: 0,
            byte_len: 0,
            imm_data: word.unwrap_or(0),
            qp_num: pair,
            src_qp: 0,
            wc_flags: if word.is_some() { IBV_WC_WITH_IMM } else { 0 },
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        });
        if let Some(fd) = queue.armed.take() {
            ring(fd);
        }
    }
}

/// Makes a descriptor of events readable.
pub(crate) fn ring(fd: c_int) {
    let one = 1_u64;
    // SAFETY: eight bytes, which the call reads.
    let written = unsafe { libc::write(fd, (&raw const one).cast(), 8) };
    assert_eq!(written, 8, "a descriptor of events takes a count");
}

fn address(number: u64) -> usize {
    usize::try_from(number).expect("addresses of this process")
}
