//! Benchmarks of kvferry: how fast it moves blocks, beside how fast the machine can.
//!
//! ```text
//!  initiator (this process)                      target (the same program, started by it)
//!  ------------------------                      ----------------------------------------
//!  pair: fill, clock, verify  -- JSON lines -->  target: fill, verify, processor time
//!  engine_run: transfers      == the engine ==>  an engine that serves
//!  floor: workers             == plain TCP  ==>  floor: the other half
//! ```
//!
//! | module | what stands there |
//! |---|---|
//! | `cli`, `size` | the command line |
//! | `transfer`, `quickstart` | the commands |
//! | `series` | one combination: warm-up, calibration, interleaved runs, figures |
//! | `pair`, `engine_run` | both processes, and one run of the engine |
//! | `target`, `target_process`, `orders` | the other process, how it is led, what is said |
//! | `side`, `shape`, `pattern` | what each process has: region, order of blocks, their content |
//! | `floor`, `iperf` | the same work by code with one purpose, and what that is worth |
//! | `measure`, `stats` | the clock, and what is made of what it says |
//! | `report`, `table`, `progress` | figures for programs and people |
#![forbid(unsafe_code)]

mod cli;
mod engine_run;
mod floor;
mod iperf;
mod measure;
mod orders;
mod pair;
mod pattern;
mod progress;
mod quickstart;
mod report;
mod series;
mod shape;
mod side;
mod size;
mod stats;
mod table;
mod target;
mod target_process;
mod transfer;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use cli::{Cli, Command};

fn main() -> ExitCode {
    // Warnings of the engine, or what RUST_LOG says; figures alone go to standard output.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let done = match Cli::parse().command {
        Command::Transfer(args) => transfer::run(&args),
        Command::Quickstart(args) => quickstart::run(&args),
        Command::Target => target::serve(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kvbench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
