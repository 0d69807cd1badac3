//! The command line.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::size::Size;

/// Measures how fast kvferry moves blocks of KV cache between processes, beside how fast the
/// machine can.
#[derive(Debug, Parser)]
#[command(name = "kvbench", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Move blocks between two processes on this host, and say how fast that was
    Transfer(TransferArgs),
    /// Move a model's KV cache between two processes: a first look, in a few seconds
    Quickstart(QuickstartArgs),
    /// The other process of a benchmark: started by this program, not by people
    #[command(name = crate::target_process::SUBCOMMAND, hide = true)]
    Target,
}

const TRANSFER_HELP: &str = "\
Both processes are started here. Blocks are shuffled at either end unless --contiguous says
otherwise, filled from the seed before every iteration and compared, every byte, after it;
neither is timed. A first iteration warms up and is not counted.

With --floor, every iteration is done once more by code with one purpose: the same blocks, memory
and threads over plain TCP connections. The strategy that proves best in a short calibration is
used and named. The ratio is the median over pairs of neighbouring runs. Where iperf3 is installed
it says whether that floor deserves the name.

Sizes are whole numbers with a unit: 64KiB is 65,536 bytes, 64KB is 64,000. A total that is no
multiple of the block size is cut to whole blocks. GB/s are 1e9 bytes a second.

Examples:
  Push and pull 256 MiB in scattered blocks of 64 KiB:
      kvbench transfer
  The same for three block sizes, each beside the floor, and for programs, too:
      kvbench transfer --block-size 4KiB,64KiB,1MiB --floor --json runs.json
  Latency of small pushes:
      kvbench transfer --op write --block-size 4KiB --total 4KiB --iterations 1000
  Four threads with eight transfers in flight each, pulling:
      kvbench transfer --op read --threads 4 --in-flight 8";

/// Settings of `kvbench transfer`.
#[derive(Debug, Args)]
#[command(after_long_help = TRANSFER_HELP)]
pub(crate) struct TransferArgs {
    /// What carries the blocks: the engine's choice, or this and nothing else
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub(crate) transport: Transport,
    /// Push, pull, or both
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Op::Write, Op::Read])]
    pub(crate) op: Vec<Op>,
    /// Block sizes
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',', default_value = "64KiB")]
    pub(crate) block_size: Vec<Size>,
    /// How much is moved in an iteration
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',', default_value = "256MiB")]
    pub(crate) total: Vec<Size>,
    /// Threads that submit transfers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: u32,
    /// Transfers that each thread keeps open: the total is divided among all of them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) in_flight: u32,
    /// Use the blocks in the order in which they lie, where they coalesce
    #[arg(long)]
    pub(crate) contiguous: bool,
    /// Counted iterations of each combination
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) iterations: u32,
    /// Measure the floor beside it: the same work over plain TCP connections
    #[arg(long)]
    pub(crate) floor: bool,
    /// Write the figures to a file, too: {"runs": [..]}
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// What blocks are shuffled and filled from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Settings of `kvbench quickstart`.
#[derive(Debug, Args)]
pub(crate) struct QuickstartArgs {
    /// Write the figures to a file, too: {"runs": [..]}
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Which way the blocks go, from the process that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Op {
    /// Push: from the initiator to the target
    Write,
    /// Pull: from the target to the initiator
    Read,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

/// What is to carry the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// Whatever the engine chooses
    Auto,
    /// TCP connections
    Tcp,
}

impl Transport {
    /// Whether this carrier is what was asked for.
    pub(crate) fn permits(self, carrier: &str) -> bool {
        match self {
            Self::Auto => true,
            Self::Tcp => carrier == "tcp",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
