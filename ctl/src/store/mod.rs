//! `kvctl store`: lend memory of this host to a pool.

mod serve;

use clap::Subcommand;

use crate::cli::{Environment, Outcome};

/// Lend memory of this host to a pool.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    Serve(serve::Arguments),
}

/// Carries out the command.
///
/// # Errors
/// Where the pool's master cannot be reached, or the memory cannot be lent.
pub(crate) fn run(command: &Command, environment: &Environment) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = match command {
        Command::Serve(arguments) => runtime.block_on(serve::run(arguments, environment)),
    };
    // A name that is being resolved must not hold up the end.
    runtime.shutdown_background();
    outcome
}
