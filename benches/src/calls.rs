//! System calls, counted by the kernel as they are made: `raw_syscalls:sys_enter` in a tracing instance
//! of this program's own, one histogram of threads and calls (Documentation/trace/histogram.rst).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// Where the kernel's tracing is mounted.
const TRACING: &str = "/sys/kernel/tracing";

/// How many pairs of a thread and a call are kept apart.
const HISTOGRAM: &str = "hist:keys=common_pid,id.syscall:size=4096";

/// Counts while it lives, and leaves nothing behind.
#[derive(Debug)]
pub(crate) struct CallCounter {
    instance: PathBuf,
}

/// How often each call was made.
pub(crate) type Calls = BTreeMap<String, u64>;

impl CallCounter {
    /// Starts to count the calls of every process.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let instance = Path::new(TRACING).join(format!("instances/kvbench-{}", std::process::id()));
        fs::create_dir(&instance).with_context(|| {
            format!(
                "system calls are counted by tracing the kernel: it takes root, and `mount -t \
                 tracefs tracefs {TRACING}` ({})",
                instance.display()
            )
        })?;
        let counter = Self { instance };
        // In an instance an event triggers nothing before it is recorded, too.
        for (file, value) in [("trigger", HISTOGRAM), ("enable", "1")] {
            counter.tell(file, value).context("counting system calls")?;
        }
        Ok(counter)
    }

    fn event(&self, file: &str) -> PathBuf {
        self.instance.join("events/raw_syscalls/sys_enter").join(file)
    }

    /// Writes to a file of the event. Not as a new file: that takes away what was set before.
    fn tell(&self, file: &str, value: &str) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.event(file))?.write_all(value.as_bytes())
    }

    /// Stops, and returns the calls that the threads of these processes have made since the start, for
    /// as many as still exist.
    pub(crate) fn stop(self, processes: &[u32]) -> anyhow::Result<Calls> {
        self.tell("trigger", &format!("{HISTOGRAM}:pause")).context("counting system calls")?;
        let mut threads = BTreeSet::new();
        for process in processes {
            let tasks = format!("/proc/{process}/task");
            for task in fs::read_dir(&tasks).with_context(|| format!("reading {tasks}"))? {
                threads.extend(task?.file_name().to_str().and_then(|id| id.parse::<u32>().ok()));
            }
        }
        let histogram =
            fs::read_to_string(self.event("hist")).context("reading what was counted")?;
        let calls = sum(&histogram, &threads);
        ensure!(!calls.is_empty(), "the kernel counted no system call of {processes:?}");
        Ok(calls)
    }
}

impl Drop for CallCounter {
    fn drop(&mut self) {
        // The histogram holds its instance; where either cannot be taken away, it goes with the
        // machine.
        let _ = self.tell("enable", "0");
        let _ = self.tell("trigger", &format!("!{HISTOGRAM}"));
        let _ = fs::remove_dir(&self.instance);
    }
}

/// The calls of these threads, from lines like
/// `{ common_pid:   123, id: sys_epoll_wait   [232] } hitcount:   45`.
fn sum(histogram: &str, threads: &BTreeSet<u32>) -> Calls {
    let mut calls = Calls::new();
    for line in histogram.lines() {
        let mut words = line.split_whitespace().filter(|word| *word != "{");
        let mut after = |key: &str| words.find(|word| *word == key).and_then(|_| words.next());
        let thread = after("common_pid:").and_then(|id| id.trim_end_matches(',').parse().ok());
        let call = after("id:").map(|name| name.trim_start_matches("sys_").to_owned());
        let count = after("hitcount:").and_then(|count| count.parse::<u64>().ok());
        let (Some(thread), Some(call), Some(count)) = (thread, call, count) else { continue };
        if threads.contains(&thread) {
            *calls.entry(call).or_default() += count;
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_these_threads_are_summed_and_no_others() {
        let histogram = "\
# event histogram
#
{ common_pid:        101, id: sys_epoll_wait                [232] } hitcount:         40
{ common_pid:        102, id: sys_epoll_wait                [232] } hitcount:          2
{ common_pid:        102, id: sys_write                     [  1] } hitcount:          7
{ common_pid:        999, id: sys_read                      [  0] } hitcount:       1000

Totals:
    Hits: 1049
";
        let calls = sum(histogram, &BTreeSet::from([101, 102]));
        let expected = [("epoll_wait", 42), ("write", 7)].map(|(call, n)| (call.to_owned(), n));
        assert_eq!(calls, Calls::from(expected));
    }
}
