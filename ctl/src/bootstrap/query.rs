//! `kvctl bootstrap query`.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use kvferry_engine::bootstrap::table::Listing;
use kvferry_engine::bootstrap::{Client, ClientError};

use crate::cli::{Outcome, seconds};
use crate::page::Table;

/// Show who has registered with a bootstrap server: kvferry's, or the one in vLLM's Mooncake
/// connector.
///
/// Ends with status 1 where the server is not ready: ranks are missing that its registrants say
/// exist, and the first of them are named. Ends with status 2 where it cannot be reached, or is no
/// bootstrap server. Proxies of the environment are not asked.
#[derive(Clone, Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    /// The server: HOST:PORT, [IPV6]:PORT, or either behind http://
    address: String,

    /// Print JSON: what the server answers to GET /query.
    #[arg(long)]
    json: bool,

    /// How long to wait for a server that is not there or not ready.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    wait: Duration,
}

pub(super) async fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let client = Client::new(&arguments.address)?.patience(arguments.wait);
    match client.query().await {
        Ok(listing) if arguments.json => {
            let mut text = String::from_utf8(listing.to_json())?;
            text.push('\n');
            Ok(Outcome { text, success: true })
        }
        Ok(listing) => Ok(Outcome { text: render(&listing), success: true }),
        Err(error @ ClientError::NotReady { .. }) => {
            let text = if arguments.json {
                format!("{}\n", serde_json::json!({ "error": error.to_string() }))
            } else {
                format!("{error}\n")
            };
            Ok(Outcome { text, success: false })
        }
        Err(error) => Err(error.into()),
    }
}

fn render(listing: &Listing) -> String {
    if listing.engines.is_empty() {
        return "Nobody has registered.\n".into();
    }
    let mut table = Table::new(&["DP", "TP", "PP", "ADDRESS", "INCARNATION", "ENGINE"]);
    let mut workers = 0;
    for (dp, engine) in &listing.engines {
        for (tp, stages) in &engine.workers {
            for (pp, worker) in stages {
                workers += 1;
                table.row([
                    dp.to_string(),
                    tp.to_string(),
                    pp.to_string(),
                    worker.address.to_string(),
                    worker.incarnation.map_or_else(|| "-".into(), |known| known.to_string()),
                    // It may be anything, and this is a terminal.
                    engine.engine_id.escape_debug().to_string(),
                ]);
            }
        }
    }
    let mut text = table.render();
    let plural = |count| if count == 1 { "" } else { "s" };
    let engines = listing.engines.len();
    // Writing to memory does not fail.
    let _ = writeln!(
        text,
        "\n{engines} engine{}, {workers} worker{}",
        plural(engines),
        plural(workers)
    );
    text
}
