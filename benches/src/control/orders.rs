//! What is said: a hello, then orders, and an answer to each.

use serde::{Deserialize, Serialize};

use crate::floor::{Job, Messages};
use crate::pattern::Mismatch;
use crate::shape::Shape;
use crate::side::Setup;

/// Raised whenever one end would misunderstand the other.
const PROTOCOL: u32 = 2;

/// What the initiator says first, and the target answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// The version of this protocol. Both must have the same.
    protocol: u32,
    /// The version of the program, for people.
    version: String,
}

/// Who this end is.
pub(crate) fn hello() -> Hello {
    Hello { protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").into() }
}

impl Hello {
    /// Refuses an end that speaks otherwise.
    pub(crate) fn check(&self) -> Result<(), VersionError> {
        if self.protocol == PROTOCOL {
            return Ok(());
        }
        let (protocol, version) = (self.protocol, self.version.chars().take(40).collect());
        Err(VersionError { protocol, version })
    }
}

/// The ends are of different releases.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the other end is kvbench {version} and speaks version {protocol} of the control protocol, \
     this is kvbench {} and speaks {PROTOCOL}: install the same release at both ends",
    env!("CARGO_PKG_VERSION")
)]
pub(crate) struct VersionError {
    protocol: u32,
    version: String,
}

/// From the initiator. `part` is one of the shapes that the region is divided into.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Allocate, and start an engine: `Started`.
    Start(Setup),
    /// Blocks have this shape from now on; share them as layouts `NAME.LAYER`: `Done`.
    Place { name: String, part: u32, shape: Shape },
    /// Put the content of a round into the blocks: `Done`.
    Fill { part: u32, round: u64 },
    /// Compare the blocks with the content of a round: `Verified`.
    Verify { part: u32, round: u64 },
    /// How much processor time was used so far: `Cpu`.
    Cpu,
    /// What its adapters were asked to do so far: `Work`.
    Work,
    /// Take part in a run of perftest: `Listening`.
    Perftest(Messages),
    /// That run is over at the initiator's end: `Done` when it is here.
    PerftestOver,
    /// Accept this many more of the floor's connections: `Done`.
    Accept { count: u32 },
    /// Take part in a run of the floor: `Cpu` when all threads stand ready, `Cpu` at its end.
    Floor(Job),
    /// Connect to engines on this host, one port a rank: `Done`.
    Meet { ports: Vec<u16> },
    /// Fill these cells' sources, and be ready to write them: `Done`.
    Prepare { round: u64, cells: Vec<Cell> },
    /// Write what was prepared: `Moved`.
    Go,
    /// Compare these cells' destinations: `Verified`.
    Check { round: u64, cells: Vec<Cell> },
}

/// Bytes that one rank writes to another in one pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// Which of the patterns that are moved at once.
    pub(crate) pattern: u32,
    /// The rank that is written to.
    pub(crate) peer: u32,
    /// Where the bytes start in the source's region, and in the destination's.
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) bytes: u64,
    /// Its number among all cells, from which its content is made.
    pub(crate) number: u64,
}

/// From the target.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// To the hello.
    Welcome(Hello),
    Started {
        engine_port: u16,
        page_bytes: usize,
        floor_port: u16,
        /// With which the floor's connections say whose they are.
        floor_token: u64,
    },
    Done,
    Verified {
        mismatch: Option<Mismatch>,
    },
    Cpu {
        nanoseconds: u64,
    },
    /// By all RDMA adapters of its engine: see `RdmaCounts`.
    Work {
        requests: u64,
        doorbells: u64,
        completions: u64,
        armed: u64,
    },
    /// Where perftest's client is expected.
    Listening {
        port: u16,
    },
    /// How long each pattern took, from its submission to the last of its ends.
    Moved {
        nanoseconds: Vec<u64>,
    },
    Failed {
        error: String,
    },
}
