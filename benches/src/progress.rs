//! How far it is: a bar on a terminal, a line for each combination elsewhere.

use std::fmt;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// Work shorter than this shows nothing.
const QUIET: Duration = Duration::from_millis(700);

/// How often the terminal is written to.
const REDRAW: Duration = Duration::from_millis(100);

/// How wide the bar is.
const BAR_CHARS: u64 = 24;

/// Progress through combinations, each of which has as many steps.
#[derive(Debug)]
pub(crate) struct Progress {
    is_terminal: bool,
    shown: bool,
    begun: Instant,
    drawn: Option<Instant>,
    combinations: u64,
    /// How many were begun.
    current: u64,
    /// In thousandths of the current one.
    within: u64,
}

impl Progress {
    /// A bar for so many combinations. It is taken away when dropped.
    pub(crate) fn start(combinations: usize) -> Self {
        Self {
            is_terminal: stderr().is_terminal(),
            shown: false,
            begun: Instant::now(),
            drawn: None,
            combinations: combinations.max(1) as u64,
            current: 0,
            within: 0,
        }
    }

    /// The next combination begins.
    pub(crate) fn begin(&mut self, name: &str) {
        self.current += 1;
        self.within = 0;
        if self.is_terminal {
            self.show(format_args!("{name}: warming up"));
        } else if self.combinations > 1 {
            // One alone is over before anybody asks.
            line(format_args!("[{}/{}] {name}", self.current, self.combinations));
        }
    }

    /// A step of the current combination begins.
    pub(crate) fn advance(&mut self, name: &str, step: u32, steps: u32) {
        self.within = u64::from(step) * 1000 / u64::from(steps.max(1));
        self.show(format_args!("{name}: {} of {steps}", step + 1));
    }

    /// Shows what is done just now.
    pub(crate) fn show(&mut self, state: impl fmt::Display) {
        let due = self.drawn.is_none_or(|drawn| drawn.elapsed() > REDRAW);
        if self.is_terminal && due && self.begun.elapsed() > QUIET {
            (self.shown, self.drawn) = (true, Some(Instant::now()));
            let done = self.current.saturating_sub(1) * 1000 + self.within;
            let per_mille = done / self.combinations;
            // A terminal that cannot be written to is no reason to stop.
            let _ = write!(stderr(), "\r\x1b[K{} {state}", bar(per_mille));
        }
    }
}

/// A line that stays.
fn line(text: fmt::Arguments<'_>) {
    let _ = writeln!(stderr(), "{text}");
}

/// A bar filled so far.
fn bar(per_mille: u64) -> String {
    let filled = (per_mille.min(1000) * BAR_CHARS).div_ceil(1000);
    let mark = |at| if at < filled { '#' } else { '.' };
    let bar: String = (0..BAR_CHARS).map(mark).collect();
    format!("[{bar}] {:>3} %", per_mille / 10)
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_from_nothing_to_all() {
        assert_eq!(bar(0), format!("[{}]   0 %", ".".repeat(24)));
        assert_eq!(bar(500), format!("[{}{}]  50 %", "#".repeat(12), ".".repeat(12)));
        assert_eq!(bar(1000), format!("[{}] 100 %", "#".repeat(24)));
    }
}
