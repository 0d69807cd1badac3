//! The programs of a pool, for tests.
//!
//! | arguments | what it is |
//! |---|---|
//! | `master FLAGS...` | `kv-master` |
//! | `client MASTER HOST NUMBER KEYS` | a client at work over TCP, until its input ends; then it says what it did |
//! | `put MASTER KEY SEED LENGTH` | a client that puts one object over TCP, and says how that ended |
//! | others | `kvctl` |
#![forbid(unsafe_code)]

use std::io::{Read as _, Write as _, stdin, stdout};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use clap::Parser as _;
use kvferry_store::PutOptions;
use kvferry_tests::pool::history::History;
use kvferry_tests::pool::load::{MEMORY_BYTES, Tally, Worker, write_object};
use kvferry_tests::pool::{Client, TCP, key};
use tracing_subscriber::EnvFilter;

fn main() -> Result<ExitCode> {
    let mut arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("master") => {
            arguments.remove(1);
            kv_master::program::run(arguments)
        }
        Some("client") => in_runtime(client(&arguments)),
        Some("put") => in_runtime(put(&arguments)),
        _ => {
            let environment = kvctl::Environment::of_process();
            let outcome = kvctl::Arguments::parse_from(arguments).run(&environment)?;
            stdout().write_all(outcome.text.as_bytes())?;
            Ok(if outcome.success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

fn in_runtime(work: impl Future<Output = Result<()>>) -> Result<ExitCode> {
    let filter = EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(work)?;
    Ok(ExitCode::SUCCESS)
}

fn argument(arguments: &[String], index: usize) -> Result<&str> {
    arguments.get(index).map(String::as_str).with_context(|| format!("argument {index} is missing"))
}

fn number(arguments: &[String], index: usize) -> Result<u64> {
    argument(arguments, index)?.parse().with_context(|| format!("argument {index} is no number"))
}

fn say(line: &str) -> Result<()> {
    writeln!(stdout(), "{line}")?;
    Ok(stdout().flush()?)
}

async fn client(arguments: &[String]) -> Result<()> {
    let (master, host) = (argument(arguments, 2)?, argument(arguments, 3)?);
    let (history, tally) = (Arc::new(History::default()), Arc::new(Tally::default()));
    let stop = Arc::new(AtomicBool::new(false));
    let worker = Worker {
        client: Arc::new(Client::start(master, host, MEMORY_BYTES, TCP).await),
        number: number(arguments, 4)?,
        keys: number(arguments, 5)?,
        options: PutOptions::default(),
        history: history.clone(),
        tally: tally.clone(),
        stop: stop.clone(),
    };
    history.add_client(worker.number);
    let working = tokio::spawn(worker.work());
    say("working")?;
    let ended = tokio::task::spawn_blocking(|| stdin().read_to_end(&mut Vec::new()));
    ended.await??;
    stop.store(true, Ordering::Relaxed);
    // What it has found wrong is its exit code.
    working.await?;
    say(&format!("{tally:?}"))
}

async fn put(arguments: &[String]) -> Result<()> {
    let (master, name) = (argument(arguments, 2)?, number(arguments, 3)?);
    let (seed, length) = (number(arguments, 4)?, number(arguments, 5)?);
    let client = Client::start(master, "putting", length, TCP).await;
    write_object(&client.memory, 0, length, name, seed);
    say("putting")?;
    let stored = client.store.put(key(name), [client.memory.span(0, length)?]).await;
    say(&match stored {
        Ok(stored) => format!("{stored:?}"),
        Err(error) => format!("failed: {error}"),
    })
}
