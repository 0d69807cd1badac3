//! All that a submission does before anything is sent: two lists of blocks resolved, checked against
//! what the peer shares, and planned.

use kvferry_engine::{
    Access, BlockList, Engine, Error, Layout, LayoutView, Peer, Region, Registry, RemoteBlocks,
    RemoteLayout, Request, TransferError, Transport, Transports,
};

use crate::cases::{DESCRIPTORS, shuffled};

const BLOCK_BYTES: u64 = 64;

/// An engine with blocks, and what another knows of them.
pub(crate) struct Engines {
    // Before the engine that it leads to.
    peer: Peer,
    blocks: LayoutView,
    shorter: LayoutView,
    theirs: RemoteLayout,
    _regions: [Region; 2],
    _engines: [Engine; 2],
}

impl Engines {
    pub(crate) fn start() -> Self {
        let bytes = u64::from(DESCRIPTORS) * BLOCK_BYTES;
        let layout = |block_bytes| Layout {
            offset: 0,
            block_bytes,
            stride: BLOCK_BYTES,
            count: bytes / BLOCK_BYTES,
        };
        let side = || {
            let registry = Registry::new();
            let region = registry.allocate(bytes).expect("memory for the blocks");
            let engine = Engine::builder(registry)
                .listen("127.0.0.1:0")
                .transports(Transports::Only(Transport::Tcp))
                .start_blocking()
                .expect("an engine on the loopback address");
            (region, engine)
        };
        let ((here, initiator), (there, target)) = (side(), side());
        there.share(Access::Read).expect("a region to share");
        there
            .layout(layout(BLOCK_BYTES))
            .and_then(|view| view.publish("blocks"))
            .expect("a layout");
        let runtime =
            tokio::runtime::Builder::new_current_thread().build().expect("a runtime to connect on");
        let address = target.address().to_string();
        let peer = runtime.block_on(initiator.connect(address.as_str())).expect("a peer");
        Self {
            blocks: here.layout(layout(BLOCK_BYTES)).expect("blocks"),
            shorter: here.layout(layout(BLOCK_BYTES / 2)).expect("shorter blocks"),
            theirs: peer.layout("blocks").expect("the layout that was published"),
            peer,
            _regions: [here, there],
            _engines: [initiator, target],
        }
    }

    /// A pull of all blocks in random order, of which the last does not fit: so all are looked at,
    /// and nothing is sent.
    pub(crate) fn request(&self) -> Request {
        let order = |seed| {
            let order = shuffled(seed).into_iter();
            order.map(|block| u32::try_from(block).expect("less than 10^6")).collect::<Vec<_>>()
        };
        let mut here = order(1);
        let last = here.pop();
        let local: Vec<BlockList> = vec![self.blocks.blocks(here), self.shorter.blocks(last)];
        let remote: Vec<RemoteBlocks> = vec![self.theirs.blocks(order(2))];
        self.peer.read(remote, local)
    }

    pub(crate) fn expect_last_refused(&self, refused: Option<TransferError>) {
        let cause = refused.map(|error| error.cause);
        let last = u64::from(DESCRIPTORS) - 1;
        assert!(matches!(cause, Some(Error::LengthMismatch { index, .. }) if index == last));
    }
}
