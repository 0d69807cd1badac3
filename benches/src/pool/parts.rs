//! The other processes of a pool: its master, and those who lend. Each says a line when it is ready,
//! and ends when its standard input does: with this process, whatever becomes of that.

use std::io::{BufRead as _, BufReader, Read as _, Write as _, stdin, stdout};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use kv_master::server::{Listen, Master};
use kv_master::state::Settings;
use kvferry_engine::{Access, Engine, Layout, Registry};
use kvferry_store::Store;

use crate::cli::{PoolPart, Transport};
use crate::memory::ensure_room;

/// For how long a batch may be read, as slow as machines are.
pub(super) const LEASE: Duration = Duration::from_secs(5);

/// What a lender's memory for raw transfers is called.
pub(super) const RAW: &str = "raw";

/// A process that was started here. It ends with this.
#[derive(Debug)]
pub(super) struct Part {
    child: Child,
    /// Closed to have it end.
    stdin: Option<ChildStdin>,
    /// Where it is reached.
    pub(super) address: String,
}

impl Part {
    fn start(arguments: &[String]) -> anyhow::Result<Self> {
        let this = std::env::current_exe().context("finding this program")?;
        let mut child = Command::new(this)
            .arg(crate::cli::POOL_PART)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a process of the pool")?;
        let stdin = child.stdin.take();
        let mut address = String::new();
        let said = child.stdout.take().context("its output is not piped")?;
        let mut part = Self { child, stdin, address: String::new() };
        BufReader::new(said).read_line(&mut address)?;
        part.address = address.trim_end().to_owned();
        ensure!(!part.address.is_empty(), "{} did not start: see above", arguments.join(" "));
        Ok(part)
    }

    /// Starts a master.
    pub(super) fn master() -> anyhow::Result<Self> {
        Self::start(&["master".into()])
    }

    /// Starts a process that lends, and has as much memory that is not lent.
    pub(super) fn lender(
        master: &str,
        name: &str,
        lend: u64,
        raw: u64,
        transport: Transport,
    ) -> anyhow::Result<Self> {
        let transport = clap::ValueEnum::to_possible_value(&transport);
        let transport = transport.context("a transport without a name")?;
        let arguments = ["lender", master, name, &lend.to_string(), &raw.to_string()];
        let mut arguments = arguments.map(str::to_owned).to_vec();
        arguments.push(transport.get_name().to_owned());
        Self::start(&arguments)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

/// Is such a process.
pub(crate) fn be(part: &PoolPart) -> anyhow::Result<()> {
    match part {
        PoolPart::Master => {
            let local = || ("127.0.0.1".to_owned(), 0);
            let listen =
                Listen { clients: local(), heartbeat_port: 0, metrics: local(), metadata: None };
            // Nobody was there before: there is nothing to be told. What was removed is free again
            // when the leases of its readers are over.
            let settings =
                Settings { recovery: Duration::ZERO, read_lease: LEASE, ..Settings::default() };
            let workers = std::thread::available_parallelism().map_or(1, usize::from);
            let master = Master::start(settings, &listen, workers)?;
            ready(&master.addresses().clients.to_string())
        }
        PoolPart::Lender { master, name, lend, raw, transport } => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            ensure_room(lend + raw, None)?;
            let registry = Registry::new();
            let memory = registry.allocate(*raw)?;
            memory.share(Access::ReadWrite)?;
            let layout = Layout { offset: 0, block_bytes: *raw, stride: *raw, count: 1 };
            let layout = memory.layout(layout)?;
            layout.publish(RAW)?;
            let engine = Engine::builder(registry)
                .listen("127.0.0.1:0")
                .transports(transport.setting())
                .start_blocking()?;
            let engine = Arc::new(engine);
            let store = runtime.block_on(async {
                let store = Store::builder(engine.clone(), master).host(name).start().await?;
                store.lend(*lend, name)?.mounted().await?;
                anyhow::Ok(store)
            })?;
            ready(&engine.address().to_string())?;
            drop(store);
            Ok(())
        }
    }
}

/// Says where it is reached, and returns when nobody needs it any more.
fn ready(address: &str) -> anyhow::Result<()> {
    let mut stdout = stdout();
    writeln!(stdout, "{address}")?;
    stdout.flush()?;
    let mut rest = Vec::new();
    stdin().read_to_end(&mut rest)?;
    Ok(())
}
