//! `kv-master`: the master of a pool, as a process.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    match arguments().and_then(kv_master::program::run) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("kv-master: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> anyhow::Result<Vec<String>> {
    let text = |argument: std::ffi::OsString| {
        argument
            .into_string()
            .map_err(|argument| anyhow::anyhow!("{} is no text", argument.to_string_lossy()))
    };
    std::env::args_os().map(text).collect()
}
