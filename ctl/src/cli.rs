//! Commands and their arguments.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use kvferry_transport::rdma::device::HostRoot;

use crate::{bootstrap, doctor, store, topology};

/// Operates kvferry, the engine that moves KV caches between hosts.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Topology(topology::Arguments),
    Doctor(doctor::Arguments),
    #[command(subcommand)]
    Bootstrap(bootstrap::Command),
    #[command(subcommand)]
    Store(store::Command),
}

/// Which machine to look at.
#[derive(Clone, Debug, Default, Args)]
pub struct Machine {
    /// Look at a captured machine: a directory with its `sys` and `proc`, and the output of
    /// `ip -o address show` in `ip-address.txt`. Default: this machine.
    #[arg(long, value_name = "DIR", alias = "sysfs-root")]
    pub root: Option<PathBuf>,
}

/// The environment variables of whoever asks.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

/// What a command says, and whether all is well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// For standard output.
    pub text: String,
    /// Whether the process ends with status 0; otherwise with 1. Status 2 is for commands that
    /// could not be carried out.
    pub success: bool,
}

impl Arguments {
    /// Carries out the command.
    ///
    /// # Errors
    /// Where it could not be carried out: bad arguments, unreadable files.
    pub fn run(&self, environment: &Environment) -> anyhow::Result<Outcome> {
        match &self.command {
            Command::Topology(arguments) => topology::run(arguments, environment),
            Command::Doctor(arguments) => doctor::run(arguments, environment),
            Command::Bootstrap(command) => bootstrap::run(command, environment),
            Command::Store(command) => store::run(command, environment),
        }
    }
}

impl Machine {
    /// Its file system.
    #[must_use]
    pub fn root(&self) -> HostRoot {
        self.root.clone().map_or_else(HostRoot::live, HostRoot::captured)
    }
}

impl Environment {
    /// This process's. Variables that are not UTF-8 are none of those that are asked for.
    #[must_use]
    pub fn of_process() -> Self {
        let named = std::env::vars_os();
        let legal = named.filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Self { variables: legal.collect() }
    }

    /// One of these variables.
    pub fn of<const N: usize>(variables: [(&str, &str); N]) -> Self {
        let owned = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self { variables: owned.into() }
    }

    /// The value of a variable.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned()
    }
}

/// Names only: values may be secrets.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

/// A time in seconds, as `60` or `0.5`.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn values_of_variables_are_not_shown_for_debugging() {
        let shown = format!("{:?}", Environment::of([("HF_TOKEN", "hunter2")]));
        assert_eq!(shown, "{\"HF_TOKEN\"}");
    }
}
