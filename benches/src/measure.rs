//! The clock: how long it took, and what it cost.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use rustix::time::{ClockId, clock_gettime};

/// Processor time, user and system, that all threads of this process have used so far.
pub(crate) fn cpu_spent() -> Duration {
    // What `getrusage` sums up, to the nanosecond. This clock is never negative.
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(spent.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(spent.tv_nsec).unwrap_or_default())
}

/// What a run under the clock came to.
#[derive(Debug)]
pub(crate) struct Clocked<T> {
    /// From the first worker's start to the last one's end.
    pub(crate) elapsed: Duration,
    /// Processor time of this process meanwhile.
    pub(crate) cpu: Duration,
    /// Processor time of the other process meanwhile, once it was asked.
    pub(crate) target_cpu: Duration,
    /// What each worker returned.
    pub(crate) results: Vec<T>,
}

/// Runs workers at once, each on a thread of its own. The threads exist before the clock starts.
pub(crate) fn race<T: Send, W>(workers: Vec<W>) -> anyhow::Result<Clocked<T>>
where
    W: FnOnce() -> anyhow::Result<T> + Send,
{
    let (ready, go) = (Barrier::new(workers.len() + 1), Barrier::new(workers.len() + 1));
    let timed = |worker: W| {
        ready.wait();
        go.wait();
        let begun = Instant::now();
        let result = worker()?;
        anyhow::Ok((begun, Instant::now(), result))
    };
    let timed = &timed;
    let (cpu, ends) = thread::scope(|scope| {
        let threads: Vec<_> =
            workers.into_iter().map(|worker| scope.spawn(move || timed(worker))).collect();
        ready.wait();
        let cpu_before = cpu_spent();
        go.wait();
        let ends: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
        (cpu_spent().saturating_sub(cpu_before), ends)
    });
    let mut results = Vec::with_capacity(ends.len());
    let mut clock: Option<(Instant, Instant)> = None;
    for end in ends {
        let (begun, ended, result) = end.map_err(|_| anyhow!("a worker panicked: see above"))??;
        let (first, last) = clock.unwrap_or((begun, ended));
        clock = Some((first.min(begun), last.max(ended)));
        results.push(result);
    }
    let (first, last) = clock.context("nothing to run: no worker was given")?;
    Ok(Clocked { elapsed: last - first, cpu, target_cpu: Duration::ZERO, results })
}
