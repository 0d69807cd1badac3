//! `kvctl doctor`: what would break or slow transfers on this host.

mod capability;
mod cuda;
mod finding;
mod library;
mod memory;
mod ports;
mod process;
mod rdma;

use clap::Args;
use kvferry_engine::topology::{Topology, WishError, Wishes};
use kvferry_transport::rdma::device::{HostFacts, HostRoot};
use serde::Serialize;

use crate::cli::{Environment, Machine, Outcome};
use crate::page::hanging;
use finding::{Finding, Level};

/// Find what would break or slow transfers on this host, and how to mend it.
///
/// Looks at RDMA devices and the library that drives them, the limit on locked memory, huge
/// pages, ports that others may be given first, the ptrace scope and the directory of sockets
/// that transfers within the host need, and CUDA. Every RDMA adapter that transfers would use
/// writes a page to itself and reads it back. Nothing is changed, and nothing is sent to others.
///
/// A FAILURE breaks transfers, a warning slows them or breaks some; what cannot be checked from
/// here is said. Ends with status 1 where there is a failure.
#[derive(Clone, Debug, Default, Args)]
pub struct Arguments {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,

    /// A port that a service on this host shall listen on; may be given several times. The
    /// bootstrap server's (VLLM_MOONCAKE_BOOTSTRAP_PORT, or 8998) is always looked at.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Vec<u16>,

    /// Transfers shall use RDMA: that they cannot is a failure.
    #[arg(long)]
    pub require_rdma: bool,

    /// Which machine to look at.
    #[command(flatten)]
    pub machine: Machine,
}

/// What checks look at.
#[derive(Debug)]
struct Host<'a> {
    root: HostRoot,
    environment: &'a Environment,
    facts: HostFacts,
    topology: Result<Topology, WishError>,
}

#[derive(Serialize)]
struct Report<'a> {
    findings: &'a [Finding],
    failures: usize,
    warnings: usize,
    unchecked: usize,
}

/// Carries out the command.
///
/// # Errors
/// Where the report cannot be written as JSON.
pub fn run(arguments: &Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let root = arguments.machine.root();
    let facts = HostFacts::read(&root);
    let wishes = Wishes::from_environment(|name| environment.get(name));
    let topology = wishes.map(|wishes| Topology::choose(&facts, &wishes));
    let host = Host { root, environment, facts, topology };
    let findings: Vec<Finding> = [
        rdma::check(&host, arguments.require_rdma),
        memory::check_locked(&host),
        memory::check_huge_pages(&host),
        ports::check(&host, &arguments.port),
        process::check_ptrace(&host),
        process::check_run_directory(&host),
        cuda::check(&host),
    ]
    .into_iter()
    .flatten()
    .collect();
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let report = Report {
        failures: count(Level::Failure),
        warnings: count(Level::Warning),
        unchecked: count(Level::Unchecked),
        findings: &findings,
    };
    let text = if arguments.json {
        format!("{}\n", serde_json::to_string_pretty(&report)?)
    } else {
        render(&report)
    };
    Ok(Outcome { text, success: report.failures == 0 })
}

impl Host<'_> {
    /// Whether there is an RDMA port that transfers could use.
    fn has_usable_rdma(&self) -> bool {
        let ports = self.topology.as_ref().map(|topology| &topology.ports);
        ports.is_ok_and(|ports| ports.iter().any(|port| port.verdict.is_ok()))
    }
}

fn render(report: &Report<'_>) -> String {
    let mut text = String::new();
    let mut last = "";
    for Finding { area, level, what, fix } in report.findings {
        let shown = if *area == last { "" } else { area };
        last = area;
        text.push_str(&hanging(&format!("{shown:<15}{:<11}", level.as_str()), what));
        if let Some(fix) = fix {
            text.push_str(&hanging(&format!("{:<26}fix: ", ""), fix));
        }
    }
    let Report { failures, warnings, unchecked, .. } = report;
    let counted = |count: &usize, one: &str, many: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    };
    let [failures, warnings, unchecked] = [
        counted(failures, "failure", "failures"),
        counted(warnings, "warning", "warnings"),
        counted(unchecked, "thing not checked", "things not checked"),
    ];
    format!("{text}\n{failures}, {warnings}, {unchecked}\n")
}
