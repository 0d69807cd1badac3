//! How this host's ports pair with another's.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use kvferry_engine::topology::{Endpoint, Mtu, Pairing, RefusedReason, Topology};
use serde::{Deserialize, Serialize};

use super::endpoint::EndpointRow;
use super::report::FORMAT;
use super::table::section;
use crate::page::{Table, hanging};

/// What becomes of two hosts that meet.
#[derive(Debug)]
pub(super) struct Meeting {
    row: MeetingRow,
}

/// The same for programs.
#[derive(Debug, Serialize)]
pub(super) struct MeetingRow {
    pairs: Vec<PairRow>,
    /// Groups of which tables do not tell: the handshake probes those that still need a partner.
    probes: Vec<ReasonRow>,
    /// Groups that do not work together.
    refused: Vec<ReasonRow>,
    /// Why nothing works, where nothing does.
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct PairRow {
    local: String,
    remote: String,
    mtu_bytes: Option<u32>,
}

/// Two ports that stand for their groups.
#[derive(Debug, Serialize)]
struct ReasonRow {
    local: String,
    remote: String,
    reason: String,
}

/// What is read of the other host's report.
#[derive(Deserialize)]
struct PeerReport {
    format: u32,
    ports: Vec<PeerPort>,
}

#[derive(Deserialize)]
struct PeerPort {
    endpoint: Option<EndpointRow>,
}

/// Pairs this host with the one whose report is in `file`.
///
/// # Errors
/// Where the file is not such a report.
pub(super) fn meet(topology: &Topology, file: &Path) -> anyhow::Result<Meeting> {
    let remote = read(file)
        .with_context(|| format!("{} is no output of `kvctl topology --json`", file.display()))?;
    Ok(Meeting { row: pair(topology.endpoints(), remote) })
}

fn read(file: &Path) -> anyhow::Result<Vec<Endpoint>> {
    let text = fs::read_to_string(file)?;
    let report: PeerReport = serde_json::from_str(&text)?;
    anyhow::ensure!(
        report.format == FORMAT,
        "its format is {}, this kvctl reads {FORMAT}: use the same version on both hosts",
        report.format
    );
    report.ports.into_iter().filter_map(|port| port.endpoint).map(Endpoint::try_from).collect()
}

fn pair(local: Vec<Endpoint>, remote: Vec<Endpoint>) -> MeetingRow {
    let mut row = MeetingRow { pairs: vec![], probes: vec![], refused: vec![], error: None };
    let pairing = match Pairing::new(local, remote) {
        Ok(pairing) => pairing,
        Err(error) => return MeetingRow { error: Some(error.to_string()), ..row },
    };
    for refused in pairing.refused() {
        let (local, remote) = (refused.local.to_string(), refused.remote.to_string());
        let reason = ReasonRow { local, remote, reason: refused.reason.to_string() };
        match refused.reason {
            RefusedReason::Undecided(_) => row.probes.push(reason),
            RefusedReason::Unreachable(_) => row.refused.push(reason),
        }
    }
    match pairing.pairs() {
        Ok(pairs) => row.pairs.extend(pairs.iter().map(|pair| PairRow {
            local: pair.local.to_string(),
            remote: pair.remote.to_string(),
            mtu_bytes: pair.mtu.map(Mtu::bytes),
        })),
        Err(error) if row.probes.is_empty() => row.error = Some(error.to_string()),
        // The probes will tell.
        Err(_) => {}
    }
    row
}

impl Meeting {
    /// Whether there are pairs, or probes might find some.
    pub(super) fn may_work(&self) -> bool {
        self.row.error.is_none()
    }

    pub(super) fn row(&self) -> &MeetingRow {
        &self.row
    }

    /// For people.
    pub(super) fn render(&self) -> String {
        let MeetingRow { pairs, probes, refused, error } = &self.row;
        if let Some(error) = error {
            return format!("\nNo pair\n{}", hanging("  ", error));
        }
        let mut text = String::new();
        if !pairs.is_empty() {
            let mut table = Table::new(&["HERE", "THERE", "PACKET BYTES"]);
            for pair in pairs {
                let mtu = pair.mtu_bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
                table.row([pair.local.clone(), pair.remote.clone(), mtu]);
            }
            text.push_str(&format!("\nPairs\n{}", table.render()));
        }
        text.push_str(&section(
            "Not told by tables: probed at the handshake, where a group still needs a partner",
            reasons(probes),
        ));
        text.push_str(&section("Groups that do not reach each other", reasons(refused)));
        text
    }
}

fn reasons(rows: &[ReasonRow]) -> impl Iterator<Item = (String, String)> {
    rows.iter().map(|row| (format!("{} - {}", row.local, row.remote), row.reason.clone()))
}
