//! The servers that are asked.

use std::fmt::Debug;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kvferry_engine::bootstrap::{Bootstrap, Token, table};
use kvferry_engine::{Engine, Registry};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::http;
use crate::process;

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub listen: String,
    /// The token that it wants.
    pub token: Option<String>,
    /// How many workers it takes.
    pub workers: u32,
    /// How many connections.
    pub connections: usize,
    /// How long a request may take to arrive.
    pub read_timeout: Duration,
    /// How often addresses are tried.
    pub probe_every: Duration,
    /// After how long without a connection a worker is forgotten.
    pub forget_after: Duration,
}

impl Default for Options {
    /// Times are so long that nothing happens by them unless a test sets them.
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:0".into(),
            token: None,
            workers: 16_384,
            connections: 256,
            read_timeout: Duration::from_secs(60),
            probe_every: Duration::from_secs(3600),
            forget_after: Duration::from_secs(3600),
        }
    }
}

/// A server that runs until it is dropped.
pub trait Server: Debug {
    /// Where it is reached: `HOST:PORT`.
    fn address(&self) -> String;

    /// Asks until the table is as wanted.
    #[track_caller]
    fn await_table(&self, what: &str, wanted: &dyn Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let answer = http::query(&self.address());
            if answer.status == 200 && wanted(&answer.json()) {
                return answer.json();
            }
            assert!(began.elapsed() < PATIENCE, "never {what}: {answer:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Starts a server.
pub type Start<'a> = &'a dyn Fn(Options) -> Box<dyn Server>;

/// A server beside an engine in this process.
#[derive(Debug)]
pub struct Embedded(Engine);

impl Embedded {
    /// Starts an engine with a server.
    ///
    /// # Panics
    /// Where it does not start.
    #[must_use]
    pub fn start(options: Options) -> Box<dyn Server> {
        let mut bootstrap = Bootstrap::builder()
            .listen(options.listen)
            .limits(table::Limits { workers: options.workers, ..table::Limits::default() })
            .connections(options.connections)
            .read_timeout(options.read_timeout)
            .forget(options.probe_every, options.forget_after);
        if let Some(token) = options.token {
            bootstrap = bootstrap.token(Token::new(&token).expect("a token"));
        }
        let builder = Engine::builder(Registry::new()).listen("127.0.0.1:0").bootstrap(bootstrap);
        Box::new(Self(builder.start_blocking().expect("an engine")))
    }
}

impl Server for Embedded {
    fn address(&self) -> String {
        self.0.bootstrap_address().expect("it has one").to_string()
    }
}

/// `kvctl bootstrap serve`, a process. Killed when dropped.
#[derive(Debug)]
pub struct Spawned {
    child: Child,
    address: String,
}

impl Spawned {
    /// Starts the process, and waits until it says where it listens.
    ///
    /// # Panics
    /// Where it does not start.
    #[must_use]
    pub fn start(kvctl: PathBuf, options: Options) -> Self {
        let seconds = |time: Duration| time.as_secs_f64().to_string();
        let mut program = Command::new(kvctl);
        program
            .args(["bootstrap", "serve", "--listen", &options.listen])
            .args(["--max-workers", &options.workers.to_string()])
            .args(["--max-connections", &options.connections.to_string()])
            .args(["--read-timeout", &seconds(options.read_timeout)])
            .args(["--probe-every", &seconds(options.probe_every)])
            .args(["--forget-after", &seconds(options.forget_after)])
            .env("RUST_LOG", "error")
            .env_remove("KVFERRY_BOOTSTRAP_TOKEN");
        if let Some(token) = options.token {
            program.env("KVFERRY_BOOTSTRAP_TOKEN", token);
        }
        let mut child = program
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{program:?}: {error}"));
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("bootstrap server at http://");
        let address = address.unwrap_or_else(|| panic!("{line:?}")).to_owned();
        Self { child, address }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// Where it is gone.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    /// Stops it, and returns when it has stopped.
    pub fn stop(&self) {
        process::stop(self.pid());
    }

    /// Waits for its end. Returns its status, and how long that took.
    ///
    /// # Panics
    /// Where it does not end.
    pub fn wait(&mut self) -> (std::process::ExitStatus, Duration) {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it was started here") {
                return (status, began.elapsed());
            }
            assert!(began.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Server for Spawned {
    fn address(&self) -> String {
        self.address.clone()
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
