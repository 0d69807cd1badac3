//! What the two processes say to each other, one JSON value a line: orders on the target's
//! standard input, an answer to each on its standard output.

use std::io::{BufRead, Write};

use anyhow::Context;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::floor::Job;
use crate::pattern::Mismatch;
use crate::shape::Shape;
use crate::side::Setup;

/// From the initiator.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Allocate, and start an engine: `Started`.
    Start(Setup),
    /// Blocks have this shape from now on; share them as layouts `NAME.LAYER`: `Done`.
    Place { name: String, shape: Shape },
    /// Put the content of a round into the blocks: `Done`.
    Fill { round: u64 },
    /// Compare the blocks with the content of a round: `Verified`.
    Verify { round: u64 },
    /// How much processor time was used so far: `Cpu`.
    Cpu,
    /// Accept more of the floor's connections, which come from these ports: `Done`.
    Accept { ports: Vec<u16> },
    /// Take part in a run of the floor: `Cpu` when all threads stand ready, `Cpu` at its end.
    Floor(Job),
}

/// From the target.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Started { address: String, page_bytes: usize, floor_port: u16 },
    Done,
    Verified { mismatch: Option<Mismatch> },
    Cpu { nanoseconds: u64 },
    Failed { error: String },
}

/// Writes one line.
pub(crate) fn say(to: &mut impl Write, value: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()?;
    Ok(())
}

/// Reads one line; `None` when the other end is gone.
pub(crate) fn hear<T: DeserializeOwned>(from: &mut impl BufRead) -> anyhow::Result<Option<T>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let value = serde_json::from_str(&line);
    value.with_context(|| format!("not understood: {}", line.trim_end())).map(Some)
}
