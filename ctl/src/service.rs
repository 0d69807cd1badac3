//! What commands have in common that run until a signal ends them.

use std::io::{self, IsTerminal as _};

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::cli::Environment;

/// Logs to standard error, as much as `RUST_LOG` says.
///
/// # Errors
/// Where `RUST_LOG` says nothing that can be understood.
pub(crate) fn start_log(environment: &Environment) -> anyhow::Result<()> {
    let filter = environment.get("RUST_LOG").unwrap_or_else(|| "info".into());
    let subscriber = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_env_filter(EnvFilter::try_new(filter).context("RUST_LOG")?);
    // Whoever runs this in its own process may have a log already.
    let _ = subscriber.try_init();
    Ok(())
}

/// The signals that end a command: from when this is made on, none is lost.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
        Ok(Self { terminate, interrupt: signal(SignalKind::interrupt()).context("SIGINT")? })
    }

    /// Waits for the next, and names it.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
