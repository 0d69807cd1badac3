//! From runs to panels of lines.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::cli::{Memory, Op};
use crate::pace::Pace;
use crate::report::Run;
use crate::table::size;

/// What is drawn of a run. Other systems' runs have the same names, and may lack what is optional.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Drawn {
    system: String,
    #[serde(default)]
    transport: Option<String>,
    #[serde(default)]
    memory: Option<Memory>,
    op: Op,
    pace: Pace,
    block_bytes: u64,
    total_bytes: u64,
    #[serde(default)]
    transfer_blocks: Option<u64>,
    #[serde(default)]
    threads: Option<u32>,
    #[serde(default)]
    in_flight: Option<u32>,
    #[serde(default)]
    contiguous: bool,
    gbps: f64,
    #[serde(default)]
    gbps_min: Option<f64>,
    #[serde(default)]
    gbps_max: Option<f64>,
    #[serde(default)]
    p50_us: Option<f64>,
    #[serde(default)]
    p99_us: Option<f64>,
    #[serde(default)]
    floor_gbps: Option<f64>,
    #[serde(default)]
    floor_gbps_min: Option<f64>,
    #[serde(default)]
    floor_gbps_max: Option<f64>,
    #[serde(default)]
    floor_p50_us: Option<f64>,
    #[serde(default)]
    floor_p99_us: Option<f64>,
}

impl From<&Run> for Drawn {
    fn from(run: &Run) -> Self {
        Self {
            system: run.system.into(),
            transport: Some(run.transport.into()),
            memory: Some(run.memory),
            op: run.op,
            pace: run.pace,
            block_bytes: run.block_bytes,
            total_bytes: run.total_bytes,
            transfer_blocks: Some(run.transfer_blocks),
            threads: Some(run.threads),
            in_flight: Some(run.in_flight),
            contiguous: run.contiguous,
            gbps: run.gbps,
            gbps_min: Some(run.gbps_min),
            gbps_max: Some(run.gbps_max),
            p50_us: Some(run.p50_us),
            p99_us: Some(run.p99_us),
            floor_gbps: run.floor_gbps,
            floor_gbps_min: run.floor_gbps_min,
            floor_gbps_max: run.floor_gbps_max,
            floor_p50_us: run.floor_p50_us,
            floor_p99_us: run.floor_p99_us,
        }
    }
}

/// A value and its range: positive, finite, the value within the range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Point {
    /// `None` of what has no place on a logarithmic axis.
    fn new(x: f64, y: f64, low: Option<f64>, high: Option<f64>) -> Option<Self> {
        let (low, high) = (low.unwrap_or(y).min(y), high.unwrap_or(y).max(y));
        let drawable = |value: f64| value.is_finite() && value > 0.0;
        [x, y, low, high].into_iter().all(drawable).then_some(Self { x, y, low, high })
    }
}

/// One system under one load.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    pub(super) name: String,
    /// The floor is drawn dashed, beside the line that it is the floor of.
    pub(super) is_floor: bool,
    /// By rising x.
    pub(super) points: Vec<Point>,
}

/// What the height of a panel means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Height {
    /// GB/s; the range is that of the iterations.
    Rate,
    /// Microseconds; from the median to the 99th percentile.
    Latency,
}

impl Height {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Rate => "throughput [GB/s], median and range",
            Self::Latency => "latency, p50 up to p99 [µs]",
        }
    }
}

/// One diagram.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) height: Height,
    pub(super) lines: Vec<Line>,
}

/// One panel for each operation and pace, in the order in which they were measured.
pub(super) fn panels(runs: &[Drawn]) -> Vec<Panel> {
    let mut kinds: Vec<(Op, Pace)> = Vec::new();
    for run in runs {
        if !kinds.contains(&(run.op, run.pace)) {
            kinds.push((run.op, run.pace));
        }
    }
    kinds
        .into_iter()
        .map(|(op, pace)| panel(op, pace, runs))
        .filter(|panel| !panel.lines.is_empty())
        .collect()
}

fn panel(op: Op, pace: Pace, runs: &[Drawn]) -> Panel {
    let runs: Vec<&Drawn> = runs.iter().filter(|run| (run.op, run.pace) == (op, pace)).collect();
    let (height, way) = match pace {
        Pace::Bulk => (Height::Rate, "all blocks together"),
        Pace::Hot => (Height::Latency, "one transfer after another"),
        Pace::Cold => (Height::Latency, "one transfer every 10 ms"),
    };
    let names = Names::of(&runs);
    let mut lines: Vec<Line> = Vec::new();
    for run in runs {
        let name = names.name(run);
        add(&mut lines, run.system.clone() + &name, false, run.point(height));
        add(&mut lines, format!("floor{name}"), true, run.floor_point(height));
    }
    for line in &mut lines {
        line.points.sort_by(|one, other| one.x.total_cmp(&other.x));
    }
    Panel { title: format!("{op}, {way}"), height, lines }
}

fn add(lines: &mut Vec<Line>, name: String, is_floor: bool, point: Option<Point>) {
    let Some(point) = point else { return };
    match lines.iter_mut().find(|line| line.name == name) {
        Some(line) => line.points.push(point),
        None => lines.push(Line { name, is_floor, points: vec![point] }),
    }
}

/// What lines are told apart by: only what differs is in their names.
struct Names {
    transports: bool,
    memories: bool,
    amounts: bool,
    loads: bool,
    orders: bool,
}

impl Names {
    fn of(runs: &[&Drawn]) -> Self {
        fn differ<T: Ord>(values: impl Iterator<Item = T>) -> bool {
            values.collect::<BTreeSet<T>>().len() > 1
        }
        Self {
            transports: differ(runs.iter().filter_map(|run| run.transport.as_ref())),
            memories: differ(runs.iter().filter_map(|run| run.memory.map(|it| it.to_string()))),
            amounts: differ(runs.iter().map(|run| run.amount())),
            loads: differ(runs.iter().filter_map(|run| run.threads.zip(run.in_flight))),
            orders: differ(runs.iter().map(|run| run.contiguous)),
        }
    }

    fn name(&self, run: &Drawn) -> String {
        let mut name = String::new();
        if let (true, Some(transport)) = (self.transports, &run.transport) {
            name.push_str(&format!(", {transport}"));
        }
        if let (true, Some(memory)) = (self.memories, run.memory) {
            name.push_str(&format!(", {memory}"));
        }
        if self.amounts {
            name.push_str(&format!(", {}", run.amount()));
        }
        if let (true, Some(threads), Some(in_flight)) = (self.loads, run.threads, run.in_flight) {
            name.push_str(&format!(", {threads}×{in_flight}"));
        }
        if self.orders && run.contiguous {
            name.push_str(", contiguous");
        }
        name
    }
}

impl Drawn {
    /// How much a transfer moves, to within a block: totals are cut to whole blocks.
    fn amount(&self) -> String {
        match (self.pace, self.transfer_blocks) {
            (Pace::Hot | Pace::Cold, Some(1)) => "1 block".into(),
            (Pace::Hot | Pace::Cold, Some(blocks)) => format!("{blocks} blocks"),
            _ => size(self.total_bytes),
        }
    }

    fn point(&self, height: Height) -> Option<Point> {
        let x = self.block_bytes as f64;
        match height {
            Height::Rate => Point::new(x, self.gbps, self.gbps_min, self.gbps_max),
            Height::Latency => Point::new(x, self.p50_us?, self.p50_us, self.p99_us),
        }
    }

    fn floor_point(&self, height: Height) -> Option<Point> {
        let x = self.block_bytes as f64;
        match height {
            Height::Rate => {
                Point::new(x, self.floor_gbps?, self.floor_gbps_min, self.floor_gbps_max)
            }
            Height::Latency => {
                Point::new(x, self.floor_p50_us?, self.floor_p50_us, self.floor_p99_us)
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn run(more: &str) -> Drawn {
        let text = format!(
            r#"{{"system":"kvferry","op":"write","pace":"bulk","block_bytes":4096,
                "total_bytes":67108864,"gbps":3.5{more}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn each_operation_and_pace_is_a_panel_and_each_system_a_line() {
        let mut faster = run(r#","floor_gbps":4.0,"gbps_min":3.0,"gbps_max":3.9"#);
        let other = Drawn { system: "mooncake".into(), ..run("") };
        let read = Drawn { op: Op::Read, ..run("") };
        let hot = Drawn { pace: Pace::Hot, p50_us: Some(20.0), p99_us: Some(40.0), ..run("") };
        let first = faster.clone();
        faster.block_bytes = 1024;
        let panels = panels(&[first, other, read, hot, faster]);
        let heights: Vec<Height> = panels.iter().map(|panel| panel.height).collect();
        assert_eq!(heights, [Height::Rate, Height::Rate, Height::Latency]);
        let names: Vec<&str> = panels[0].lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["kvferry", "floor", "mooncake"]);
        // In the order of their sizes, with their ranges.
        let sizes: Vec<f64> = panels[0].lines[0].points.iter().map(|point| point.x).collect();
        assert_eq!(sizes, [1024.0, 4096.0]);
        assert_eq!(panels[0].lines[0].points[0].low, 3.0);
        let latency = panels[2].lines[0].points[0];
        assert_eq!((latency.y, latency.low, latency.high), (20.0, 20.0, 40.0));
    }

    #[test]
    fn what_goes_by_another_way_or_lies_in_other_memory_is_another_line() {
        let of = |transport: &str, memory| Drawn {
            transport: Some(transport.into()),
            memory: Some(memory),
            ..run("")
        };
        let by_tcp = of("tcp", Memory::Shared);
        let (mapped, foreign) = (of("local", Memory::Shared), of("local", Memory::Foreign));
        let panels = panels(&[by_tcp, mapped, foreign]);
        let names: Vec<&str> = panels[0].lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(
            names,
            ["kvferry, tcp, shared", "kvferry, local, shared", "kvferry, local, foreign"]
        );
    }

    #[test]
    fn only_what_differs_is_in_the_names() {
        let large = Drawn { total_bytes: 1 << 28, threads: Some(2), in_flight: Some(3), ..run("") };
        let small = Drawn { threads: Some(1), in_flight: Some(1), ..run("") };
        // One that does not say it does not differ.
        let panel = panels(&[large.clone(), Drawn { system: "other".into(), ..run("") }]);
        assert!(panel[0].lines[0].name == "kvferry, 256MiB", "{panel:?}");
        let panels = panels(&[large.clone(), small, Drawn { contiguous: true, ..large }]);
        let names: Vec<&str> = panels[0].lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(
            names,
            ["kvferry, 256MiB, 2×3", "kvferry, 64MiB, 1×1", "kvferry, 256MiB, 2×3, contiguous"]
        );
    }

    #[test]
    fn what_has_no_place_on_a_logarithmic_axis_is_left_out() {
        let nothing = Drawn { gbps: 0.0, ..run("") };
        let infinite = Drawn { gbps: f64::INFINITY, ..run("") };
        assert!(panels(&[nothing, infinite]).is_empty());
    }
}
