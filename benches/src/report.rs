//! The figures, for programs.

use serde::Serialize;

use crate::cli::{Memory, Op};
use crate::pace::Pace;

/// All combinations of an invocation.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) runs: Vec<Run>,
}

/// One combination. Rates are 1e9 bytes a second, medians over the iterations; what was not
/// measured is null.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    /// Whose figures these are, beside those of others.
    pub(crate) system: &'static str,
    /// What carried the blocks.
    pub(crate) transport: &'static str,
    /// Lanes that were open.
    pub(crate) lanes: usize,
    /// What the blocks lay in.
    pub(crate) memory: Memory,
    pub(crate) op: Op,
    pub(crate) pace: Pace,
    pub(crate) block_bytes: u64,
    /// What an iteration moved.
    pub(crate) total_bytes: u64,
    /// Transfers that an iteration consists of.
    pub(crate) transfers: usize,
    /// Blocks of the largest of them.
    pub(crate) transfer_blocks: u64,
    pub(crate) threads: u32,
    pub(crate) in_flight: u32,
    pub(crate) contiguous: bool,
    pub(crate) iterations: u32,
    pub(crate) seed: u64,
    /// Every byte of every iteration, the floor's too.
    pub(crate) verified: bool,
    /// Without the pauses between transfers. The median of the iterations, and their range.
    pub(crate) gbps: f64,
    pub(crate) gbps_min: f64,
    pub(crate) gbps_max: f64,
    /// Of a transfer: from submission until its caller knows of its end.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    /// Of that, until the call that submits returned: the median.
    pub(crate) post_us: f64,
    /// What part of a transfer's time it took to resolve, check and plan it, and to write the requests
    /// for its slices: the median of the iterations, of each its transfer with the largest.
    pub(crate) planning_share: f64,
    /// An iteration's time divided by its blocks: what a block costs among many.
    pub(crate) block_us: f64,
    /// Of both processes, and of each.
    pub(crate) cpu_s_per_gib: f64,
    pub(crate) initiator_cpu_s_per_gib: f64,
    pub(crate) target_cpu_s_per_gib: f64,
    /// After coalescing, in an iteration.
    pub(crate) descriptors: u64,
    /// Frames that carried an iteration.
    pub(crate) slices: u64,
    pub(crate) page_kib: usize,
    pub(crate) floor_gbps: Option<f64>,
    pub(crate) floor_gbps_min: Option<f64>,
    pub(crate) floor_gbps_max: Option<f64>,
    /// How many times as fast as the floor: the median of the pairs' ratios, and their range.
    pub(crate) floor_ratio: Option<f64>,
    pub(crate) floor_ratio_min: Option<f64>,
    pub(crate) floor_ratio_max: Option<f64>,
    /// Of the floor's transfers, where they are moved one after another.
    pub(crate) floor_p50_us: Option<f64>,
    pub(crate) floor_p99_us: Option<f64>,
    pub(crate) floor_p999_us: Option<f64>,
    /// How many times as long as the floor's: the median of the pairs' ratios, and their range.
    pub(crate) p50_of_floor: Option<f64>,
    pub(crate) p50_of_floor_min: Option<f64>,
    pub(crate) p50_of_floor_max: Option<f64>,
    /// The same of the 99th percentiles of all transfers.
    pub(crate) p99_of_floor: Option<f64>,
    pub(crate) floor_strategy: Option<String>,
    pub(crate) floor_cpu_s_per_gib: Option<f64>,
    pub(crate) floor_initiator_cpu_s_per_gib: Option<f64>,
    pub(crate) floor_target_cpu_s_per_gib: Option<f64>,
    /// The better of one and two streams; null, too, where no stream is measured: totals below
    /// 1 MiB, and transfers one after another.
    pub(crate) iperf3_gbps: Option<f64>,
    /// Whether the floor reaches 0.95 of that.
    pub(crate) floor_counts: Option<bool>,
    /// Of both ends' adapters, in an iteration of its own, for 2^30 bytes: requests, calls that post
    /// them, completions fetched, and how often somebody was to be woken by the next one.
    pub(crate) rdma_requests_per_gib: Option<f64>,
    pub(crate) rdma_doorbells_per_gib: Option<f64>,
    pub(crate) rdma_completions_per_gib: Option<f64>,
    pub(crate) rdma_armed_per_gib: Option<f64>,
    /// Of both processes, in the same iteration.
    pub(crate) system_calls_per_gib: Option<f64>,
    /// Those that were made most often, for 2^30 bytes, or why they are not counted.
    pub(crate) system_calls: Option<String>,
}

/// Whose figures this program measures.
pub(crate) const SYSTEM: &str = "kvferry";
