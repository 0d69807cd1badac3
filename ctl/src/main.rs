//! `kvctl`.
#![forbid(unsafe_code)]

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use kvctl::{Arguments, Environment};

fn main() -> ExitCode {
    let outcome = match Arguments::parse().run(&Environment::of_process()) {
        Ok(outcome) => outcome,
        Err(error) => {
            let _ = writeln!(io::stderr(), "kvctl: {error:#}");
            return ExitCode::from(2);
        }
    };
    match io::stdout().write_all(outcome.text.as_bytes()) {
        // Whoever reads has read enough: `kvctl topology | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(_) => return ExitCode::from(2),
        Ok(()) => {}
    }
    if outcome.success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
