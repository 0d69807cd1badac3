//! The program as people and scripts run it: real processes, small totals, no speed asserted.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod ending;
mod garbage;
mod master;
mod matrix;
mod mixed;
mod model;
mod output;
mod pool;
mod program;
mod serve;
mod transfer;
