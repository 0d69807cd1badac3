//! One client: from its hello to its end, however that comes.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::{Context, ensure};
use kvferry_engine::RdmaCounts;

use super::rank::{Rank, check};
use crate::control::{Answer, Channel, ChannelError, Hello, Order, hello};
use crate::floor::{Connections, Job, Perftest};
use crate::matrix::MOST_RANKS;
use crate::measure::cpu_spent;
use crate::memory;
use crate::shape::End;
use crate::side::{Setup, Side};

/// How long a client may take to say hello, and to read an answer.
const MANNERS: Duration = Duration::from_secs(5);

const NOT_MET: &str = "an order to a rank that has not met the others";

/// What a client may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The largest region, if it was set; the memory that is free bounds it in any case.
    pub(crate) memory_bytes: Option<u64>,
    /// How long it may give no order, beyond the time that its own work on its region takes.
    pub(crate) silence: Duration,
}

/// Hears a hello and answers it. Anything else is refused.
pub(super) fn greet(channel: &mut Channel) -> anyhow::Result<()> {
    let theirs: Hello = channel.hear(MANNERS).context("no hello")?;
    let checked = theirs.check();
    let answer = match &checked {
        Ok(()) => Answer::Welcome(hello()),
        Err(error) => Answer::Failed { error: error.to_string() },
    };
    channel.say(&answer, MANNERS)?;
    Ok(checked?)
}

/// Greets a client and obeys it until it leaves. What went wrong is told to it.
pub(super) fn serve(mut channel: Channel, host: IpAddr, limits: Limits) -> anyhow::Result<()> {
    greet(&mut channel)?;
    obey(&mut channel, host, limits)
}

/// Does as it is told until the client leaves. What went wrong is told to it.
pub(super) fn obey(channel: &mut Channel, host: IpAddr, limits: Limits) -> anyhow::Result<()> {
    let served = orders(channel, host, limits);
    if let Err(error) = &served {
        // The client reports it; if it is gone there is nobody to tell.
        let _ = channel.say(&Answer::Failed { error: format!("{error:#}") }, MANNERS);
    }
    served
}

fn orders(channel: &mut Channel, host: IpAddr, limits: Limits) -> anyhow::Result<()> {
    let setup = match next(channel, limits.silence)? {
        Some(Order::Start(setup)) => setup,
        Some(other) => anyhow::bail!("an order before the start: {other:?}"),
        None => return Ok(()),
    };
    let mut target = Target::start(host, setup, limits)?;
    channel.say(&target.started()?, MANNERS)?;
    // Meanwhile the client may fill or check as much.
    let silence = limits.silence + memory::touching(setup.region_bytes);
    while let Some(order) = next(channel, silence)? {
        let answer = match order {
            Order::Floor(job) => target.run_floor(&job, channel)?,
            other => target.answer(other)?,
        };
        channel.say(&answer, MANNERS)?;
    }
    Ok(())
}

/// The next order; `None` when the client has left.
fn next(channel: &mut Channel, silence: Duration) -> anyhow::Result<Option<Order>> {
    match channel.hear(silence) {
        Ok(order) => Ok(Some(order)),
        Err(ChannelError::Closed) => Ok(None),
        Err(error) => Err(error).context("no order"),
    }
}

struct Target {
    side: Side,
    listener: TcpListener,
    token: u64,
    connections: Connections,
    rank: Option<Rank>,
    perftest: Option<Perftest>,
}

impl Target {
    fn start(host: IpAddr, setup: Setup, limits: Limits) -> anyhow::Result<Self> {
        memory::ensure_room(setup.region_bytes, limits.memory_bytes)?;
        let side = Side::start(End::Target, setup, host)?;
        let listener = TcpListener::bind(SocketAddr::new(host, 0))
            .context("listening for the floor's connections")?;
        let token = getrandom::u64().context("drawing the floor's token")?;
        let connections = Connections::default();
        Ok(Self { side, listener, token, connections, rank: None, perftest: None })
    }

    fn started(&self) -> anyhow::Result<Answer> {
        Ok(Answer::Started {
            engine_port: self.side.engine().address().port(),
            page_bytes: self.side.region().page_bytes(),
            floor_port: self.listener.local_addr()?.port(),
            floor_token: self.token,
        })
    }

    fn answer(&mut self, order: Order) -> anyhow::Result<Answer> {
        Ok(match order {
            Order::Start(_) | Order::Floor(_) => anyhow::bail!("an order out of turn: {order:?}"),
            Order::Place { name, part, shape } => {
                self.side.place(part, shape)?;
                self.side.publish(part, &name)?;
                Answer::Done
            }
            Order::Fill { part, round } => {
                self.side.fill(part, round)?;
                Answer::Done
            }
            Order::Verify { part, round } => {
                Answer::Verified { mismatch: self.side.verify(part, round)? }
            }
            Order::Cpu => cpu_answer()?,
            Order::Work => {
                let RdmaCounts { requests, doorbells, completions, armed } =
                    self.side.engine().status().rdma;
                Answer::Work { requests, doorbells, completions, armed }
            }
            Order::Perftest(messages) => {
                // One that is left over ends first.
                self.perftest = None;
                let server = Perftest::start(messages)?;
                let port = server.port;
                self.perftest = Some(server);
                Answer::Listening { port }
            }
            Order::PerftestOver => {
                self.perftest.take().context("no run of perftest was begun")?.finish()?;
                Answer::Done
            }
            Order::Accept { count } => {
                self.connections.accept(&self.listener, self.token, count)?;
                Answer::Done
            }
            Order::Meet { ports } => {
                ensure!(ports.len() <= MOST_RANKS, "at most {MOST_RANKS} ranks can be");
                self.rank = Some(Rank::meet(&self.side, &ports)?);
                Answer::Done
            }
            Order::Prepare { round, cells } => {
                let rank = self.rank.as_mut().context(NOT_MET)?;
                rank.prepare(&self.side, round, &cells)?;
                Answer::Done
            }
            Order::Go => {
                let rank = self.rank.as_mut().context(NOT_MET)?;
                Answer::Moved { nanoseconds: rank.go()? }
            }
            Order::Check { round, cells } => {
                Answer::Verified { mismatch: check(&self.side, round, &cells)? }
            }
        })
    }

    /// The answer that ends the run; the one that starts it is said on the way.
    fn run_floor(&mut self, job: &Job, channel: &mut Channel) -> anyhow::Result<Answer> {
        let placement = self.side.placement(job.part)?;
        let workers = self.connections.workers(job, self.side.region(), placement)?;
        let mut armed = Ok(());
        crate::floor::take_part(workers, job.op, || {
            armed = cpu_answer().and_then(|answer| Ok(channel.say(&answer, MANNERS)?));
        })?;
        armed?;
        cpu_answer()
    }
}

fn cpu_answer() -> anyhow::Result<Answer> {
    Ok(Answer::Cpu { nanoseconds: u64::try_from(cpu_spent().as_nanos())? })
}
