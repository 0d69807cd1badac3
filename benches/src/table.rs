//! The figures, for people.

use std::fmt::Write as _;
use std::num::NonZeroU64;

use crate::report::Run;
use kvferry_engine::size::Size;

/// Columns of text, as wide as they need to be: some aligned to the left, the ones behind them to
/// the right.
#[derive(Debug)]
pub(crate) struct Table {
    left: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings, the first `left` columns aligned to the left.
    pub(crate) fn new(headings: &[&str], left: usize) -> Self {
        Self { left, rows: vec![headings.iter().map(|&heading| heading.to_owned()).collect()] }
    }

    /// Adds a row, with a cell for each heading.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The lines.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                // Writing to a string does not fail.
                let _ = if column < self.left {
                    write!(line, "{cell:<width$}  ")
                } else {
                    write!(line, "{cell:>width$}  ")
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// How much was moved in a time, one line a run; the floor's columns where it was measured.
pub(crate) fn of_rates(runs: &[Run]) -> String {
    let with_floor = runs.iter().any(|run| run.floor_gbps.is_some());
    let mut headings = vec!["op", "pace", "block", "total", "threads", "GB/s"];
    if with_floor {
        headings.extend(["floor GB/s", "of floor (range)"]);
    }
    headings.push("CPU s/GiB (here+there)");
    if with_floor {
        headings.push("floor's");
    }
    let mut table = Table::new(&headings, 2);
    for run in runs {
        let mut cells = vec![
            run.op.to_string(),
            run.pace.to_string(),
            size(run.block_bytes),
            size(run.total_bytes),
            format!("{}x{}", run.threads, run.in_flight),
            rate(run.gbps),
        ];
        if with_floor {
            cells.push(run.floor_gbps.map(rate).unwrap_or_default());
            cells.push(ratio(run).unwrap_or_default());
        }
        let (here, there) = (run.initiator_cpu_s_per_gib, run.target_cpu_s_per_gib);
        cells.push(format!("{} ({}+{})", cpu(run.cpu_s_per_gib), cpu(here), cpu(there)));
        if with_floor {
            cells.push(run.floor_cpu_s_per_gib.map(cpu).unwrap_or_default());
        }
        table.row(cells);
    }
    table.render()
}

/// How long transfers took, one line a run; the floor's columns where its transfers were timed.
pub(crate) fn of_latencies(runs: &[Run]) -> String {
    let with_floor = runs.iter().any(|run| run.floor_p50_us.is_some());
    let mut headings =
        vec!["op", "pace", "block", "blocks", "post", "p50", "p99", "p99.9", "a block"];
    if with_floor {
        headings.extend(["floor p50", "p50 x (range)", "p99 x"]);
    } else {
        headings.extend(["descriptors", "planned", "pages"]);
    }
    let mut table = Table::new(&headings, 2);
    for run in runs {
        let mut cells = vec![
            run.op.to_string(),
            run.pace.to_string(),
            size(run.block_bytes),
            run.transfer_blocks.to_string(),
        ];
        let times = [run.post_us, run.p50_us, run.p99_us, run.p999_us, run.block_us];
        cells.extend(times.map(latency));
        if with_floor {
            cells.push(run.floor_p50_us.map(latency).unwrap_or_default());
            cells.push(as_floor(run).unwrap_or_default());
            cells.push(run.p99_of_floor.map(|x| format!("{x:.2}")).unwrap_or_default());
        } else {
            cells.push(run.descriptors.to_string());
            cells.push(format!("{:.1} %", run.planning_share * 100.0));
            cells.push(size(run.page_kib as u64 * 1024));
        }
        table.row(cells);
    }
    let planned = if with_floor { "" } else { "; planned: the share of planning and encoding" };
    format!("\nOf a transfer, and of a block among all{planned}:\n{}", table.render())
}

/// What the floors did, and what they are worth; nothing where there are none.
pub(crate) fn of_floors(runs: &[Run]) -> String {
    let mut table = Table::new(&["floor of", "strategy", "of iperf3", "counts"], 2);
    for run in runs {
        let (Some(strategy), Some(gbps)) = (&run.floor_strategy, run.floor_gbps) else { continue };
        let (block, total) = (size(run.block_bytes), size(run.total_bytes));
        let share = run.iperf3_gbps.map(|iperf3| format!("{:.2}", gbps / iperf3));
        let counts = match run.floor_counts {
            Some(true) => "yes",
            Some(false) => "no",
            None => "unchecked",
        };
        let (op, pace, threads) = (run.op, run.pace, run.threads);
        table.row(vec![
            format!("{op} {pace} {block} of {total}, {threads}x"),
            strategy.clone(),
            share.unwrap_or_default(),
            counts.into(),
        ]);
    }
    if table.rows.len() > 1 { format!("\n{}", table.render()) } else { String::new() }
}

/// What adapters and the kernel were asked to do for 2^30 bytes; nothing where it was not counted.
pub(crate) fn of_counts(runs: &[Run]) -> String {
    let mut table = Table::new(
        &["a GiB of", "requests", "doorbells", "completions", "armed", "system calls"],
        1,
    );
    let mut calls = String::new();
    for run in runs {
        let Some(named) = &run.system_calls else { continue };
        let what = format!("{} {}", run.op, size(run.block_bytes));
        // Writing to a string does not fail.
        let _ = writeln!(calls, "{what}: {named}");
        let counts = [
            run.rdma_requests_per_gib,
            run.rdma_doorbells_per_gib,
            run.rdma_completions_per_gib,
            run.rdma_armed_per_gib,
            run.system_calls_per_gib,
        ];
        let cell = |count: Option<f64>| count.map(|count| format!("{count:.0}"));
        let cells = counts.map(|count| cell(count).unwrap_or_default());
        table.row([what].into_iter().chain(cells).collect());
    }
    if calls.is_empty() { calls } else { format!("\n{}\n{calls}", table.render()) }
}

fn ratio(run: &Run) -> Option<String> {
    let (median, smallest, largest) =
        (run.floor_ratio?, run.floor_ratio_min?, run.floor_ratio_max?);
    let [median, smallest, largest] = [median, smallest, largest].map(|ratio| ratio * 100.0);
    Some(format!("{median:.0} % ({smallest:.0}-{largest:.0})"))
}

fn as_floor(run: &Run) -> Option<String> {
    let (median, smallest, largest) =
        (run.p50_of_floor?, run.p50_of_floor_min?, run.p50_of_floor_max?);
    Some(format!("{median:.2} ({smallest:.1}-{largest:.1})"))
}

pub(crate) fn size(bytes: u64) -> String {
    NonZeroU64::new(bytes).map_or_else(|| "0".into(), |bytes| Size::from(bytes).to_string())
}

/// GB/s, with the digits that mean something.
pub(crate) fn rate(gbps: f64) -> String {
    if gbps < 0.1 { format!("{gbps:.4}") } else { format!("{gbps:.2}") }
}

/// A time, to three digits: from one run to the next it differs by more than a fourth would say.
pub(crate) fn latency(micros: f64) -> String {
    let (time, unit) = match micros {
        // What rounds to a thousand is one of the next unit.
        ..999.5 => (micros, "us"),
        ..999_500.0 => (micros / 1e3, "ms"),
        _ => (micros / 1e6, "s"),
    };
    match time {
        ..9.995 => format!("{time:.2} {unit}"),
        ..99.95 => format!("{time:.1} {unit}"),
        _ => format!("{time:.0} {unit}"),
    }
}

fn cpu(seconds: f64) -> String {
    format!("{seconds:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Memory, Op};
    use crate::pace::Pace;
    use crate::report::SYSTEM;

    /// What a terminal and the documentation have room for.
    const MOST_COLUMNS: usize = 110;

    /// Figures as long as they come: a million blocks, milliseconds, ratios of three digits.
    fn long(with_floor: bool) -> Run {
        let floor = |figure: f64| with_floor.then_some(figure);
        Run {
            system: SYSTEM,
            transport: "tcp",
            lanes: 2,
            op: Op::Write,
            pace: Pace::Bulk,
            block_bytes: 64 << 10,
            total_bytes: 256 << 20,
            transfers: 64,
            transfer_blocks: 1_000_000,
            threads: 16,
            in_flight: 64,
            contiguous: false,
            memory: Memory::Shared,
            iterations: 9,
            seed: 1,
            verified: true,
            gbps: 12.34,
            gbps_min: 5.67,
            gbps_max: 23.45,
            p50_us: 123_450.0,
            p99_us: 234_560.0,
            p999_us: 345_670.0,
            post_us: 999_990.0,
            planning_share: 0.1234,
            block_us: 999.9,
            cpu_s_per_gib: 1.234,
            initiator_cpu_s_per_gib: 0.617,
            target_cpu_s_per_gib: 0.617,
            descriptors: 1_000_000,
            slices: 1024,
            page_kib: 2048,
            floor_gbps: floor(23.45),
            floor_gbps_min: floor(12.34),
            floor_gbps_max: floor(34.56),
            floor_ratio: floor(1.084),
            floor_ratio_min: floor(0.501),
            floor_ratio_max: floor(1.842),
            floor_p50_us: floor(123_450.0),
            floor_p99_us: floor(234_560.0),
            floor_p999_us: floor(345_670.0),
            p50_of_floor: floor(1.23),
            p50_of_floor_min: floor(0.98),
            p50_of_floor_max: floor(12.34),
            p99_of_floor: floor(12.34),
            floor_strategy: with_floor.then(|| "2 connections a thread, receiver polls".into()),
            floor_cpu_s_per_gib: floor(1.234),
            floor_initiator_cpu_s_per_gib: floor(0.617),
            floor_target_cpu_s_per_gib: floor(0.617),
            iperf3_gbps: floor(23.45),
            floor_counts: with_floor.then_some(true),
            rdma_requests_per_gib: floor(1_048_576.0),
            rdma_doorbells_per_gib: floor(1_048_576.0),
            rdma_completions_per_gib: floor(1_048_576.0),
            rdma_armed_per_gib: floor(1_048_576.0),
            system_calls_per_gib: floor(12_345_678.0),
            system_calls: with_floor.then(|| "epoll_wait 1234567, sched_yield 1234567".into()),
        }
    }

    #[test]
    fn tables_of_long_figures_are_no_wider_than_a_page() {
        for with_floor in [false, true] {
            let runs = [long(with_floor)];
            for text in [of_rates(&runs), of_latencies(&runs), of_floors(&runs), of_counts(&runs)] {
                let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
                assert!(widest <= MOST_COLUMNS, "{widest} columns:\n{text}");
            }
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["op", "GB/s"], 1);
        table.row(vec!["write".into(), "5".into()]);
        table.row(vec!["read".into(), "12.345".into()]);
        assert_eq!(table.render(), "op       GB/s\nwrite       5\nread   12.345\n");
    }

    #[test]
    fn figures_have_units_that_fit_them() {
        assert_eq!(latency(12.34), "12.3 us");
        assert_eq!(latency(123.45), "123 us");
        assert_eq!(latency(999.9), "1.00 ms");
        assert_eq!(latency(53_210.0), "53.2 ms");
        assert_eq!(latency(999_990.0), "1.00 s");
        assert_eq!(rate(5.123), "5.12");
        assert_eq!(rate(0.0123), "0.0123");
        assert_eq!(size(65_536), "64KiB");
    }
}
