//! The figures, for programs.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

/// All combinations of an invocation.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) runs: Vec<Run>,
}

/// One combination. Rates are 1e9 bytes a second, medians over the iterations; what was not
/// measured is null.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    /// What carried the blocks.
    pub(crate) transport: &'static str,
    pub(crate) op: crate::cli::Op,
    pub(crate) block_bytes: u64,
    /// What an iteration moved.
    pub(crate) total_bytes: u64,
    pub(crate) gbps: f64,
    /// Of a transfer: from submission until its caller knows of its end.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Of both processes, and of each.
    pub(crate) cpu_s_per_gib: f64,
    pub(crate) initiator_cpu_s_per_gib: f64,
    pub(crate) target_cpu_s_per_gib: f64,
    pub(crate) floor_gbps: Option<f64>,
    /// The median of the pairs' ratios, and their range.
    pub(crate) floor_ratio: Option<f64>,
    pub(crate) floor_ratio_min: Option<f64>,
    pub(crate) floor_ratio_max: Option<f64>,
    pub(crate) floor_strategy: Option<String>,
    pub(crate) floor_cpu_s_per_gib: Option<f64>,
    /// The better of one and two streams; null, too, for totals below 1 MiB, which are no stream.
    pub(crate) iperf3_gbps: Option<f64>,
    /// Whether the floor reaches 0.95 of that.
    pub(crate) floor_counts: Option<bool>,
    pub(crate) page_kib: usize,
    /// Every byte of every iteration, the floor's too.
    pub(crate) verified: bool,
    pub(crate) iterations: u32,
    pub(crate) threads: u32,
    /// Transfers that an iteration consists of.
    pub(crate) transfers: usize,
    pub(crate) contiguous: bool,
    /// After coalescing, in an iteration.
    pub(crate) descriptors: u64,
    /// Frames that carried an iteration.
    pub(crate) slices: u64,
    pub(crate) seed: u64,
}

impl Report {
    /// Writes it as JSON.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let written = || -> anyhow::Result<()> {
            let mut file = BufWriter::new(File::create(path)?);
            serde_json::to_writer_pretty(&mut file, self)?;
            file.write_all(b"\n")?;
            file.flush()?;
            Ok(())
        };
        written().with_context(|| format!("writing the figures to {}", path.display()))
    }
}
