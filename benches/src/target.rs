//! The other process: it does as it is told until its standard input ends, which it does when the
//! initiator is gone, however it went.

use std::io::{self, BufRead, Write};
use std::net::{Ipv4Addr, TcpListener};

use anyhow::Context;

use crate::floor::{Connections, Job};
use crate::measure::cpu_spent;
use crate::orders::{Answer, Order, hear, say};
use crate::shape::End;
use crate::side::{Setup, Side};

/// Serves orders from standard input.
pub(crate) fn serve() -> anyhow::Result<()> {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let served = obey(&mut input, &mut output);
    if let Err(error) = &served {
        // The initiator reports it; if it is gone there is nobody to tell.
        let _ = say(&mut output, &Answer::Failed { error: format!("{error:#}") });
    }
    // Both have said what went wrong by now.
    Ok(())
}

struct Target {
    side: Side,
    listener: TcpListener,
    connections: Connections,
}

fn obey(input: &mut impl BufRead, output: &mut impl Write) -> anyhow::Result<()> {
    let Some(Order::Start(setup)) = hear(input)? else { return Ok(()) };
    let mut target = Target::start(setup)?;
    say(output, &target.started()?)?;
    while let Some(order) = hear(input)? {
        let answer = match order {
            Order::Floor(job) => target.run_floor(&job, output)?,
            other => target.answer(other)?,
        };
        say(output, &answer)?;
    }
    Ok(())
}

impl Target {
    fn start(setup: Setup) -> anyhow::Result<Self> {
        let side = Side::start(End::Target, setup)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .context("listening for the floor's connections")?;
        Ok(Self { side, listener, connections: Connections::default() })
    }

    fn started(&self) -> anyhow::Result<Answer> {
        Ok(Answer::Started {
            address: self.side.engine().address().to_string(),
            page_bytes: self.side.region().page_bytes(),
            floor_port: self.listener.local_addr()?.port(),
        })
    }

    fn answer(&mut self, order: Order) -> anyhow::Result<Answer> {
        Ok(match order {
            Order::Start(_) | Order::Floor(_) => anyhow::bail!("an order out of turn: {order:?}"),
            Order::Place { name, shape } => {
                self.side.place(shape)?;
                self.side.publish(&name)?;
                Answer::Done
            }
            Order::Fill { round } => {
                self.side.fill(round)?;
                Answer::Done
            }
            Order::Verify { round } => Answer::Verified { mismatch: self.side.verify(round)? },
            Order::Cpu => cpu_answer()?,
            Order::Accept { ports } => {
                self.connections.accept(&self.listener, &ports)?;
                Answer::Done
            }
        })
    }

    /// The answer that ends the run; the one that starts it is written on the way.
    fn run_floor(&mut self, job: &Job, output: &mut impl Write) -> anyhow::Result<Answer> {
        let workers = self.connections.workers(job, self.side.region(), self.side.placement())?;
        let mut armed = Ok(());
        crate::floor::take_part(workers, job.op, || {
            armed = cpu_answer().and_then(|answer| say(output, &answer));
        })?;
        armed?;
        cpu_answer()
    }
}

fn cpu_answer() -> anyhow::Result<Answer> {
    Ok(Answer::Cpu { nanoseconds: u64::try_from(cpu_spent().as_nanos())? })
}
