//! The processes of a pool: `kvferry-test-pool`, which is a `kv-master`, a `kvctl` or a client.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use kvferry_engine::Transports;
use rustix::process::{Pid, Signal, kill_process};

use super::Client;
use crate::process::{beside, run_directory};
use crate::proxy::Proxy;

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process of a pool. Killed when dropped.
#[derive(Debug)]
pub struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Program {
    /// Starts one with these arguments.
    #[must_use]
    pub fn start<Argument: AsRef<OsStr>>(arguments: impl IntoIterator<Item = Argument>) -> Self {
        Self::spawn(arguments, Stdio::inherit(), None)
    }

    fn spawn<Argument: AsRef<OsStr>>(
        arguments: impl IntoIterator<Item = Argument>,
        stderr: Stdio,
        log: Option<&str>,
    ) -> Self {
        let mut command = Command::new(beside("kvferry-test-pool"));
        command.args(arguments).env("KVFERRY_RUN_DIR", run_directory()).env("NO_COLOR", "1");
        // What the test was told to show, or nothing but what is wrong.
        let wanted = std::env::var("RUST_LOG").unwrap_or_else(|_| "error".into());
        command.env("RUST_LOG", log.unwrap_or(&wanted));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().expect("the program is built with the tests");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, stdin, stdout }
    }

    /// The next line that it says; empty where it says no more.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("its output is text");
        line.trim_end().to_owned()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("it has a number"), signal).expect("it has not been waited for");
    }

    /// Ends it at once, as `kill -9` does.
    pub fn kill(mut self) {
        self.child.kill().expect("it has not been waited for");
        self.child.wait().expect("it is a child");
    }

    /// Closes its input, which ends a client.
    pub fn close(&mut self) {
        self.stdin = None;
    }

    /// Waits until it ends by itself.
    pub fn wait(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is a child") {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A `kv-master`.
#[derive(Debug)]
pub struct Master {
    /// The process.
    pub program: Program,
    /// Where clients reach it.
    pub address: String,
}

impl Master {
    /// Starts one on any free port, with these flags besides. It is the pool's first: nobody has
    /// anything to tell it, so it does not wait for that.
    #[must_use]
    pub fn start(flags: &[&str]) -> Self {
        let mut all = vec!["--recovery-window-ms=0"];
        all.extend(flags);
        Self::start_at("0", &all)
    }

    fn start_at(port: &str, flags: &[&str]) -> Self {
        let port = format!("--port={port}");
        let mut arguments = vec!["master", &port, "--rpc-address=127.0.0.1"];
        arguments.extend(["--metrics-port=0", "--metrics-host=127.0.0.1"]);
        arguments.extend(flags);
        // Its log says where it is.
        let mut program = Program::spawn(&arguments, Stdio::piped(), Some("info"));
        let log = program.child.stderr.take().expect("it is piped");
        let address = read_address(log);
        Self { program, address }
    }

    /// Kills it, and starts another with nothing on its port: after as long as `kv-master` waits
    /// unless told otherwise it takes it that all owners have said what they have.
    #[must_use]
    pub fn reborn(self, flags: &[&str]) -> Self {
        let (_, port) = self.address.rsplit_once(':').expect("an address ends with a port");
        self.program.kill();
        Self::start_at(port, flags)
    }

    /// Starts one that lends, and waits until its memory is in the pool.
    #[must_use]
    pub fn lender(&self, name: &str, size: &str, flags: &[&str]) -> Program {
        self.lend(name, size, flags).0
    }

    /// Starts one that lends, whose connections for bytes go through a relay.
    #[must_use]
    pub fn lender_behind(&self, proxy: &Proxy, name: &str, size: &str, flags: &[&str]) -> Program {
        let address = proxy.address();
        let mut all = vec!["--lane-advertise", &address];
        all.extend(flags);
        let (program, said) = self.lend(name, size, &all);
        let (_, rest) = said.split_once("lanes at port ").expect("it says where");
        let (port, _) = rest.split_once(',').expect("the master follows");
        proxy.lead_to(port.parse().expect("a port is a number"));
        program
    }

    fn lend(&self, name: &str, size: &str, flags: &[&str]) -> (Program, String) {
        let mut arguments = vec!["store", "serve", "--listen", "127.0.0.1:0"];
        arguments.extend(["--master", &self.address, "--lend", size]);
        arguments.extend(["--name", name, "--host", name]);
        arguments.extend(flags);
        let mut program = Program::start(&arguments);
        let (first, second) = (program.line(), program.line());
        assert!(first.starts_with("store of host ") && second.contains(" lent as "), "{second}");
        (program, first)
    }

    /// A client in this process, whose bytes go by what is best.
    pub async fn client(&self, host: &str, bytes: u64) -> Client {
        Client::start(&self.address, host, bytes, Transports::Auto).await
    }
}

/// Reads in a master's log where clients reach it, and reads on, so that it never blocks.
fn read_address(log: ChildStderr) -> String {
    let mut log = BufReader::new(log);
    let mut line = String::new();
    while !line.contains("master started") {
        line.clear();
        assert_ne!(log.read_line(&mut line).expect("a log is text"), 0, "it does not start");
    }
    let (_, rest) = line.split_once("clients=").expect("it says where");
    let address = rest.split(' ').next().expect("there is one").to_owned();
    std::thread::spawn(move || {
        if std::env::var_os("RUST_LOG").is_some() {
            io::copy(&mut log, &mut io::stderr())
        } else {
            io::copy(&mut log.by_ref(), &mut io::sink())
        }
    });
    address
}
