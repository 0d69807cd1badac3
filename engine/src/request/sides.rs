//! The two sides of a transfer: lists of spans and blocks, in order.

use std::sync::Arc;

use kvferry_proto::Incarnation;

use crate::registry::{BlockList, Span};
use crate::remote::{RemoteBlocks, RemoteGrant, RemoteSpan};

/// The local side of a transfer: spans and blocks of regions of this process, in order.
#[derive(Clone, Debug, Default)]
pub struct LocalSpans(pub(crate) Vec<LocalPiece>);

#[derive(Clone, Debug)]
pub(crate) enum LocalPiece {
    Span(Span),
    Blocks(BlockList),
    Address { address: u64, length: u64 },
}

/// The remote side of a transfer: spans and blocks of regions of the peer, in order, and the grant
/// under which they are touched. Without one it is each region's standing grant.
#[derive(Clone, Debug, Default)]
pub struct RemoteSpans {
    pub(crate) pieces: Vec<RemotePiece>,
    pub(crate) grant: Option<Arc<RemoteGrant>>,
    pub(crate) owner: Option<Incarnation>,
}

#[derive(Clone, Debug)]
pub(crate) enum RemotePiece {
    Span(RemoteSpan),
    Blocks(RemoteBlocks),
    Address { address: u64, length: u64 },
}

impl LocalSpans {
    /// Ranges named by absolute address in this process, each in one registered region.
    pub fn addresses(ranges: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let ranges = ranges.into_iter();
        Self(ranges.map(|(address, length)| LocalPiece::Address { address, length }).collect())
    }

    /// These, then those.
    #[must_use]
    pub fn and(mut self, more: impl Into<Self>) -> Self {
        self.0.extend(more.into().0);
        self
    }
}

impl RemoteSpans {
    fn of(pieces: Vec<RemotePiece>) -> Self {
        Self { pieces, grant: None, owner: None }
    }

    /// Ranges named by absolute address in the peer's process, each in one region that it shares.
    pub fn addresses(ranges: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let ranges = ranges.into_iter();
        Self::of(ranges.map(|(address, length)| RemotePiece::Address { address, length }).collect())
    }

    /// These, then those.
    #[must_use]
    pub fn and(mut self, more: impl Into<Self>) -> Self {
        self.pieces.extend(more.into().pieces);
        self
    }

    /// Under this grant and no other.
    #[must_use]
    pub fn under(mut self, grant: &Arc<RemoteGrant>) -> Self {
        self.grant = Some(grant.clone());
        self
    }

    /// In this incarnation of the peer and no other. Addresses say nothing of whose they are: after
    /// a restart they may name other memory.
    #[must_use]
    pub fn owned_by(mut self, owner: Incarnation) -> Self {
        self.owner = Some(owner);
        self
    }
}

impl RemoteBlocks {
    /// Under this grant and no other.
    #[must_use]
    pub fn under(self, grant: &Arc<RemoteGrant>) -> RemoteSpans {
        RemoteSpans::from(self).under(grant)
    }
}

impl From<Span> for LocalSpans {
    fn from(span: Span) -> Self {
        Self(vec![LocalPiece::Span(span)])
    }
}

impl From<Vec<Span>> for LocalSpans {
    fn from(spans: Vec<Span>) -> Self {
        Self(spans.into_iter().map(LocalPiece::Span).collect())
    }
}

impl From<BlockList> for LocalSpans {
    fn from(blocks: BlockList) -> Self {
        Self(vec![LocalPiece::Blocks(blocks)])
    }
}

impl From<Vec<BlockList>> for LocalSpans {
    fn from(lists: Vec<BlockList>) -> Self {
        Self(lists.into_iter().map(LocalPiece::Blocks).collect())
    }
}

impl From<RemoteSpan> for RemoteSpans {
    fn from(span: RemoteSpan) -> Self {
        Self::of(vec![RemotePiece::Span(span)])
    }
}

impl From<Vec<RemoteSpan>> for RemoteSpans {
    fn from(spans: Vec<RemoteSpan>) -> Self {
        Self::of(spans.into_iter().map(RemotePiece::Span).collect())
    }
}

impl From<RemoteBlocks> for RemoteSpans {
    fn from(blocks: RemoteBlocks) -> Self {
        Self::of(vec![RemotePiece::Blocks(blocks)])
    }
}

impl From<Vec<RemoteBlocks>> for RemoteSpans {
    fn from(lists: Vec<RemoteBlocks>) -> Self {
        Self::of(lists.into_iter().map(RemotePiece::Blocks).collect())
    }
}

impl From<&Arc<RemoteGrant>> for RemoteSpans {
    /// All spans of the grant, under it.
    fn from(grant: &Arc<RemoteGrant>) -> Self {
        Self::from(grant.spans().to_vec()).under(grant)
    }
}
