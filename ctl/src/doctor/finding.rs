//! What a check finds.

use serde::Serialize;

/// What a check finds, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) area: &'static str,
    pub(super) level: Level,
    pub(super) what: String,
    pub(super) fix: Option<String>,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// All is well.
    Ok,
    /// Good to know.
    Note,
    /// It could not be checked.
    Unchecked,
    /// Slows transfers, or breaks some.
    Warning,
    /// Breaks transfers.
    Failure,
}

impl Level {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Unchecked => "unchecked",
            Self::Warning => "warning",
            Self::Failure => "FAILURE",
        }
    }
}

/// Findings of one area.
#[derive(Debug)]
pub(super) struct Findings {
    area: &'static str,
    found: Vec<Finding>,
}

impl Findings {
    pub(super) fn of(area: &'static str) -> Self {
        Self { area, found: vec![] }
    }

    pub(super) fn ok(&mut self, what: impl Into<String>) {
        self.add(Level::Ok, what.into(), None);
    }

    pub(super) fn note(&mut self, what: impl Into<String>) {
        self.add(Level::Note, what.into(), None);
    }

    pub(super) fn unchecked(&mut self, what: impl Into<String>) {
        self.add(Level::Unchecked, what.into(), None);
    }

    pub(super) fn warning(&mut self, what: impl Into<String>, fix: impl Into<String>) {
        self.add(Level::Warning, what.into(), Some(fix.into()));
    }

    pub(super) fn failure(&mut self, what: impl Into<String>, fix: impl Into<String>) {
        self.add(Level::Failure, what.into(), Some(fix.into()));
    }

    fn add(&mut self, level: Level, what: String, fix: Option<String>) {
        self.found.push(Finding { area: self.area, level, what, fix });
    }

    pub(super) fn take(self) -> Vec<Finding> {
        self.found
    }
}
