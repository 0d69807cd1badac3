//! A payload on its way out of this process's memory.

use std::sync::Arc;

use kvferry_proto::TransferId;
use kvferry_proto::frame::{Reply, Status};
use kvferry_transport::lanes::{Load, Loader, Outgoing, Start, is_memory_fault};
use kvferry_transport::memory::SpanList;

use super::authority::Authority;
use super::lent::Holds;
use crate::core::Core;
use crate::passage;

/// The data of a read slice, and behind it whether it was held until its last byte was taken.
pub(super) struct DataFrame {
    pub(super) core: Arc<Core>,
    pub(super) authority: Authority,
    pub(super) spans: SpanList,
    pub(super) transfer: TransferId,
    pub(super) slice: u32,
    pub(super) payload_bytes: u32,
    pub(super) checksum: bool,
    /// Where it is held until it has landed, if what is sent are the pages themselves.
    pub(super) holds: Option<Arc<Holds>>,
    /// They are.
    pub(super) lent: bool,
    /// Why not, once something stood against it.
    pub(super) refused: Option<Status>,
}

impl DataFrame {
    fn held(self, out: &mut Vec<u8>) {
        let mut status = self.refused.unwrap_or(Status::Done);
        self.core.initiators.count(status);
        if let Some(holds) = self.holds.filter(|_| self.lent && status == Status::Done) {
            // The initiator may take the pages out of its socket much later.
            holds.hold(self.transfer, self.slice, self.authority, self.payload_bytes);
            status = Status::HeldUntilLanded;
        }
        Reply::Held { transfer: self.transfer, slice: self.slice, status }.encode_plain(out);
    }
}

impl Outgoing for DataFrame {
    fn start(&mut self, out: &mut Vec<u8>) -> Start {
        let (authority, spans, checksum) = (&self.authority, &mut self.spans, self.checksum);
        let ready = passage::enter(|| {
            authority.check()?;
            if checksum { spans.crc32c().map_err(|_| Status::MemoryFault) } else { Ok(0) }
        });
        match ready {
            Ok(crc32c) => {
                let (transfer, slice) = (self.transfer, self.slice);
                let data = Reply::Data { transfer, slice, crc32c };
                data.encode(out, self.payload_bytes, checksum);
                Start::Payload(self.payload_bytes as usize)
            }
            Err(status) => {
                self.refused = Some(status);
                Start::Bare
            }
        }
    }

    fn load(&mut self, loader: &mut Loader<'_>) -> Load {
        let (authority, spans, lent) = (&self.authority, &mut self.spans, &mut self.lent);
        let may_lend = self.holds.is_some() && !self.checksum;
        let loaded = passage::enter(|| {
            if !planted!(LateRead) {
                authority.check()?;
            }
            *lent = may_lend && loader.can_lend(spans);
            Ok(if *lent { loader.lend(spans) } else { loader.load(spans) })
        });
        match loaded {
            Ok(Err(error)) if is_memory_fault(&error) => self.refused = Some(Status::MemoryFault),
            Ok(sent) => return Load::Sent(sent),
            Err(status) => self.refused = Some(status),
        }
        // What is missing of the payload is filled; what follows it says that it does not count.
        Load::Fill
    }

    fn sent(self: Box<Self>, _whole: bool, out: &mut Vec<u8>) {
        self.held(out);
    }
}
