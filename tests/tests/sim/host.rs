//! A host: an engine while its process lives, its memory, and what every byte of it has to be.

use std::time::{Duration, Instant};

use kvferry_engine::simulation::{Node, NodeSettings};
use kvferry_engine::{Access, Incarnation, Layout, LayoutView, Memory, Region, Registry};

use crate::jobs::JobId;

/// The bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 1 << 10;
/// Blocks that are granted one transfer at a time.
pub(crate) const POOL_BLOCKS: usize = 40;
/// Blocks of the memory that is shared with everybody: each host may write as many of each other's.
pub(crate) const BOARD_BLOCKS_EACH: usize = 4;

pub(crate) const POOL: &str = "pool";
pub(crate) const BOARD: &str = "board";

/// What a block is in use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Nobody may write it.
    Free,
    /// Filled here, and read by a job: nobody may write it.
    Source(JobId),
    /// Granted for a job's write.
    Target(JobId),
    /// Where a job's read puts what it reads.
    Landing(JobId),
}

/// A block of one of a host's two memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    Pool(usize),
    Board(usize),
}

/// Which process of which host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LifeId {
    pub(crate) host: usize,
    pub(crate) number: u64,
}

impl LifeId {
    /// The process that has an incarnation.
    pub(crate) fn of(incarnation: Incarnation) -> Self {
        let host = usize::try_from(incarnation.0 >> 32).expect("few hosts").wrapping_sub(1);
        Self { host, number: incarnation.0 & 0xffff_ffff }
    }

    pub(crate) fn incarnation(self) -> Incarnation {
        Incarnation(((self.host as u64 + 1) << 32) | self.number)
    }
}

/// Memory that a process has registered, and what is known to be in it.
#[derive(Debug)]
pub(crate) struct Known {
    memory: Memory,
    /// `None` while the process sleeps.
    region: Option<Region>,
    pub(crate) layout: LayoutView,
    pub(crate) contents: Vec<u8>,
    found: Vec<u8>,
}

fn register(registry: &Registry, memory: &Memory, name: &str) -> (Region, LayoutView) {
    let region = registry.register(memory.clone(), Access::ReadWrite).expect("its own memory");
    let block_bytes = BLOCK_BYTES as u64;
    let count = memory.length() / block_bytes;
    let geometry = Layout { offset: 0, block_bytes, stride: block_bytes, count };
    let layout = region.layout(geometry).expect("it fits");
    layout.publish(name).expect("nothing of this name");
    (region, layout)
}

impl Known {
    fn new(registry: &Registry, memory: &Memory, name: &str) -> Self {
        let (region, layout) = register(registry, memory, name);
        let contents = vec![0; usize::try_from(memory.length()).expect("small")];
        memory.copy_in(0, &contents).expect("in range");
        let (memory, found) = (memory.clone(), contents.clone());
        Self { memory, region: Some(region), layout, contents, found }
    }

    fn blocks(&self) -> usize {
        self.contents.len() / BLOCK_BYTES
    }

    /// Writes a block as its owner.
    pub(crate) fn write(&mut self, block: usize, bytes: &[u8]) {
        let at = block * BLOCK_BYTES;
        self.memory.copy_in(at as u64, bytes).expect("in range");
        self.contents[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn block(&self, block: usize) -> &[u8] {
        &self.contents[block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES]
    }

    /// Blocks whose contents are not what they were, each with its new bytes.
    fn changes(&mut self) -> Vec<(usize, Vec<u8>)> {
        self.memory.copy_out(0, &mut self.found).expect("in range");
        if self.found == self.contents {
            return Vec::new();
        }
        let blocks = self.found.chunks(BLOCK_BYTES).zip(self.contents.chunks(BLOCK_BYTES));
        let changed = blocks.enumerate().filter(|(_, (found, known))| found != known);
        changed.map(|(block, (found, _))| (block, found.to_vec())).collect()
    }
}

/// A process: an engine and its memory.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) number: u64,
    pub(crate) node: Node,
    pub(crate) pool: Known,
    pub(crate) uses: [Use; POOL_BLOCKS],
    pub(crate) board: Known,
    /// What may still be written to each block of the board.
    pub(crate) writers: Vec<Vec<JobId>>,
}

impl Life {
    /// A changed block of either memory, with its new bytes.
    pub(crate) fn changes(&mut self) -> Vec<(Block, Vec<u8>)> {
        let pool = self.pool.changes().into_iter().map(|(at, bytes)| (Block::Pool(at), bytes));
        let board = self.board.changes().into_iter().map(|(at, bytes)| (Block::Board(at), bytes));
        pool.chain(board).collect()
    }

    /// What is known of a block from now on.
    pub(crate) fn note(&mut self, block: Block, bytes: &[u8]) {
        let (known, block) = match block {
            Block::Pool(block) => (&mut self.pool, block),
            Block::Board(block) => (&mut self.board, block),
        };
        known.contents[block * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(bytes);
    }

    /// Gives its pool's memory back, whatever uses it.
    pub(crate) fn forget_pool(&mut self) {
        if let Some(region) = self.pool.region.take() {
            region.unregister(Duration::ZERO);
        }
    }

    /// Registers the same memory again.
    pub(crate) fn renew_pool(&mut self) {
        let (region, layout) = register(self.node.registry(), &self.pool.memory, POOL);
        (self.pool.region, self.pool.layout) = (Some(region), layout);
    }

    pub(crate) fn free_blocks(&self) -> Vec<usize> {
        (0..POOL_BLOCKS).filter(|block| self.uses[*block] == Use::Free).collect()
    }
}

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) index: usize,
    memories: [Memory; 2],
    pub(crate) life: Option<Life>,
    lives: u64,
    /// Its process does nothing until then.
    pub(crate) stopped_until: Instant,
    pub(crate) settings: NodeSettings,
}

impl Host {
    pub(crate) fn new(index: usize, hosts: usize, settings: NodeSettings, now: Instant) -> Self {
        let memory = |blocks: usize| Memory::allocate(blocks * BLOCK_BYTES).expect("memory");
        let memories = [memory(POOL_BLOCKS), memory(hosts * BOARD_BLOCKS_EACH)];
        Self { index, memories, life: None, lives: 0, stopped_until: now, settings }
    }

    /// Its address, the same for every process.
    pub(crate) fn address(index: usize) -> String {
        format!("host-{index}:7001")
    }

    /// Starts its process. No two have the same incarnation.
    pub(crate) fn start(&mut self) -> &mut Life {
        self.lives += 1;
        let incarnation = LifeId { host: self.index, number: self.lives }.incarnation();
        let registry = Registry::new();
        let [pool, board] = &self.memories;
        let pool = Known::new(&registry, pool, POOL);
        let board = Known::new(&registry, board, BOARD);
        if let Some(region) = &board.region {
            region.share(Access::ReadWrite).expect("all of it is registered for it");
        }
        let writers = vec![Vec::new(); board.blocks()];
        let node = Node::start(incarnation, registry, self.settings).expect("descriptors");
        let number = self.lives;
        self.life.insert(Life {
            number,
            node,
            pool,
            uses: [Use::Free; POOL_BLOCKS],
            board,
            writers,
        })
    }

    pub(crate) fn id(&self) -> Option<LifeId> {
        let number = self.life.as_ref()?.number;
        Some(LifeId { host: self.index, number })
    }

    /// The process, if it is still this one.
    pub(crate) fn living(&mut self, id: LifeId) -> Option<&mut Life> {
        self.life.as_mut().filter(|life| life.number == id.number)
    }

    pub(crate) fn is_stopped(&self, now: Instant) -> bool {
        self.stopped_until > now
    }

    pub(crate) fn stop(&mut self, until: Instant) {
        self.stopped_until = self.stopped_until.max(until);
    }

    /// How long it does nothing yet.
    pub(crate) fn wakes_in(&self, now: Instant) -> Duration {
        self.stopped_until.saturating_duration_since(now)
    }
}
