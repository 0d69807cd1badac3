//! The command line.
//!
//! | module | what stands there |
//! |---|---|
//! | `shared` | settings that several commands have |
//! | `values` | what they are set to |

mod shared;
mod values;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub(crate) use shared::{MeasureArgs, OtherArgs, OutputArgs};
pub(crate) use values::{Dtype, Memory, Op, OpChoice, PagePattern, Sink, Transport};

use crate::pace::Pace;
use kvferry_engine::size::Size;

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
    /// Move blocks between two processes, and say how fast that was
    Transfer(Box<TransferArgs>),
    /// Be the other process, for kvbench on other hosts: `--peer` leads them here
    Serve(ServeArgs),
    /// Small transfers beside bulk ones: what each does to the other
    Mixed(Box<MixedArgs>),
    /// Move what a model's KV cache consists of
    Model(Box<ModelArgs>),
    /// Matrices of bytes between processes of this host, alone and at once
    Matrix(MatrixArgs),
    /// By which way memory is copied fastest within this host
    Ways(WaysArgs),
    /// Look up keys at a pool's master: how many, at what cost, in how much memory
    Master(MasterArgs),
    /// Put objects into a pool and get them, beside the same bytes without a pool
    Pool(Box<PoolArgs>),
    /// Draw the figures of earlier runs
    Plot(PlotArgs),
    /// Move a model's KV cache between two processes, and use a pool: a first look, in a few seconds
    Quickstart(QuickstartArgs),
    /// The other process of a benchmark: started by this program, not by people
    #[command(name = crate::control::SUBCOMMAND, hide = true)]
    Target,
    /// The master of a benchmark: started by this program, not by people
    #[command(name = crate::master::SUBCOMMAND, hide = true)]
    MasterServer {
        #[arg(long)]
        workers: u16,
    },
    /// A process of a pool: started by this program, not by people
    #[command(name = POOL_PART, hide = true, subcommand)]
    PoolPart(PoolPart),
}

/// By which a process of a pool is started.
pub(crate) const POOL_PART: &str = "pool-part";

/// What a process of a pool is.
#[derive(Debug, Subcommand)]
pub(crate) enum PoolPart {
    /// Its master
    Master,
    /// One that lends
    Lender {
        /// The master's address
        master: String,
        /// What the segment is called
        name: String,
        /// How many bytes are lent
        lend: u64,
        /// How many bytes are there besides, for transfers without the pool
        raw: u64,
        /// What may carry them
        transport: Transport,
    },
}

const POOL_HELP: &str = "\
A master, as many lenders as there are replicas, and the clients: all on this host, the clients in
this process, with an engine each. In every iteration each client puts a batch of new objects, all
of it in one call, and gets it back; beside each of both the same bytes are moved between the same
processes by transfers of the engine alone. The content is new every time and compared, every byte,
after every get and every raw read; that is not timed, and neither is removing the objects. A first
iteration warms up. The ratio is the median over pairs of neighbouring runs.

After that one thread puts, gets and asks for single objects of 4 KiB: one call after the other, and
with 32 in flight.

Examples:
  Batches of 16, from 64 KiB to 64 MiB:
      kvbench pool --object 64KiB,1MiB,4MiB,64MiB --batch 16
  Two replicas, four clients at once, with checksums from end to end, as figures for programs:
      kvbench pool --replicas 2 --clients 4 --checksum --json pool.json";

/// Settings of `kvbench pool`.
#[derive(Debug, Args)]
#[command(after_long_help = POOL_HELP)]
pub(crate) struct PoolArgs {
    /// Sizes of objects
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',', default_value = "64KiB,1MiB,4MiB")]
    pub(crate) object: Vec<Size>,
    /// Objects in a batch
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(crate::pool::MOST_BATCH)))]
    pub(crate) batch: u32,
    /// Clients at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) clients: u32,
    /// How often each object is put, each time with another lender
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub(crate) replicas: u32,
    /// Have the objects carry checksums, and compare them
    #[arg(long)]
    pub(crate) checksum: bool,
    /// What may carry the bytes
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub(crate) transport: Transport,
    /// Counted iterations
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) iterations: u32,
    /// What the content is made from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Calls for single objects of 4 KiB, of each kind; 0 for none
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) calls: u32,
    /// Write the figures as JSON, `-` for standard output instead of the tables:
    /// {"pool": [..], "calls": [..]}
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<Sink>,
}

const TRANSFER_HELP: &str = "\
Both processes are started here, unless --peer names a kvbench serve on another host. Blocks are
shuffled at either end unless --contiguous says otherwise, filled from the seed before every
iteration and compared, every byte, after it; neither is timed. A first iteration warms up and is
not counted.

With --floor, every iteration is done once more by code with one purpose: the same blocks, memory
and threads over plain TCP connections, or, for --transport local, copied within one process, by as
many threads as the engine's that copy at once: from a mapping, or memory that cannot be mapped by
process_vm_readv or a Unix socket. The strategy that proves best in a short calibration is used and
named. The ratio is the median over pairs of neighbouring runs. Where iperf3 is installed
it says whether that floor deserves the name; between two hosts it is not asked. For --transport rdma
the floor is ib_write_bw or ib_read_bw (package perftest, at both ends): as many messages of a
block's size, from one buffer to another, between the first ports that both ends use.

--pace hot and cold measure latency: the blocks are moved one transfer after another, without a
pause or 10 ms apart, and the floor waits as the engine does.

Sizes are whole numbers with a unit: 64KiB is 65,536 bytes, 64KB is 64,000. A total that is no
multiple of the block size is cut to whole blocks. GB/s are 1e9 bytes a second. Of threads, 2x3
are two with three transfers open each.

Examples:
  Push and pull 256 MiB in scattered blocks of 64 KiB:
      kvbench transfer
  The same for three block sizes, each beside the floor, as figures for programs and as a picture:
      kvbench transfer --block-size 4KiB,64KiB,1MiB --floor --json runs.json --plot runs.svg
  Latency of small pushes, awake and asleep:
      kvbench transfer --op write --pace hot,cold --block-size 4KiB --floor
  From 1 to 65,536 blocks in a transfer:
      kvbench transfer --block-size 4KiB --blocks 1,16,256,4096,65536
  Four threads with eight transfers in flight each, pulling from another host:
      kvbench transfer --peer prefill-0:7100 --op read --threads 4 --in-flight 8";

/// Settings of `kvbench transfer`.
#[derive(Debug, Args)]
#[command(after_long_help = TRANSFER_HELP)]
pub(crate) struct TransferArgs {
    /// Block sizes
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',', default_value = "64KiB")]
    pub(crate) block_size: Vec<Size>,
    /// How much is moved in an iteration [default: 256MiB, or 100 transfers of --blocks for
    /// --pace hot and cold]
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',')]
    pub(crate) total: Vec<Size>,
    /// Instead of a total: how many blocks each transfer has
    #[arg(long, value_name = "N,..", value_delimiter = ',', conflicts_with = "total",
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) blocks: Vec<u32>,
    /// Transfers together, or one after another
    #[arg(long, value_enum, value_name = "PACE,..", value_delimiter = ',', default_values_t = [Pace::Bulk])]
    pub(crate) pace: Vec<Pace>,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
    #[command(flatten)]
    pub(crate) other: OtherArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Settings of `kvbench serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where clients connect: HOST:PORT, port 0 for any; the one that was got is printed. Engine
    /// and floor listen on other ports of the address that a client used. Nobody is asked who they
    /// are: keep it on a trusted network
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: String,
    /// The largest region that a client may ask for [default: four fifths of what is free]
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_memory: Option<Size>,
    /// After how many seconds without an order a client counts as gone, beyond the time that its
    /// memory takes to be touched
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) silence: u64,
}

/// Settings of `kvbench mixed`.
#[derive(Debug, Args)]
pub(crate) struct MixedArgs {
    /// What a small transfer moves, in one block
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub(crate) small: Size,
    /// Small transfers in an iteration, 1 ms apart
    #[arg(long, value_name = "N", default_value_t = 200,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) small_transfers: u32,
    /// What a bulk transfer moves
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub(crate) total: Size,
    /// Blocks of the bulk transfer
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    pub(crate) block_size: Size,
    /// What carries both: the engine's choice, or this and nothing else
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub(crate) transport: Transport,
    /// Push, pull, or both in turn
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [OpChoice::Both])]
    pub(crate) op: Vec<OpChoice>,
    /// Counted iterations
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) iterations: u32,
    /// What blocks are shuffled and filled from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) other: OtherArgs,
    /// Write the figures as JSON, `-` for standard output: {"mixed": [..]}
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<Sink>,
}

const MODEL_HELP: &str = "\
Per token and layer, attention with latent keys and values (MLA) keeps (rope + latent) x bytes, the
same on every rank of tensor parallelism; grouped-query attention keeps 2 x KV heads x head
dimension x bytes, divided among the ranks. A pipeline stage holds the layers rounded up. Pattern
`block` moves all layers of a stage a page at a time, `layer` one layer. The number of I/Os is all
bytes divided by those of one, rounded up: for one rank of tensor parallelism.

A model of your own is a file, TOML, or JSON if its name ends so:
    name = \"my-model\"
    layers = 40
    [attention]
    kind = \"gqa\"       # or kind = \"mla\", rope = 64, latent = 512
    kv_heads = 8
    head_dim = 128

Examples:
  What does a request of 10,000 tokens move?
      kvbench model --model llama3.1-70b --isl 10000 --page 256 --tp 8 --dry-run
  Move it, beside the floor:
      kvbench model --model llama3.1-70b --isl 10000 --page 256 --tp 8 --pattern layer --floor";

/// Settings of `kvbench model`.
#[derive(Debug, Args)]
#[command(after_long_help = MODEL_HELP)]
pub(crate) struct ModelArgs {
    /// One of deepseek-r1, llama3.1-8b, llama3.1-70b, gpt-oss-120b, gpt-oss-20b, qwen3-8b,
    /// qwen3-235b, or a file that describes another
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) model: String,
    /// Tokens of a request
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(crate) isl: u32,
    /// Tokens of a page
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) page: u32,
    /// Ranks of tensor parallelism
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) tp: u32,
    /// Stages of the pipeline
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) pp: u32,
    /// What one I/O moves
    #[arg(long, value_enum, default_value_t = PagePattern::Block)]
    pub(crate) pattern: PagePattern,
    /// What keys and values are kept as
    #[arg(long, value_enum, default_value_t = Dtype::Bf16)]
    pub(crate) dtype: Dtype,
    /// Requests that are moved at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) requests: u32,
    /// Say what would be moved, and move nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
    #[command(flatten)]
    pub(crate) other: OtherArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

const MATRIX_HELP: &str = "\
A file is a square matrix: a line for each rank that sends, a cell for each that receives, apart by
blanks. A cell is a number of bytes, with K, M or G for 2^10, 2^20 or 2^30; 0 sends nothing. Lines
that start with # are comments. Each rank is a process of this host.

With several files, each pattern is moved alone and then all at once: its latency is that of its
slowest rank. Every byte is checked.

Example:
    # prefill ranks 0 and 1 push to decode ranks 2 and 3
    0 0 64M 0
    0 0 0 64M
    0 0 0 0
    0 0 0 0";

/// Settings of `kvbench matrix`.
#[derive(Debug, Args)]
#[command(after_long_help = MATRIX_HELP)]
pub(crate) struct MatrixArgs {
    /// Matrices of bytes between ranks, one a file
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Counted iterations
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) iterations: u32,
    /// What the bytes are made from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// How many seconds a rank may be silent, beyond the time that its work takes
    #[arg(long, value_name = "SECONDS", default_value_t = crate::pair::PATIENCE_S,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) patience: u64,
    /// Write the figures as JSON, `-` for standard output: {"patterns": [..]}
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<Sink>,
}

/// Settings of `kvbench ways`.
#[derive(Debug, Args)]
pub(crate) struct WaysArgs {
    /// Block sizes
    #[arg(
        long,
        value_name = "SIZE,..",
        value_delimiter = ',',
        default_value = "1KiB,2KiB,4KiB,8KiB,16KiB,64KiB,1MiB"
    )]
    pub(crate) block_size: Vec<Size>,
    /// How much is copied in an iteration
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub(crate) total: Size,
    /// Threads that copy; a socket has as many at either end
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: u32,
    /// Iterations of each
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) iterations: u32,
    /// What blocks are shuffled and filled from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

const MASTER_HELP: &str = "\
The master is a process of its own, which is told of one owner that has all the keys, as after a
restart: that is the recovery. Then clients look up keys that are there, in batches, and every answer
is checked. Keys are as vLLM's store connector makes them: what is the same for a rank, and 64 digits.
Processor time and memory are the master's alone. The last step looks up the same batches without a
server, on one thread.

Example:
  One worker, one connection with eight calls in flight:
      kvbench master --json master.json";

/// Settings of `kvbench master`.
#[derive(Debug, Args)]
#[command(after_long_help = MASTER_HELP)]
pub(crate) struct MasterArgs {
    /// Objects in the pool
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    pub(crate) keys: u64,
    /// Length of a key
    #[arg(long, value_name = "N", default_value_t = 118, value_parser = clap::value_parser!(u16).range(110..=1024))]
    pub(crate) key_bytes: u16,
    /// Keys of a call
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) batch: u16,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) clients: u32,
    /// Calls in flight on each
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) in_flight: u32,
    /// Threads of the master for clients
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) workers: u16,
    /// How long is looked
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
    /// Write the figures as JSON, `-` for standard output instead of the table: {"master": [..]}
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<Sink>,
}

/// Settings of `kvbench plot`.
#[derive(Debug, Args)]
pub(crate) struct PlotArgs {
    /// What `--json` wrote: {"runs": [..]}. Runs of other systems are drawn beside those of
    /// kvferry when their `system` says whose they are
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// The picture
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) output: PathBuf,
}

/// Settings of `kvbench quickstart`.
#[derive(Debug, Args)]
pub(crate) struct QuickstartArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
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
