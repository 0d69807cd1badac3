//! `kvctl bootstrap serve`.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use kvferry_engine::bootstrap::{Bootstrap, Token, table};

use crate::cli::{Environment, Outcome, seconds};
use crate::service::{Signals, start_log};

/// Where the token stands, where no file is given.
const TOKEN_VARIABLE: &str = "KVFERRY_BOOTSTRAP_TOKEN";

/// Serve a bootstrap server until SIGTERM or SIGINT.
///
/// Prefill workers register here, routers and decode workers ask who is there: POST /register,
/// GET /query and GET /health, as the server in vLLM's Mooncake connector answers them. Tell vLLM
/// of it by `"kv_connector_extra_config": {"bootstrap_server_address": "HOST:PORT"}` in
/// --kv-transfer-config.
///
/// Unlike that server, this one forgets workers that are gone, and lets one that starts again have
/// its rank back. Workers that say how many ranks there are keep the table back until it is
/// complete, and those that give an incarnation or a lease are told apart without being tried.
///
/// The first line on standard output says where it listens, the log on standard error who comes
/// and goes (RUST_LOG sets how much).
#[derive(Clone, Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    /// Where to listen; port 0 for any. Default: every address of this host, port 8998.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,

    /// The address to show. Default: what was bound, or an address of this host.
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,

    /// A file with the token that workers have to show. Default: the variable
    /// KVFERRY_BOOTSTRAP_TOKEN; where that is not set, anybody can register. In-tree vLLM shows
    /// none.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// How many engines, and so ranks of data parallelism, there may be.
    #[arg(long, value_name = "N", default_value_t = table::Limits::default().engines)]
    max_engines: u32,

    /// How many workers there may be in all.
    #[arg(long, value_name = "N", default_value_t = table::Limits::default().workers)]
    max_workers: u32,

    /// How many connections may be open at once.
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_connections: usize,

    /// How long a request may take to arrive.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    read_timeout: Duration,

    /// How often the address of a worker without a lease is tried.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    probe_every: Duration,

    /// After how long without a connection to it such a worker is forgotten.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    forget_after: Duration,
}

pub(super) async fn run(
    arguments: &Arguments,
    environment: &Environment,
) -> anyhow::Result<Outcome> {
    start_log(environment)?;

    // Before anything is bound: a signal from now on is not lost.
    let mut signals = Signals::new()?;

    let limits = table::Limits {
        engines: arguments.max_engines,
        workers: arguments.max_workers,
        ..table::Limits::default()
    };
    let mut builder = Bootstrap::builder()
        .port(8998)
        .limits(limits)
        .connections(arguments.max_connections)
        .read_timeout(arguments.read_timeout)
        .forget(arguments.probe_every, arguments.forget_after);
    if let Some(listen) = &arguments.listen {
        builder = builder.listen(listen);
    }
    if let Some(advertise) = &arguments.advertise {
        builder = builder.advertise(advertise);
    }
    if let Some(token) = token(arguments, environment)? {
        builder = builder.token(token);
    }
    let bootstrap = builder.start().await?;
    let line = format!("bootstrap server at http://{}\n", bootstrap.address());
    let mut stdout = io::stdout();
    // Whoever started it may have closed its output: it serves all the same.
    let _ = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
    let by = signals.next().await;
    drop(bootstrap);
    Ok(Outcome { text: format!("ended by {by}\n"), success: true })
}

/// A token that is asked for and cannot be had is an error: nobody is let in instead.
fn token(arguments: &Arguments, environment: &Environment) -> anyhow::Result<Option<Token>> {
    if let Some(file) = &arguments.token_file {
        return Ok(Some(Token::from_file(file).context("--token-file")?));
    }
    let text = environment.get(TOKEN_VARIABLE);
    text.map(|text| Token::new(&text).context(TOKEN_VARIABLE)).transpose()
}
