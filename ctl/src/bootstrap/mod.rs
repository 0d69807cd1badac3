//! `kvctl bootstrap`: serve a bootstrap server, and ask one.

mod query;
mod serve;

use clap::Subcommand;

use crate::cli::{Environment, Outcome};

/// Serve a bootstrap server, where prefill workers register and are found, or ask one.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    Serve(serve::Arguments),
    Query(query::Arguments),
}

/// Carries out the command.
///
/// # Errors
/// Where an address cannot be bound or reached, or the token cannot be had.
pub(crate) fn run(command: &Command, environment: &Environment) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = match command {
        Command::Serve(arguments) => runtime.block_on(serve::run(arguments, environment)),
        Command::Query(arguments) => runtime.block_on(query::run(arguments)),
    };
    // A name that is being resolved must not hold up the end.
    runtime.shutdown_background();
    outcome
}
