//! The target as the initiator sees it: a child process that is asked, and that may die.

use std::io::BufReader;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};

use crate::orders::{Answer, Order, hear, say};

/// The subcommand that makes this program a target.
pub(crate) const SUBCOMMAND: &str = "target";

/// How long the target may take to leave after its input has ended.
const PATIENCE: Duration = Duration::from_secs(5);

/// A running target. It ends with this handle, and with this process.
#[derive(Debug)]
pub(crate) struct TargetProcess {
    child: Child,
    /// `None` once it was told to leave.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl TargetProcess {
    /// Starts this program a second time.
    pub(crate) fn spawn() -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("finding this program's own file")?;
        let mut child = Command::new(&program)
            .arg(SUBCOMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {} as the target", program.display()))?;
        let orders = child.stdin.take();
        let answers = child.stdout.take().context("the target has no standard output")?;
        Ok(Self { child, orders, answers: BufReader::new(answers) })
    }

    /// Gives an order and returns its answer.
    pub(crate) fn ask(&mut self, order: &Order) -> anyhow::Result<Answer> {
        self.order(order)?;
        self.answer()
    }

    /// Gives an order that is answered with `Done`.
    pub(crate) fn tell(&mut self, order: &Order) -> anyhow::Result<()> {
        match self.ask(order)? {
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
        let said = match &mut self.orders {
            Some(orders) => say(orders, order),
            None => bail!("the target was told to leave"),
        };
        said.map_err(|error| self.explain(error))
    }

    /// The next answer.
    pub(crate) fn answer(&mut self) -> anyhow::Result<Answer> {
        match hear(&mut self.answers) {
            Ok(Some(Answer::Failed { error })) => bail!("the target process failed: {error}"),
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(self.explain(anyhow!("it closed its output"))),
            Err(error) => Err(self.explain(error)),
        }
    }

    /// Adds to an error what became of the process, if it has ended or is about to.
    pub(crate) fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        // A process whose pipe or connection broke may not be gone yet.
        thread::sleep(Duration::from_millis(50));
        let Ok(Some(status)) = self.child.try_wait() else { return error };
        while let Ok(Some(answer)) = hear(&mut self.answers) {
            if let Answer::Failed { error: reason } = answer {
                return error.context(format!("the target process failed: {reason}"));
            }
        }
        error.context(format!(
            "the target process ended early ({status}); what it had to say stands above"
        ))
    }
}

/// An answer to another question.
pub(crate) fn unexpected(answer: &Answer) -> anyhow::Error {
    anyhow!("the target process gave an unexpected answer: {answer:?}")
}

impl Drop for TargetProcess {
    fn drop(&mut self) {
        self.orders = None;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(2)),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        // It did not leave by itself; an error means that it has.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
