//! The program: from its arguments to its exit code.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::flags::{Flags, translate};
use crate::server::{Drained, Master};

/// The exit code where the deadline passed before all that was under way had ended.
const CUT: u8 = 3;

/// How often a line of figures goes to the log.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Serves a pool until a signal ends it. The first argument is the program's name; the log goes to
/// standard error, as much of it as `RUST_LOG` says.
///
/// # Errors
/// Flags that are none, ports that are taken, and what else keeps it from starting.
pub fn run(arguments: Vec<String>) -> anyhow::Result<ExitCode> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let flags = Flags::parse_from(translate(arguments)?);
    flags.check()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Before anything is bound: a signal that comes early is heard, too.
    let mut signals = runtime.block_on(async {
        let terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
        anyhow::Ok((terminate, interrupt))
    })?;
    let master = Master::start(flags.settings(), &flags.listen(), flags.workers())?;
    runtime.block_on(async {
        let mut reports = tokio::time::interval(REPORT_EVERY);
        loop {
            tokio::select! {
                _ = signals.0.recv() => return,
                _ = signals.1.recv() => return,
                _ = reports.tick() => {
                    if flags.enable_metric_reporting {
                        tracing::info!("{}", master.summary());
                    }
                }
            }
        }
    });
    Ok(match master.drain(Duration::from_secs(flags.drain_timeout_sec)) {
        Drained::Clean => {
            tracing::info!("ended: nothing was under way any more");
            ExitCode::SUCCESS
        }
        Drained::Cut { writing } => {
            tracing::warn!(writing, "ended by the deadline, with puts under way");
            ExitCode::from(CUT)
        }
    })
}
