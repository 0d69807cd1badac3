//! `kv-master`: the master of a pool, as a process.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use kv_master::flags::{Flags, translate};
use kv_master::server::{Drained, Master};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// The exit code where the deadline passed before all that was under way had ended.
const CUT: u8 = 3;

/// How often a line of figures goes to the log.
const REPORT_EVERY: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("kv-master: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args_os()
        .map(|argument| argument.into_string())
        .collect::<Result<_, _>>()
        .map_err(|argument| anyhow::anyhow!("{} is no text", argument.to_string_lossy()))?;
    let flags = Flags::parse_from(translate(arguments)?);
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
