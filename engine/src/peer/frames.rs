//! The frames that carry a transfer's slices to the peer.

use std::sync::Arc;

use kvferry_transport::lanes::{Load, Loader, Outgoing, Start};
use kvferry_transport::memory::SpanList;

use crate::passage;
use crate::transfer::Op;
use crate::transfer::cargo::{Cargo, Permit, Post};

/// A slice: for a write its payload follows, unless the peer can read it where it is; for a read it
/// is only asked for.
pub(super) struct SliceFrame {
    cargo: Arc<Cargo>,
    post: Post,
    spans: SpanList,
}

impl SliceFrame {
    pub(super) fn new(cargo: Arc<Cargo>, post: Post) -> Self {
        Self { cargo, post, spans: SpanList::new() }
    }
}

impl Outgoing for SliceFrame {
    fn start(&mut self, out: &mut Vec<u8>) -> Start {
        let Some(slice) = self.cargo.plan().slices().get(self.post.slice as usize) else {
            return Start::Skip;
        };
        if self.cargo.permit() != Permit::Open {
            return Start::Skip;
        }
        if self.cargo.terms().op == Op::Read || self.post.by_reference {
            self.cargo.encode_slice(out, &self.post, None);
            return Start::Bare;
        }
        let Ok(spans) = self.cargo.local_spans(slice) else { return Start::Skip };
        self.spans = spans;
        let crc32c = if self.cargo.terms().checksum {
            let spans = &mut self.spans;
            let cargo = &self.cargo;
            let crc32c = passage::enter(|| match cargo.permit() {
                Permit::Open => spans.crc32c().ok(),
                _ => None,
            });
            // Without a checksum nothing is sent: the permit is gone, or the memory cannot be
            // read, which sending it would find too.
            match crc32c {
                Some(crc32c) => Some(crc32c),
                None if self.cargo.permit() == Permit::Open => {
                    self.cargo.fault();
                    return Start::Skip;
                }
                None => return Start::Skip,
            }
        } else {
            None
        };
        self.cargo.encode_slice(out, &self.post, crc32c);
        Start::Payload(slice.bytes as usize)
    }

    fn load(&mut self, loader: &mut Loader<'_>) -> Load {
        let (cargo, spans) = (&self.cargo, &mut self.spans);
        let lends = cargo.may_lend_pages();
        let load = passage::enter(|| match cargo.permit() {
            Permit::Open if lends && loader.can_lend(spans) => Load::Sent(loader.lend(spans)),
            Permit::Open => Load::Sent(loader.load(spans)),
            Permit::Fenced => Load::Fill,
            Permit::Unfenced => Load::Reset,
        });
        if let Load::Sent(Err(error)) = &load
            && kvferry_transport::lanes::is_memory_fault(error)
        {
            // The frame is half out with nothing to follow it: the lane goes, the transfer too.
            cargo.fault();
            return Load::Reset;
        }
        load
    }

    fn sent(self: Box<Self>, _whole: bool, _out: &mut Vec<u8>) {}
}
