//! The program: run, watched, stopped, killed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// What no wait here should come near.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn kvbench(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvbench"));
    // Where its two processes meet: made by the first, for this user alone.
    let user = rustix::process::geteuid().as_raw();
    command.env("KVFERRY_RUN_DIR", std::env::temp_dir().join(format!("kvbench-tests-{user}")));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// What it wrote with `--json`, and printed.
pub(crate) fn measured(arguments: &[&str]) -> (Vec<Value>, String) {
    let (report, printed) = reported(arguments);
    (report["runs"].as_array().unwrap().clone(), printed)
}

/// All that it wrote with `--json`, and printed.
pub(crate) fn reported(arguments: &[&str]) -> (Value, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("runs.json");
    let mut all = arguments.to_vec();
    all.extend(["--json", file.to_str().unwrap()]);
    let output = kvbench(&all);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?} failed: {said}");
    let report = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    (report, String::from_utf8(output.stdout).unwrap())
}

/// Its complaint about these arguments.
pub(crate) fn refused(arguments: &[&str]) -> String {
    let output = kvbench(arguments);
    assert!(!output.status.success(), "{arguments:?} was accepted");
    assert!(output.stdout.is_empty(), "figures were printed for {arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

pub(crate) fn is_positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number > 0.0 && number.is_finite())
}

/// A process that ends with this handle.
#[derive(Debug)]
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn signal(&self, signal: Signal) {
        send(self.0.id(), signal);
    }

    /// Its exit code, its complaint. Panics when it does not end.
    pub(crate) fn ended(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + PATIENCE;
        while self.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it does not end");
            thread::sleep(Duration::from_millis(5));
        }
        let code = self.0.wait().unwrap().code();
        let said = self.0.stderr.take().map(|stderr| std::io::read_to_string(stderr).unwrap());
        (code, said.unwrap_or_default())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A benchmark that would run for hours.
pub(crate) fn endless(more: &[&str]) -> Process {
    let arguments = ["transfer", "--total=4MiB", "--iterations=1000000", "--op=write"];
    let all: Vec<&str> = arguments.iter().chain(more).copied().collect();
    let run = command(&all).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    Process(run.unwrap())
}

/// A target that serves whoever comes.
#[derive(Debug)]
pub(crate) struct Serve {
    pub(crate) process: Process,
    pub(crate) address: String,
    /// Open as long as it writes.
    _stdout: BufReader<ChildStdout>,
}

impl Serve {
    pub(crate) fn start(more: &[&str]) -> Self {
        let arguments = ["serve", "--listen=127.0.0.1:0"];
        let all: Vec<&str> = arguments.iter().chain(more).copied().collect();
        let mut child = command(&all).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        Self { process: Process(child), address, _stdout: stdout }
    }

    /// Bytes of its regions' pages: `RssShmem` of proc_pid_status(5).
    pub(crate) fn region_bytes(&self) -> u64 {
        let status = Path::new("/proc").join(self.process.0.id().to_string()).join("status");
        let text = fs::read_to_string(status).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("RssShmem:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Waits until it holds a region, or none any more.
    pub(crate) fn until_it_holds(&self, bytes: u64) {
        until("the target's region to come or go", || {
            let held = self.region_bytes();
            if bytes == 0 { held == 0 } else { held >= bytes }
        });
    }
}

/// Waits for something to become true.
pub(crate) fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_true() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// State and parent of a process, as `/proc/PID/stat` says.
fn state_and_parent(process: &Path) -> Option<(char, u32)> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    // The name before it is in parentheses and may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Whether a process is there and runs. Whoever inherits it may leave it a zombie.
pub(crate) fn is_alive(process: u32) -> bool {
    let process = Path::new("/proc").join(process.to_string());
    state_and_parent(&process).is_some_and(|(state, _)| state != 'Z')
}

/// A child of a process, once there is one.
pub(crate) fn child_of(parent: u32) -> u32 {
    let program = fs::read(format!("/proc/{parent}/cmdline")).unwrap();
    let mut child = None;
    until("a child process", || {
        child = fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
            let process = entry.file_name().to_str()?.parse().ok()?;
            let (_, found) = state_and_parent(&entry.path())?;
            // Until it has become another program it is its parent, which waits for that.
            let is_itself = fs::read(entry.path().join("cmdline")).ok()? != program;
            (found == parent && is_itself).then_some(process)
        });
        child.is_some()
    });
    child.unwrap()
}

/// Sends a signal to a process that is known to be there.
pub(crate) fn send(process: u32, signal: Signal) {
    let process = Pid::from_raw(process.try_into().unwrap()).unwrap();
    kill_process(process, signal).unwrap();
}
