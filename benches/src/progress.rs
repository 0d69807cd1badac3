//! A line on the terminal that says how far it is, when that takes long enough to wonder.

use std::fmt;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// Work shorter than this shows nothing.
const QUIET: Duration = Duration::from_millis(700);

/// The line. It is taken away when dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: bool,
    is_terminal: bool,
    begun: Instant,
}

impl Progress {
    pub(crate) fn start() -> Self {
        Self { shown: false, is_terminal: stderr().is_terminal(), begun: Instant::now() }
    }

    /// Shows how far it is.
    pub(crate) fn show(&mut self, state: impl fmt::Display) {
        if self.is_terminal && self.begun.elapsed() > QUIET {
            self.shown = true;
            // A terminal that cannot be written to is no reason to stop.
            let _ = write!(stderr(), "\r\x1b[K{state}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
