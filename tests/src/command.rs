//! What a test tells a peer process, and what that answers: one JSON value a line, both ways.

use std::ops::Range;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// How a peer's engine is set up. What is not given keeps its default.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Setup {
    /// Where it listens; `127.0.0.1:0` by default.
    pub listen: Option<String>,
    /// Where it says that it accepts lanes.
    pub lane_advertise: Option<String>,
    /// What may carry transfers: `auto`, `tcp`, `local` or `rdma`; `tcp` by default.
    pub transport: Option<String>,
    /// Names of the RDMA adapters that it uses; by default those that its environment says.
    pub rdma_devices: Option<String>,
    /// Where it meets processes of its host.
    pub run_directory: Option<PathBuf>,
    /// Lanes for large transfers; 1 by default, however many cores there are.
    pub bulk_lanes: Option<usize>,
    /// Bytes of a slice.
    pub slice_bytes: Option<u32>,
    /// Milliseconds without a sign of life before one is asked for, and before the peer is dead.
    pub liveness_ms: Option<(u64, u64)>,
    /// Milliseconds until unused lanes close.
    pub idle_ms: Option<u64>,
    /// Milliseconds that a step of connecting may take.
    pub connect_ms: Option<u64>,
    /// How many notifications wait for the program.
    pub notifications: Option<usize>,
    /// How many transfers may be open.
    pub open_transfers: Option<u64>,
    /// Where a bootstrap server beside it listens.
    pub bootstrap: Option<String>,
    /// Whether the cache is a sparse file, which takes no more memory than is written of it.
    pub sparse: bool,
    /// Whether the cache is memory that no other process can map.
    pub foreign: bool,
}

/// A view of a cache as blocks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct View {
    /// Where block 0 starts.
    pub offset: u64,
    /// The length of a block in bytes.
    pub block_bytes: u64,
    /// From one block to the next, in bytes.
    pub stride: u64,
    /// How many blocks.
    pub count: u64,
}

/// A range of a cache, and where in some contents its bytes come from.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Piece {
    /// Where it starts in the cache.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Where it comes from in the contents.
    pub source: u64,
}

/// How an engine and all that hangs on it go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Farewell {
    /// The engine is dropped first, then its handles: memory, peers, transfers, grants.
    EngineFirst,
    /// The handles are dropped first, the engine last.
    EngineLast,
    /// A thread that owns all of it panics.
    Panic,
}

/// Which way a transfer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// From the peer that is told.
    Push,
    /// To the peer that is told.
    Pull,
}

/// What a transfer moves: blocks of the layouts that both ends call `cache`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Move {
    /// Which way.
    pub way: Way,
    /// The address of the peer.
    pub with: String,
    /// Blocks of this peer, in order.
    pub local: Vec<u32>,
    /// Blocks of the other.
    pub remote: Vec<u32>,
    /// What the other is told.
    pub notify: Option<String>,
    /// The deadline.
    pub deadline_ms: Option<u64>,
    /// Whether slices carry checksums.
    pub checksum: bool,
    /// The ticket of the grant under which it is done.
    pub ticket: Option<Vec<u8>>,
}

/// A command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Start an engine with a cache of `blocks` blocks of `block_bytes`, and publish its layout.
    Start {
        /// Its settings.
        setup: Setup,
        /// How many blocks.
        blocks: u64,
        /// How long each.
        block_bytes: u64,
        /// Whether every peer may read and write all of it.
        share: bool,
    },
    /// Fill blocks with what belongs there in the contents of this number.
    Fill {
        /// The blocks.
        blocks: Range<u32>,
        /// The contents.
        seed: u64,
    },
    /// Look which blocks do not hold what belongs at block `source` and on.
    Check {
        /// The blocks, and where each block's contents come from.
        blocks: Vec<(u32, u32)>,
        /// The contents.
        seed: u64,
    },
    /// Fill ranges of the cache with what belongs where each comes from.
    Put {
        /// The ranges.
        pieces: Vec<Piece>,
        /// The contents.
        seed: u64,
    },
    /// Look which ranges do not hold what belongs where each comes from.
    Look {
        /// The ranges.
        pieces: Vec<Piece>,
        /// The contents.
        seed: u64,
    },
    /// Publish another layout of the cache.
    Publish {
        /// Its name.
        name: String,
        /// What it is.
        view: View,
    },
    /// Connect to a peer.
    Connect {
        /// Its address.
        address: String,
    },
    /// Why foreign memory goes to and from a peer through the socket.
    NotInPlace {
        /// Its address.
        address: String,
    },
    /// Look up the peer's layout, which transfers use from then on.
    Lookup {
        /// The peer's address.
        address: String,
    },
    /// Submit a transfer under a name.
    Submit {
        /// The name.
        name: String,
        /// What it moves.
        what: Move,
    },
    /// Push one block at a time from many threads, each its own block to the same of the peer's,
    /// and wait for all.
    Storm {
        /// The address of the peer.
        with: String,
        /// How many threads.
        threads: u32,
        /// How many transfers in all.
        transfers: u32,
    },
    /// Wait for a transfer's end.
    Wait {
        /// Its name.
        name: String,
        /// How long.
        patience_ms: u64,
    },
    /// Ask for a transfer's end.
    Cancel {
        /// Its name.
        name: String,
    },
    /// Grant blocks to a peer, under a name.
    Grant {
        /// The name.
        name: String,
        /// The blocks.
        blocks: Range<u32>,
        /// The incarnation of the peer.
        peer: u64,
        /// Whether it may write, or read.
        write: bool,
        /// For how long.
        ttl_ms: u64,
    },
    /// Revoke a grant.
    Revoke {
        /// Its name.
        name: String,
    },
    /// Unregister the cache.
    Unregister {
        /// How long to wait for its users.
        patience_ms: u64,
    },
    /// Wait for a notification; what is in place when it arrives is compared with `seed`, block by
    /// block as the notification lists them (`12:30` for block 12 from block 30).
    NextNotification {
        /// How long.
        patience_ms: u64,
        /// The contents to compare with.
        seed: Option<u64>,
    },
    /// Register with a bootstrap server, and renew that from then on.
    Register {
        /// The server.
        bootstrap: String,
        /// The engine's name.
        engine_id: String,
        /// The rank of tensor parallelism.
        tp_rank: u32,
        /// For how long a registration counts.
        lease_ms: u64,
    },
    /// How the registration goes.
    Registration,
    /// What the engine and the process hold.
    Status,
    /// Shut the engine down.
    Shutdown {
        /// How long to wait for transfers.
        patience_ms: u64,
    },
    /// Let go of the engine and everything that hangs on it.
    Drop {
        /// How.
        how: Farewell,
    },
}

/// How a transfer ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// `Done`.
    Done {
        /// Bytes moved.
        bytes: u64,
        /// Slices that were sent again.
        repeated: u32,
        /// What carried it.
        transport: String,
        /// Whether any of it was copied by its receiver from where it was.
        by_reference: bool,
    },
    /// It failed.
    Failed {
        /// The name of the error.
        cause: String,
        /// All of it, in words.
        message: String,
        /// What is known of the peer's memory.
        remote: String,
        /// Whether the same may succeed later.
        retryable: bool,
    },
    /// It has not ended yet.
    Pending,
}

impl End {
    /// The name of the error, where it failed.
    #[must_use]
    pub fn cause(&self) -> &str {
        match self {
            Self::Failed { cause, .. } => cause,
            Self::Done { .. } => "none: it is done",
            Self::Pending => "none: it is pending",
        }
    }

    /// What is known of the peer's memory, where it failed.
    #[must_use]
    pub fn remote(&self) -> &str {
        match self {
            Self::Failed { remote, .. } => remote,
            _ => "not failed",
        }
    }

    /// Whether it failed, and the same may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Failed { retryable: true, .. })
    }

    /// What carried it, where it ended `Done`.
    #[must_use]
    pub fn transport(&self) -> &str {
        match self {
            Self::Done { transport, .. } => transport,
            _ => "none: it is not done",
        }
    }

    /// Whether it ended `Done`, and its receiver copied it from where it was.
    #[must_use]
    pub fn is_by_reference(&self) -> bool {
        matches!(self, Self::Done { by_reference: true, .. })
    }

    /// Whether it ended `Done`.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done { .. })
    }
}

/// What the engine and the process hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Open transfers.
    pub transfers: usize,
    /// Lanes to peers.
    pub lanes_opened: usize,
    /// Lanes that peers opened.
    pub lanes_accepted: usize,
    /// Regions.
    pub regions: u64,
    /// Grants.
    pub grants: usize,
    /// Requests of peers that were refused so far.
    pub refused: u64,
    /// Answers that matched nothing under way so far.
    pub stale: u64,
    /// Open descriptors of the process.
    pub descriptors: usize,
    /// Threads of the process.
    pub threads: usize,
    /// Mappings of memory of ours.
    pub memfds: usize,
    /// Mappings of rings, two to a lane: this end's and the other's.
    pub rings: usize,
    /// Resident bytes of the process.
    pub resident_bytes: u64,
    /// Processor time of the process so far, in nanoseconds.
    pub cpu_ns: u64,
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It is done.
    Ok,
    /// It failed, with the error's name and words.
    Error {
        /// The name of the error.
        cause: String,
        /// All of it, in words.
        message: String,
        /// Whether the same may succeed later.
        retryable: bool,
    },
    /// The engine runs.
    Started {
        /// Where it is reached.
        address: String,
        /// Where it accepts lanes.
        lane_port: u16,
        /// Its incarnation.
        incarnation: u64,
        /// Where the bootstrap server beside it is reached.
        bootstrap: Option<String>,
    },
    /// Why something is not so; nothing where it is.
    Why(Option<String>),
    /// The blocks that hold something else.
    Wrong(Vec<u32>),
    /// How a transfer ended.
    End(End),
    /// A ticket.
    Ticket(Vec<u8>),
    /// What an unregistering cut, and how long it took.
    Cut {
        /// How many transfers.
        transfers: usize,
    },
    /// A notification, and which of the blocks it lists were wrong when it arrived.
    Notification {
        /// What it says.
        text: String,
        /// Who sent it.
        from: u64,
        /// Blocks that hold something else.
        wrong: Vec<u32>,
    },
    /// No notification came.
    Nothing,
    /// What is held.
    Held(Held),
}
