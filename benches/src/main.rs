//! Benchmarks of kvferry: how fast it moves blocks, beside how fast the machine can.
//!
//! ```text
//!  initiator                                   target: a child, or `kvbench serve` elsewhere
//!  ------------------------                    --------------------------------------------
//!  pair: fill, clock, verify  -- control   --> session: fill, verify, processor time
//!  engine_run: transfers      == the engine ==> an engine that serves
//!  floor: workers             == plain TCP  ==> floor: the other half
//! ```
//!
//! | module | what stands there |
//! |---|---|
//! | `cli`, `pace` | the command line |
//! | `transfer`, `mixed`, `model`, `matrix`, `ways`, `master`, `pool`, `plot`, `quickstart`, `serve` | the commands |
//! | `sweep`, `series` | all combinations; one: warm-up, calibration, interleaved runs, figures |
//! | `pair`, `engine_run` | both processes, and one run of the engine |
//! | `control` | how the other process is found and led, what is said |
//! | `side`, `shape`, `pattern`, `memory` | what each process has: region, order of blocks, content |
//! | `floor`, `iperf` | the same work by code with one purpose, and what that is worth |
//! | `measure`, `stats` | the clock, and what is made of what it says |
//! | `counted`, `calls` | what adapters and the kernel were asked to do |
//! | `report`, `output`, `table`, `progress` | figures for programs and people |
#![forbid(unsafe_code)]

mod calls;
mod cli;
mod control;
mod counted;
mod engine_run;
mod floor;
mod iperf;
mod master;
mod matrix;
mod measure;
mod memory;
mod mixed;
mod model;
mod output;
mod pace;
mod pair;
mod pattern;
mod plot;
mod pool;
mod progress;
mod quickstart;
mod report;
mod series;
mod serve;
mod shape;
mod side;
mod stats;
mod sweep;
mod table;
mod transfer;
mod ways;

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
        Command::Serve(args) => serve::run(&args),
        Command::Mixed(args) => mixed::run(&args),
        Command::Model(args) => model::run(&args),
        Command::Matrix(args) => matrix::run(&args),
        Command::Ways(args) => ways::run(&args),
        Command::Master(args) => master::run(&args),
        Command::Pool(args) => pool::run(&args),
        Command::Plot(args) => plot::run(&args),
        Command::Quickstart(args) => quickstart::run(&args),
        Command::Target => serve::serve_parent(),
        Command::MasterServer { workers } => master::serve(workers),
        Command::PoolPart(part) => pool::be(&part),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kvbench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
