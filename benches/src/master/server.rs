//! The master's process: started, and asked what it has used.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use kv_master::server::{Listen, Master};
use kv_master::state::{LeaseTimes, Settings};
use parking_lot::Mutex;

use crate::measure::cpu_spent;

/// The hidden command that the child runs.
pub(crate) const SUBCOMMAND: &str = "master-server";

/// What the master's process has used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    /// Processor time, user and system.
    pub(super) cpu: Duration,
    /// Memory, in bytes.
    pub(super) resident: u64,
}

/// The other process, for as long as this lives.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    address: SocketAddr,
}

impl Server {
    pub(super) fn start(workers: u16) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut child = Command::new(program)
            .args([SUBCOMMAND, "--workers", &workers.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the master's process")?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = pipes else { bail!("the child has no pipes") };
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line).context("reading the master's address")?;
        let address = line.trim().parse().context("the master's process did not start")?;
        Ok(Self { child, pipes: Mutex::new((input, output)), address })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn usage(&self) -> anyhow::Result<Usage> {
        let mut pipes = self.pipes.lock();
        let (input, output) = &mut *pipes;
        input.write_all(b"\n").context("asking the master's process")?;
        let mut line = String::new();
        output.read_line(&mut line).context("asking the master's process")?;
        let mut numbers = line.split_whitespace().map(str::parse);
        let (Some(Ok(nanos)), Some(Ok(resident))) = (numbers.next(), numbers.next()) else {
            bail!("the master's process said {line:?}");
        };
        Ok(Usage { cpu: Duration::from_nanos(nanos), resident })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It holds nothing that has to be ended with care.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Is the other process: a line in is answered by what was used so far, the end of lines ends it.
pub(crate) fn serve(workers: u16) -> anyhow::Result<()> {
    let any = || ("127.0.0.1".to_owned(), 0);
    let listen = Listen { clients: any(), heartbeat_port: 0, metrics: any(), metadata: None };
    // The owner gives no sign of life: nobody expires, however long is measured.
    let expire = Duration::from_secs(24 * 3600);
    let clients = LeaseTimes { suspect: expire, expire, ..Settings::default().clients };
    let settings = Settings { recovery: Duration::ZERO, clients, ..Settings::default() };
    let master = Master::start(settings, &listen, usize::from(workers))?;
    let mut output = std::io::stdout();
    writeln!(output, "{}", master.addresses().clients)?;
    for line in std::io::stdin().lines() {
        line?;
        writeln!(output, "{} {}", cpu_spent().as_nanos(), resident()?)?;
    }
    Ok(())
}

/// This process's memory, in bytes.
fn resident() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("reading memory's size")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    Ok(number.context("the kernel does not say how much memory is used")? * 1024)
}
