//! The target as the initiator sees it: a process that is asked, and that may die, stop, or be cut
//! off.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};

use super::channel::{Channel, ChannelError};
use super::orders::{Answer, Order, hello};
use crate::memory;

/// The subcommand that makes this program a target.
pub(crate) const SUBCOMMAND: &str = "target";

/// How long a target of one's own may take to leave once nobody speaks to it.
const LEAVING: Duration = Duration::from_secs(5);

/// How long is listened for the reason of a failure: it is said before the socket closes.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// How long a connection to another host may take.
const CONNECTING: Duration = Duration::from_secs(5);

/// Where the target is to be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// A child of this process, started for the purpose.
    Here {
        /// The RDMA adapters that it may use, where they are not those of this process.
        rdma_devices: Option<String>,
    },
    /// `kvbench serve` at HOST:PORT.
    There(String),
}

impl Whereabouts {
    /// A child of this process, as it is itself.
    pub(crate) fn here() -> Self {
        Self::Here { rdma_devices: None }
    }
}

/// A target that answers. One that was started here ends with this handle, and with this process.
#[derive(Debug)]
pub(crate) struct Link {
    /// `None` once it was told to leave.
    channel: Option<Channel>,
    child: Option<Child>,
    name: String,
    /// How long it may be silent, beyond the time that work takes.
    patience: Duration,
    /// This end's address on the way to it, and its own.
    local: IpAddr,
    remote: IpAddr,
}

impl Link {
    /// What it is called in errors.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Starts a target, or connects to one, and makes sure that it understands.
    pub(crate) fn open(whereabouts: &Whereabouts, patience: Duration) -> anyhow::Result<Self> {
        let mut link = match whereabouts {
            Whereabouts::Here { rdma_devices } => Self::spawn(patience, rdma_devices.as_deref())?,
            Whereabouts::There(address) => Self::dial(address, patience)?,
        };
        link.say(&hello())?;
        match link.answer_within(Duration::ZERO)? {
            Answer::Welcome(theirs) => theirs.check()?,
            other => return Err(unexpected(&other)),
        }
        Ok(link)
    }

    fn spawn(patience: Duration, rdma_devices: Option<&str>) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("finding this program's own file")?;
        let (ours, theirs) = UnixStream::pair().context("opening a socket to the target")?;
        let mut command = Command::new(&program);
        if let Some(devices) = rdma_devices {
            command.env("KVFERRY_RDMA_DEVICES", devices);
        }
        let child = command
            .arg(SUBCOMMAND)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {} as the target", program.display()))?;
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Ok(Self {
            channel: Some(Channel::new(ours)),
            child: Some(child),
            name: "the target process".into(),
            patience,
            local: loopback,
            remote: loopback,
        })
    }

    fn dial(address: &str, patience: Duration) -> anyhow::Result<Self> {
        let stream = connect(address).with_context(|| {
            format!("connecting to --peer {address}: is `kvbench serve --listen` running there?")
        })?;
        stream.set_nodelay(true)?;
        let (local, remote) = (stream.local_addr()?.ip(), stream.peer_addr()?.ip());
        let (channel, name) = (Some(Channel::new(stream)), format!("the target at {address}"));
        Ok(Self { channel, child: None, name, patience, local, remote })
    }

    /// The target's process id, where it was started here.
    pub(crate) fn child(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// This end's address on the way to the target.
    pub(crate) fn local(&self) -> IpAddr {
        self.local
    }

    /// Where a port of the target's is reached.
    pub(crate) fn remote(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.remote, port)
    }

    /// Gives an order that touches `bytes` of memory, and returns its answer.
    pub(crate) fn ask_for_work(&mut self, order: &Order, bytes: u64) -> anyhow::Result<Answer> {
        self.order(order)?;
        self.answer_after_work(bytes)
    }

    /// Gives an order that is answered with `Done`.
    pub(crate) fn tell(&mut self, order: &Order, bytes: u64) -> anyhow::Result<()> {
        match self.ask_for_work(order, bytes)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// How much processor time it has used so far, when it next answers so.
    pub(crate) fn cpu_answer(&mut self) -> anyhow::Result<Duration> {
        match self.answer()? {
            Answer::Cpu { nanoseconds } => Ok(Duration::from_nanos(nanoseconds)),
            other => Err(unexpected(&other)),
        }
    }

    /// Gives an order.
    pub(crate) fn order(&mut self, order: &Order) -> anyhow::Result<()> {
        self.say(order)
    }

    /// The next answer, which takes no work.
    pub(crate) fn answer(&mut self) -> anyhow::Result<Answer> {
        self.answer_within(Duration::ZERO)
    }

    /// The next answer, which takes touching `bytes` of memory.
    pub(crate) fn answer_after_work(&mut self, bytes: u64) -> anyhow::Result<Answer> {
        self.answer_within(memory::touching(bytes))
    }

    fn say(&mut self, value: &impl serde::Serialize) -> anyhow::Result<()> {
        let said = match &mut self.channel {
            Some(channel) => channel.say(value, self.patience),
            None => bail!("{} was told to leave", self.name),
        };
        said.map_err(|error| self.failed(error))
    }

    fn answer_within(&mut self, work: Duration) -> anyhow::Result<Answer> {
        let heard = match &mut self.channel {
            Some(channel) => channel.hear(self.patience + work),
            None => bail!("{} was told to leave", self.name),
        };
        match heard {
            Ok(Answer::Failed { error }) => bail!("{} failed: {error}", self.name),
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&mut self, error: ChannelError) -> anyhow::Error {
        match error {
            ChannelError::Silent { waited } => anyhow!(
                "{} did not answer for {} s: it is stopped, cut off, or busier than --patience \
                 allows",
                self.name,
                waited.as_secs_f64()
            ),
            other => self.explain(other.into()),
        }
    }

    /// Adds to an error what became of the target, if it has ended or is about to.
    pub(crate) fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        let name = &self.name;
        match last_words(self.channel.as_mut()) {
            LastWords::Failed(reason) => error.context(format!("{name} failed: {reason}")),
            LastWords::None => error.context(format!("lost {name}")),
            LastWords::Closed => match self.child.as_mut().and_then(status) {
                Some(status) => error.context(format!(
                    "{name} ended early ({status}); what it had to say stands above"
                )),
                None => error.context(format!("lost {name}")),
            },
        }
    }
}

/// What a target said before it was lost.
enum LastWords {
    /// Why it failed.
    Failed(String),
    /// Nothing, and it has closed its end.
    Closed,
    /// Nothing yet.
    None,
}

fn last_words(channel: Option<&mut Channel>) -> LastWords {
    let Some(channel) = channel else { return LastWords::Closed };
    loop {
        match channel.hear(LAST_WORDS) {
            Ok(Answer::Failed { error }) => return LastWords::Failed(error),
            Ok(_) => {}
            Err(ChannelError::Closed) => return LastWords::Closed,
            Err(_) => return LastWords::None,
        }
    }
}

/// How a child ended that has closed its end. It gives its memory back first.
fn status(child: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + LEAVING;
    while Instant::now() < deadline {
        match child.try_wait() {
            Ok(None) => thread::sleep(Duration::from_millis(2)),
            Ok(Some(status)) => return Some(status),
            Err(_) => return None,
        }
    }
    None
}

/// The first of a name's addresses that accepts.
fn connect(address: &str) -> anyhow::Result<TcpStream> {
    let mut last = None;
    for candidate in address.to_socket_addrs().context("write it as HOST:PORT")? {
        match TcpStream::connect_timeout(&candidate, CONNECTING) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| anyhow!("the name has no address"), Into::into))
}

/// An answer to another question.
pub(crate) fn unexpected(answer: &Answer) -> anyhow::Error {
    anyhow!("the target gave an unexpected answer: {answer:?}")
}

impl Drop for Link {
    fn drop(&mut self) {
        self.channel = None;
        let Some(child) = &mut self.child else { return };
        if status(child).is_some() {
            return;
        }
        // It did not leave by itself; an error means that it has.
        let _ = child.kill();
        let _ = child.wait();
    }
}
