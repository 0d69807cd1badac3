//! How many keys a pool's master can look up, what it remembers them in, and how fast it recovers.
//!
//! ```text
//!  this process                                    a child
//!  -----------------------------------------       ---------------------------------
//!  inventory: one owner with all the keys   ---->  the master; its processor time and
//!  load: batches, some of them in flight    <--->  memory are asked for over its pipes
//!  bare: the same batches, no server
//! ```
//!
//! | module | what stands there |
//! |---|---|
//! | `keys` | keys as vLLM's store connector makes them |
//! | `server` | the master's process, from both ends |
//! | `load` | clients |
//! | `bare` | the state machine alone |

mod bare;
mod keys;
mod load;
mod server;

use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;

use crate::cli::{MasterArgs, Sink};
use crate::output::write_json;
use crate::table::Table;
use keys::Keys;
use server::Server;
pub(crate) use server::{SUBCOMMAND, serve};

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Figures {
    keys: usize,
    key_bytes: usize,
    batch: usize,
    clients: u32,
    in_flight: u32,
    workers: u16,
    /// Existence checks, in keys.
    keys_per_s: f64,
    keys_per_server_cpu_s: f64,
    /// Of a call.
    p50_us: f64,
    p99_us: f64,
    /// The state machine alone, on one thread.
    bare_keys_per_cpu_s: f64,
    /// Of the server's memory, beyond what it had before.
    bytes_per_object: f64,
    /// From the first byte of the inventory to the answer that all of it is in the pool.
    recovery_s: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    master: Vec<Figures>,
}

/// Measures, and says what came of it.
pub(crate) fn run(args: &MasterArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("starting the clients' thread")?;
    let keys = Keys::new(usize::try_from(args.keys)?, usize::from(args.key_bytes))?;
    let server = Server::start(args.workers)?;
    let before = server.usage()?;
    let recovery = runtime.block_on(load::fill(server.address(), &keys))?;
    let filled = server.usage()?;
    let load = load::Load {
        address: server.address(),
        batch: usize::from(args.batch),
        clients: args.clients,
        in_flight: args.in_flight,
    };
    // The first moments warm up and are not counted.
    runtime.block_on(load.run(&keys, Duration::from_millis(500)))?;
    let cpu_before = server.usage()?.cpu;
    let loaded = runtime.block_on(load.run(&keys, Duration::from_secs(args.seconds)))?;
    let cpu = server.usage()?.cpu.saturating_sub(cpu_before);
    ensure!(!cpu.is_zero(), "the master's processor time did not change: measure for longer");
    drop(server);
    let bare = bare::run(&keys, usize::from(args.batch), Duration::from_secs(args.seconds))?;

    let count = loaded.keys as f64;
    let figures = Figures {
        keys: keys.count(),
        key_bytes: usize::from(args.key_bytes),
        batch: usize::from(args.batch),
        clients: args.clients,
        in_flight: args.in_flight,
        workers: args.workers,
        keys_per_s: count / loaded.elapsed.as_secs_f64(),
        keys_per_server_cpu_s: count / cpu.as_secs_f64(),
        p50_us: loaded.percentile_us(500),
        p99_us: loaded.percentile_us(990),
        bare_keys_per_cpu_s: bare,
        bytes_per_object: filled.resident.saturating_sub(before.resident) as f64
            / keys.count() as f64,
        recovery_s: recovery.as_secs_f64(),
    };
    print(args, figures)
}

fn print(args: &MasterArgs, figures: Figures) -> anyhow::Result<()> {
    let mut table = Table::new(&["figure", "value"], 1);
    let mut row = |name: &str, value: String| table.row(vec![name.to_owned(), value]);
    let millions = |rate: f64| format!("{:.2} M", rate / 1e6);
    row("keys looked up per second", millions(figures.keys_per_s));
    row("per second of the server's processors", millions(figures.keys_per_server_cpu_s));
    row("per second of a processor, state machine alone", millions(figures.bare_keys_per_cpu_s));
    row("a call: p50", format!("{:.0} us", figures.p50_us));
    row("a call: p99", format!("{:.0} us", figures.p99_us));
    row("memory per object", format!("{:.0} bytes", figures.bytes_per_object));
    row("recovery of all objects", format!("{:.2} s", figures.recovery_s));
    let table = table.render();
    let report = Report { master: vec![figures] };
    if let Some(sink) = &args.json {
        write_json(sink, &report)?;
    }
    if args.json != Some(Sink::Output) {
        let mut out = std::io::stdout();
        std::io::Write::write_all(&mut out, table.as_bytes())?;
    }
    Ok(())
}
