//! Where figures go: a table for people, files for programs, a picture.

use std::fs::File;
use std::io::{BufWriter, Write, stdout};

use anyhow::{Context, ensure};
use serde::Serialize;

use crate::cli::{OutputArgs, Sink};
use crate::plot;
use crate::report::{Report, Run};

/// The files of an invocation. What cannot be written is found out before the work.
#[derive(Debug)]
pub(crate) struct Outputs {
    settings: OutputArgs,
}

impl Outputs {
    /// Writes every file once, without figures.
    ///
    /// A picture of nothing is not drawn: its file is created.
    pub(crate) fn prepare(settings: &OutputArgs) -> anyhow::Result<Self> {
        let both = (&settings.json, &settings.csv);
        ensure!(
            !matches!(both, (Some(Sink::Output), Some(Sink::Output))),
            "--json - and --csv - cannot share standard output: give one of them a file"
        );
        let outputs = Self { settings: settings.clone() };
        outputs.write_files(&Report::default())?;
        if let Some(path) = &settings.plot {
            let created = File::create(path);
            created.with_context(|| format!("writing the picture to {}", path.display()))?;
        }
        Ok(outputs)
    }

    /// Writes the files with what there is so far, lest an interruption loses it.
    pub(crate) fn keep(&self, report: &Report) -> anyhow::Result<()> {
        self.write_files(report)
    }

    /// Writes everything, and prints the table, or the figures where standard output is for them.
    pub(crate) fn finish(&self, report: &Report, table: &str) -> anyhow::Result<()> {
        self.write_files(report)?;
        if let Some(path) = &self.settings.plot {
            let drawn: Vec<plot::Drawn> = report.runs.iter().map(plot::Drawn::from).collect();
            plot::write(path, &drawn)?;
        }
        let output = Some(&Sink::Output);
        if self.settings.json.as_ref() == output {
            return write_json(&Sink::Output, report);
        }
        if self.settings.csv.as_ref() == output {
            return write_csv(&Sink::Output, &report.runs);
        }
        Ok(stdout().write_all(table.as_bytes())?)
    }

    fn write_files(&self, report: &Report) -> anyhow::Result<()> {
        if let Some(sink @ Sink::File(_)) = &self.settings.json {
            write_json(sink, report)?;
        }
        if let Some(sink @ Sink::File(_)) = &self.settings.csv {
            write_csv(sink, &report.runs)?;
        }
        Ok(())
    }
}

/// Writes figures as JSON.
pub(crate) fn write_json(to: &Sink, figures: &impl Serialize) -> anyhow::Result<()> {
    write(to, |sink| {
        serde_json::to_writer_pretty(&mut *sink, figures)?;
        Ok(sink.write_all(b"\n")?)
    })
}

/// One line of headings and one for each run; what was not measured is empty.
fn write_csv(to: &Sink, runs: &[Run]) -> anyhow::Result<()> {
    write(to, |sink| {
        let mut lines = csv::Writer::from_writer(sink);
        for run in runs {
            lines.serialize(run)?;
        }
        Ok(lines.flush()?)
    })
}

fn write(
    to: &Sink,
    figures: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    match to {
        Sink::Output => figures(&mut stdout().lock()),
        Sink::File(path) => {
            let written = || -> anyhow::Result<()> {
                let mut file = BufWriter::new(File::create(path)?);
                figures(&mut file)?;
                Ok(file.flush()?)
            };
            written().with_context(|| format!("writing the figures to {}", path.display()))
        }
    }
}
