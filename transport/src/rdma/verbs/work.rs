//! Requests, and how they are handed to a driver.

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::abi::{
    IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, ibv_qp, ibv_send_wr, ibv_sge, rdma,
};
use super::context::Open;
use super::domain::{Domain, LocalSpan, RemoteAddress};
use super::error::VerbsError;

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// What its completion will carry.
    pub id: u64,
    /// Whether it completes by itself. One that does not is known to be done when a later one of its
    /// queue pair is; one that fails always completes.
    pub signaled: bool,
    /// What is to be done.
    pub operation: Operation<'a>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Local spans, one after another, to a range of the peer's memory.
    Write {
        /// What is written.
        from: &'a [LocalSpan<'a>],
        /// Where to.
        to: RemoteAddress,
    },
    /// A range of the peer's memory, to local spans, one after another.
    Read {
        /// What is read.
        from: RemoteAddress,
        /// Where to.
        into: &'a [LocalSpan<'a>],
    },
    /// A word for the peer, which it gets when everything that was written before on this queue pair
    /// is in place. Touches no memory.
    Announce {
        /// The word.
        word: u32,
    },
}

/// What a request of a queue pair may consist of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) inline_bytes: u32,
    pub(super) spans: u32,
}

/// Room for a chain of requests, kept so that none is allocated for each.
#[derive(Debug, Default)]
pub(super) struct Posting {
    requests: Vec<ibv_send_wr>,
    elements: Vec<ibv_sge>,
}

// SAFETY: the pointers in the requests lead into the two vectors, and are set and followed while
// the posting is locked.
unsafe impl Send for Posting {}

impl Posting {
    /// Writes down a chain of requests. Where one of them cannot be, there is none.
    pub(super) fn prepare(
        &mut self,
        work: &[Work<'_>],
        domain: &Arc<Domain>,
        room: Room,
    ) -> Result<(), VerbsError> {
        self.requests.clear();
        self.elements.clear();
        let prepared = work.iter().try_for_each(|work| self.push(work, domain, room));
        if prepared.is_err() {
            self.requests.clear();
        }
        prepared
    }

    fn push(
        &mut self,
        work: &Work<'_>,
        domain: &Arc<Domain>,
        Room { inline_bytes, spans: most_spans }: Room,
    ) -> Result<(), VerbsError> {
        let (opcode, spans, remote, word) = match work.operation {
            Operation::Write { from, to } => (IBV_WR_RDMA_WRITE, from, to, 0),
            Operation::Read { from, into } => (IBV_WR_RDMA_READ, into, from, 0),
            Operation::Announce { word } => {
                let nowhere = RemoteAddress { address: 0, key: 0 };
                (IBV_WR_RDMA_WRITE_WITH_IMM, &[][..], nowhere, word)
            }
        };
        let count = u32::try_from(spans.len()).unwrap_or(u32::MAX);
        if count > most_spans {
            return Err(VerbsError::TooManySpans { spans: count, most_spans });
        }
        let mut bytes = 0;
        let mut is_readable_here = true;
        for span in spans {
            if !Arc::ptr_eq(span.domain(), domain) {
                return Err(VerbsError::OtherDevice {
                    what: "a local span",
                    found: span.domain().open.name.clone(),
                    device: domain.open.name.clone(),
                });
            }
            self.elements.push(span.element()?);
            bytes += u64::from(span.bytes);
            is_readable_here &= span.is_readable_here();
        }
        let is_inline =
            opcode == IBV_WR_RDMA_WRITE && bytes <= u64::from(inline_bytes) && is_readable_here;
        let flags = [(work.signaled, IBV_SEND_SIGNALED), (is_inline, IBV_SEND_INLINE)];
        self.requests.push(ibv_send_wr {
            wr_id: work.id,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: c_int::try_from(count).unwrap_or(c_int::MAX),
            opcode,
            send_flags: flags
                .into_iter()
                .filter(|(set, _)| *set)
                .fold(0, |all, (_, flag)| all | flag),
            imm_data: word.to_be(),
            wr: rdma { remote_addr: remote.address, rkey: remote.key, unused: [0; 5] },
            remote_srqn: 0,
            unused: [0; 6],
        });
        Ok(())
    }

    /// Leaves away what there is no room for.
    pub(super) fn truncate(&mut self, most: usize) {
        self.requests.truncate(most);
    }

    /// Hands the chain to the driver, which copies what it needs of it, and returns how many requests
    /// it took, with what became of the rest.
    ///
    /// # Safety
    /// The queue pair exists, and was made with a domain of `open`.
    pub(super) unsafe fn post(
        &mut self,
        pair: NonNull<ibv_qp>,
        open: &Open,
    ) -> (usize, Result<(), VerbsError>) {
        if self.requests.is_empty() {
            return (0, Ok(()));
        }
        self.chain();
        let first = self.requests.as_mut_ptr();
        let mut refused = ptr::null_mut();
        // SAFETY: the caller vouches for the queue pair. The chain is of requests in `requests`, and
        // ends with the last; their spans are in `elements`. Memory that they name is inside regions
        // which hold it; where a region goes before the request is done, its key is no key any more.
        let status = unsafe {
            let post = (*open.context.as_ptr()).ops.post_send;
            post.map_or(libc::ENOSYS, |post| post(pair.as_ptr(), first, &raw mut refused))
        };
        if status == 0 {
            open.tally.post(self.requests.len());
            return (self.requests.len(), Ok(()));
        }
        let before = (refused.addr().saturating_sub(first.addr())) / size_of::<ibv_send_wr>();
        let posted = before.min(self.requests.len());
        open.tally.post(posted);
        if status == libc::ENOMEM {
            return (posted, Err(VerbsError::QueueFull { posted }));
        }
        (posted, open.check("ibv_post_send", status))
    }

    /// Links the requests to each other and to their spans, now that nothing moves any more.
    fn chain(&mut self) {
        let mut spans = self.elements.as_mut_ptr();
        let mut next = ptr::null_mut();
        for request in &mut self.requests {
            request.sg_list = spans;
            // The spans of all requests lie one after another.
            spans = spans.wrapping_add(usize::try_from(request.num_sge).unwrap_or(0));
        }
        for request in self.requests.iter_mut().rev() {
            request.next = next;
            next = ptr::from_mut(request);
        }
    }
}
