//! The floor of RDMA: perftest's `ib_write_bw` and `ib_read_bw`, a process at either end, which move
//! messages of a block's size over one queue pair, always from the same buffer to the same one.
//!
//! What is timed is perftest's own: from its first request to its last completion.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use kvferry_engine::topology::{Endpoint, Topology, Wishes};
use kvferry_transport::rdma::device::{HostFacts, HostRoot};
use serde::{Deserialize, Serialize};

use crate::cli::Op;

/// The fewest messages that perftest sends.
const FEWEST_MESSAGES: u64 = 5;

/// The most messages of a run: what perftest takes is an `int`.
const MOST_MESSAGES: u64 = 1 << 24;

/// The longest message that an adapter takes.
const MOST_BYTES: u64 = 1 << 31;

/// How long one end may take to start, and to end when the other has.
const MANNERS: Duration = Duration::from_secs(10);

/// How slow the messages may be at the worst.
const SLOWEST_BYTES_PER_S: u64 = 4 << 20;

/// The state of a socket that accepts connections, as `/proc/net/tcp` has it.
const LISTENS: &str = "0A";

/// So many messages of so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Messages {
    pub(crate) op: Op,
    pub(crate) bytes: u64,
    pub(crate) count: u64,
}

/// The target's part: a process that ends with this handle.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
}

impl Messages {
    /// Refuses what perftest does not move.
    pub(crate) fn check(self) -> anyhow::Result<()> {
        let Self { bytes, count, .. } = self;
        ensure!(
            (FEWEST_MESSAGES..=MOST_MESSAGES).contains(&count) && (1..=MOST_BYTES).contains(&bytes),
            "perftest moves {FEWEST_MESSAGES} to {MOST_MESSAGES} messages of up to {MOST_BYTES} \
             bytes, not {count} of {bytes}: --block-size and --total say how many"
        );
        Ok(())
    }

    fn program(self) -> &'static str {
        match self.op {
            Op::Write => "ib_write_bw",
            Op::Read => "ib_read_bw",
        }
    }

    /// What takes part at this end, on the first port that an engine would use here.
    fn command(self, port: u16) -> anyhow::Result<Command> {
        self.check()?;
        let Endpoint { name, gid_index, .. } = first_port()?;
        let mut command = Command::new(self.program());
        let arguments = [
            ("--ib-dev", name.device.to_string()),
            ("--ib-port", name.port.0.to_string()),
            ("--gid-index", gid_index.0.to_string()),
            ("--size", self.bytes.to_string()),
            ("--iters", self.count.to_string()),
            ("--port", port.to_string()),
        ];
        for (option, value) in arguments {
            command.arg(option).arg(value);
        }
        // A processor whose clock changes is no reason to refuse.
        command.arg("--CPU-freq").stdin(Stdio::null());
        Ok(command)
    }

    fn patience(self) -> Duration {
        MANNERS + Duration::from_secs(self.bytes.saturating_mul(self.count) / SLOWEST_BYTES_PER_S)
    }

    /// The initiator's part: moves the messages to or from a server, and says how long that took.
    pub(crate) fn run(self, server: IpAddr, port: u16) -> anyhow::Result<Duration> {
        let mut command = self.command(port)?;
        command.arg(server.to_string()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = spawn(&mut command)?;
        let output = finish(child, self.patience())?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "{} failed ({}): {}{said}",
            self.program(),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        let rate = rate(&said, self.bytes)
            .with_context(|| format!("{} printed no rate: {said}", self.program()))?;
        Ok(Duration::from_secs_f64((self.bytes * self.count) as f64 / rate))
    }
}

impl Server {
    /// Starts it, and returns when it accepts its client.
    pub(crate) fn start(messages: Messages) -> anyhow::Result<Self> {
        let port = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))
            .and_then(|listener| listener.local_addr())
            .context("looking for a port")?
            .port();
        let mut command = messages.command(port)?;
        let child = spawn(command.stdout(Stdio::null()).stderr(Stdio::null()))?;
        let mut server = Self { child, port };
        // It takes one client, so it cannot be asked by connecting.
        let deadline = Instant::now() + MANNERS;
        while !is_listening(port)? {
            if let Some(status) = server.child.try_wait()? {
                bail!("{} ended before its client came ({status})", messages.program());
            }
            ensure!(Instant::now() < deadline, "{} does not listen", messages.program());
            thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// Its client is through.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        match ended_within(&mut self.child, MANNERS)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => bail!("perftest's server failed ({status})"),
            None => bail!("perftest's server does not end"),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first port that an engine of this process would use.
fn first_port() -> anyhow::Result<Endpoint> {
    let wishes = Wishes::from_environment(|name| std::env::var(name).ok())?;
    let topology = Topology::choose(&HostFacts::read(&HostRoot::live()), &wishes);
    let usable = topology.ports.into_iter().find_map(|port| port.verdict.ok());
    usable.context("no port of an RDMA adapter can be used: `kvctl topology` says why")
}

fn spawn(command: &mut Command) -> anyhow::Result<Child> {
    command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => anyhow::anyhow!(
            "{} is not installed: the floor of RDMA is perftest's (package perftest)",
            command.get_program().display()
        ),
        _ => anyhow::Error::new(error).context(format!("starting {command:?}")),
    })
}

/// Waits for a process whose output fits into its pipes, and kills it when its time is up.
fn finish(mut child: Child, patience: Duration) -> anyhow::Result<Output> {
    let is_late = ended_within(&mut child, patience)?.is_none();
    if is_late {
        child.kill()?;
    }
    let output = child.wait_with_output()?;
    ensure!(
        !is_late,
        "perftest did not end within {} s: {}",
        patience.as_secs(),
        String::from_utf8_lossy(&output.stdout)
    );
    Ok(output)
}

/// How a process has ended, if it has by the time that it is given.
fn ended_within(child: &mut Child, patience: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + patience;
    loop {
        let ended = child.try_wait()?;
        if ended.is_some() || Instant::now() > deadline {
            return Ok(ended);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a socket of this host accepts connections on a port.
fn is_listening(port: u16) -> anyhow::Result<bool> {
    let port = format!(":{port:04X}");
    let is_it = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&port)) && fields.nth(1) == Some(LISTENS)
    };
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        match fs::read_to_string(table) {
            Ok(sockets) if sockets.lines().any(is_it) => return Ok(true),
            Ok(_) => {}
            // A system without IPv6 has one table.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("reading {table}")),
        }
    }
    Ok(false)
}

/// The average rate in bytes a second: of the line that begins with the messages' size, the fourth
/// number, in units of 2^20.
fn rate(printed: &str, bytes: u64) -> Option<f64> {
    let bytes = bytes.to_string();
    let mut lines = printed.lines().map(str::split_whitespace);
    let mut numbers = lines.find_map(|mut line| (line.next() == Some(&bytes)).then_some(line))?;
    let rate: f64 = numbers.nth(2)?.parse().ok()?;
    (rate > 0.0).then_some(rate * f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_rate_is_found_in_what_perftest_prints() {
        let printed = "\
 Number of qps   : 1\t\tTransport type : IB
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      512              84.31              80.00  \t\t   0.001280
---------------------------------------------------------------------------------------
";
        assert_eq!(rate(printed, 65_536), Some(80.0 * 1_048_576.0));
        assert_eq!(rate(printed, 4096), None);
        assert_eq!(rate("65536 512 0.00 0.00 0.0", 65_536), None, "nothing to divide by");
    }

    #[test]
    fn a_port_that_is_listened_on_is_found() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_listening(port).unwrap());
        drop(listener);
        assert!(!is_listening(port).unwrap());
    }

    #[test]
    fn what_perftest_does_not_move_is_refused() {
        let messages = |count| Messages { op: Op::Read, bytes: 4096, count };
        assert!(messages(4).check().unwrap_err().to_string().contains("not 4 of 4096"));
        assert!(messages(5).check().is_ok());
        assert!(messages(MOST_MESSAGES + 1).check().is_err());
    }
}
