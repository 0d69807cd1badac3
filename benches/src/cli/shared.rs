//! Settings that several commands have.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::values::{Memory, OpChoice, Sink, Transport};
use crate::control::Whereabouts;
use crate::pair::{Other, PATIENCE_S};

/// How it is measured.
#[derive(Debug, Args)]
pub(crate) struct MeasureArgs {
    /// What carries the blocks: the engine's choice (with --floor: tcp), or this and nothing else
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub(crate) transport: Transport,
    /// Push, pull, or both
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [OpChoice::Both])]
    pub(crate) op: Vec<OpChoice>,
    /// Threads that submit transfers
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: Vec<u32>,
    /// Transfers that each thread keeps open: the total is divided among all of them
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) in_flight: Vec<u32>,
    /// Use the blocks in the order in which they lie, where they coalesce
    #[arg(long)]
    pub(crate) contiguous: bool,
    /// Counted iterations of each combination
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) iterations: u32,
    /// What the blocks lie in, at both ends
    #[arg(long, value_enum, default_value_t = Memory::Shared)]
    pub(crate) memory: Memory,
    /// Measure the floor beside it: the same work over plain TCP connections, for --transport local
    /// the same blocks copied within one process, or for rdma messages of a block's size by perftest
    #[arg(long)]
    pub(crate) floor: bool,
    /// Count what one more iteration takes: requests, doorbells and completions of RDMA adapters, and
    /// both processes' system calls where they are of this host and this one may trace the kernel
    #[arg(long)]
    pub(crate) counts: bool,
    /// What blocks are shuffled and filled from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

impl MeasureArgs {
    /// What is to carry the blocks. There is one floor for each, and so none for a choice.
    pub(crate) fn carrier(&self) -> Transport {
        let is_choice = self.transport == Transport::Auto;
        if self.floor && is_choice { Transport::Tcp } else { self.transport }
    }
}

/// The other end.
#[derive(Debug, Args)]
pub(crate) struct OtherArgs {
    /// Where `kvbench serve` is the other process [default: one is started here]
    #[arg(long, value_name = "HOST:PORT")]
    peer: Option<String>,
    /// RDMA adapters of the process that is started here, as in KVFERRY_RDMA_DEVICES [default: this
    /// process's]
    #[arg(long, value_name = "NAMES", conflicts_with = "peer")]
    target_rdma_devices: Option<String>,
    /// How many seconds the other process may be silent, beyond the time that its work takes
    #[arg(long, value_name = "SECONDS", default_value_t = PATIENCE_S,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,
}

impl OtherArgs {
    /// Where the other process is, and how long it is waited for.
    pub(crate) fn other(&self) -> Other {
        let rdma_devices = self.target_rdma_devices.clone();
        let whereabouts = match &self.peer {
            Some(peer) => Whereabouts::There(peer.clone()),
            None => Whereabouts::Here { rdma_devices },
        };
        Other { whereabouts, patience: Duration::from_secs(self.patience) }
    }
}

/// Where the figures go, beside the table.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct OutputArgs {
    /// Write the figures as JSON, `-` for standard output instead of the table: {"runs": [..]}
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<Sink>,
    /// Write the figures as comma-separated values, one line a run; `-` as for --json
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<Sink>,
    /// Draw the figures: throughput over the block size, and latency where --pace measures it
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
}
