//! `kvctl store serve`.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use kvferry_engine::size::Size;
use kvferry_engine::{Engine, Registry};
use kvferry_store::{Lent, SegmentState, Store};

use crate::cli::{Environment, Outcome, seconds};
use crate::service::{Signals, start_log};

/// Where the master is reached, where no flag says so.
const MASTER_VARIABLE: &str = "KVFERRY_MASTER";

/// How often it is said how much is populated.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

const HELP: &str = "\
Example:
  kvctl store serve --master master:50051 --lend 64GiB --segments 4";

/// Lend memory of this host to a pool, until SIGTERM or SIGINT.
///
/// One of these on each host lends for all of its processes, which then lend nothing themselves and
/// come and go as they like. The memory is had from the kernel piece by piece, after a look at what
/// the host and its control groups have left, and is in the pool once all of a segment is there;
/// with --segments 4 the first quarter is used while the others are still being populated.
///
/// At the end nothing new is placed in it, those who are reading get --grace for it, and the master
/// is told. The exit status is 0 where all of them were done, and 1 where some were cut off. A second
/// signal ends it at once.
///
/// Standard output says what is lent and where, the log on standard error how far it is (RUST_LOG
/// sets how much).
#[derive(Clone, Debug, Args)]
#[command(verbatim_doc_comment, after_long_help = HELP)]
pub(crate) struct Arguments {
    /// The pool's master. Default: the variable KVFERRY_MASTER.
    #[arg(long, value_name = "HOST:PORT")]
    master: Option<String>,

    /// How much memory to lend, as 64GiB.
    #[arg(long, value_name = "SIZE")]
    lend: Size,

    /// In how many segments, one after the other. An object has to fit in one.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    segments: u32,

    /// What the segments are called: those who put can prefer them by this name. Default: the
    /// host's name.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// What the host is called: who reads on a host of the same name reads here first. Default: its
    /// name.
    #[arg(long, value_name = "NAME")]
    host: Option<String>,

    /// Where to listen; port 0 for any. Default: every address of this host, any port.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,

    /// The address to give to others. Default: what was bound, or an address of this host.
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,

    /// Where to accept the connections that carry bytes; port 0 for any. Default: the host of
    /// --listen, any port.
    #[arg(long, value_name = "HOST:PORT")]
    lane_listen: Option<String>,

    /// The address to give to others for those; port 0 for the one that was bound. Default: the host
    /// by which they came here.
    #[arg(long, value_name = "HOST:PORT")]
    lane_advertise: Option<String>,

    /// How long to wait for the master at the start. Later it is waited for without an end.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    patience: Duration,

    /// How long reads and writes may go on at the end. Leases of the master are over after 10 s,
    /// unless it is set otherwise.
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = seconds)]
    grace: Duration,
}

pub(super) async fn run(
    arguments: &Arguments,
    environment: &Environment,
) -> anyhow::Result<Outcome> {
    start_log(environment)?;

    // Before anything is lent: a signal from now on is not lost.
    let mut signals = Signals::new()?;
    let by = tokio::select! {
        by = signals.next() => return Ok(ended(by, "before anything was lent", true)),
        started = start(arguments, environment) => {
            let (store, engine) = started?;
            let lending = lend_all(&store, arguments);
            tokio::select! {
                failed = lending => {
                    failed?;
                    (signals.next().await, store, engine)
                }
                by = signals.next() => (by, store, engine),
            }
        }
    };
    let (by, store, engine) = by;
    tracing::info!(grace = ?arguments.grace, "ended by {by}: no more is lent");
    let drained = tokio::select! {
        drained = store.close(arguments.grace) => drained,
        again = signals.next() => return Ok(ended(again, "at once, as asked twice", false)),
    };
    drop(engine);
    Ok(match drained {
        Ok(Duration::ZERO) => ended(by, "all who read were done", true),
        Ok(left) => ended(by, &format!("readers had up to {left:?} left, and were cut off"), false),
        Err(error) => ended(by, &format!("and the master does not know of it: {error}"), false),
    })
}

fn ended(by: &str, how: &str, success: bool) -> Outcome {
    Outcome { text: format!("ended by {by}: {how}\n"), success }
}

async fn start(
    arguments: &Arguments,
    environment: &Environment,
) -> anyhow::Result<(Store, Arc<Engine>)> {
    let master = arguments.master.clone().or_else(|| environment.get(MASTER_VARIABLE));
    let master = master.with_context(|| {
        format!("which pool? Give its master by --master HOST:PORT, or by {MASTER_VARIABLE}")
    })?;
    let mut engine = Engine::builder(Registry::new());
    if let Some(listen) = &arguments.listen {
        engine = engine.listen(listen);
    }
    if let Some(advertise) = &arguments.advertise {
        engine = engine.advertise(advertise);
    }
    if let Some(listen) = &arguments.lane_listen {
        engine = engine.lane_listen(listen);
    }
    if let Some(advertise) = &arguments.lane_advertise {
        engine = engine.lane_advertise(advertise);
    }
    let engine = Arc::new(engine.start().await?);
    let mut builder = Store::builder(engine.clone(), &master).patience(arguments.patience);
    if let Some(host) = &arguments.host {
        builder = builder.host(host);
    }
    let store = builder.start().await?;
    say(&format!(
        "store of host {} at {}, lanes at port {}, master at {master}",
        store.host(),
        engine.address(),
        engine.lane_port()
    ));
    Ok((store, engine))
}

/// Lends one segment after the other.
async fn lend_all(store: &Store, arguments: &Arguments) -> anyhow::Result<()> {
    let name = arguments.name.as_deref().unwrap_or(store.host());
    let (total, count) = (arguments.lend.bytes(), u64::from(arguments.segments));
    for number in 0..count {
        // The first take what does not divide.
        let bytes = total / count + u64::from(number < total % count);
        let mut lent = store.lend(bytes, name)?;
        mounted(&mut lent, bytes).await?;
        let (id, number) = (lent.id(), number + 1);
        say(&format!("segment {id} ({number} of {count}): {bytes} bytes lent as {name:?}"));
    }
    Ok(())
}

/// Waits until a segment is in the pool, and says how far it is.
async fn mounted(lent: &mut Lent, bytes: u64) -> anyhow::Result<()> {
    let mut said = Instant::now();
    let mut state = lent.state();
    loop {
        match state {
            SegmentState::Mounted => return Ok(()),
            SegmentState::Populating(populated) if said.elapsed() >= PROGRESS_EVERY => {
                said = Instant::now();
                let percent = populated.saturating_mul(100) / bytes;
                tracing::info!("populated {populated} of {bytes} bytes ({percent} %)");
            }
            SegmentState::Populating(_) | SegmentState::Mounting => {}
            // A master that is out of reach is waited for.
            SegmentState::NotMounted(error) if error.is_retryable() => {
                tracing::warn!(%error, "not mounted yet");
            }
            SegmentState::NotMounted(error) => return Err(error.into()),
            SegmentState::Unmounted => anyhow::bail!("it was taken back"),
        }
        state = lent.changed().await;
    }
}

fn say(line: &str) {
    let mut stdout = io::stdout();
    // Whoever started it may have closed its output: it lends all the same.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}
