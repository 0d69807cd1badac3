//! Figures as a picture: kvferry, the floor and other systems, as lines over the block size.
//!
//! | module | what stands there |
//! |---|---|
//! | `series` | from runs to panels of lines |
//! | `scale` | logarithmic axes and their ticks |
//! | `draw` | where everything stands |
//! | `svg` | elements and text |

mod draw;
mod scale;
mod series;
mod svg;

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::cli::PlotArgs;
pub(crate) use series::Drawn;

/// What `--json` wrote, as far as it is drawn.
#[derive(Debug, Deserialize)]
struct Figures {
    runs: Vec<Drawn>,
}

/// Draws the figures of files.
pub(crate) fn run(args: &PlotArgs) -> anyhow::Result<()> {
    let mut runs = Vec::new();
    for path in &args.files {
        let read = || -> anyhow::Result<Figures> { Ok(serde_json::from_slice(&fs::read(path)?)?) };
        let figures = read().with_context(|| format!("reading figures from {}", path.display()))?;
        runs.extend(figures.runs);
    }
    write(&args.output, &runs)
}

/// Draws runs.
pub(crate) fn write(path: &Path, runs: &[Drawn]) -> anyhow::Result<()> {
    let panels = series::panels(runs);
    ensure!(!panels.is_empty(), "there are no figures to draw");
    fs::write(path, draw::page(&panels))
        .with_context(|| format!("writing the picture to {}", path.display()))
}
