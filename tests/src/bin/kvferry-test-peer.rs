//! An engine that does what it is told on standard input, one JSON command a line, and answers on
//! standard output. It ends with its input.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use kvferry_engine::bootstrap::{self, Bootstrap};
use kvferry_engine::{
    Access, Engine, Grant, Incarnation, Layout, LayoutView, Memory, Pages, Peer, Region, Registry,
    RemoteGrant, RemoteLayout, RemoteSpans, Transfer,
};
use kvferry_tests::command::{Answer, Command, End, Farewell, Held, Move, Piece, Setup, View, Way};
use kvferry_tests::{own, pattern, process};
use rustix::fs::{MemfdFlags, memfd_create};

struct Host {
    registry: Registry,
    engine: Engine,
    cache: Option<Region>,
    layout: LayoutView,
    block_bytes: u64,
    peers: HashMap<String, Peer>,
    remotes: HashMap<String, RemoteLayout>,
    transfers: HashMap<String, Transfer>,
    grants: HashMap<String, Grant>,
    held: Option<bootstrap::Held>,
}

fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut host = None;
    for line in std::io::stdin().lock().lines() {
        let command = serde_json::from_str(&line?).context("reading a command")?;
        let answer = runtime.block_on(obey(&mut host, command)).unwrap_or_else(|error| {
            let known = error.downcast_ref::<kvferry_engine::Error>();
            Answer::Error {
                cause: known.map_or_else(|| "Other".into(), name),
                message: format!("{error:#}"),
                retryable: known.is_some_and(kvferry_engine::Error::is_retryable),
            }
        });
        let mut out = std::io::stdout().lock();
        serde_json::to_writer(&mut out, &answer)?;
        writeln!(out)?;
        out.flush()?;
    }
    Ok(())
}

/// The name of an error's variant.
fn name(error: &kvferry_engine::Error) -> String {
    let text = format!("{error:?}");
    text.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}

async fn obey(host: &mut Option<Host>, command: Command) -> Result<Answer> {
    if let Command::Start { setup, blocks, block_bytes, share } = command {
        let started = Host::start(&setup, blocks, block_bytes, share).await?;
        let engine = &started.engine;
        let answer = Answer::Started {
            address: engine.address().to_string(),
            lane_port: engine.lane_port(),
            incarnation: engine.incarnation().0,
            bootstrap: engine.bootstrap_address().map(ToString::to_string),
        };
        *host = Some(started);
        return Ok(answer);
    }
    match (command, host) {
        (Command::Status, host) => Ok(Answer::Held(held(host.as_ref())?)),
        (Command::Shutdown { patience_ms }, host) => {
            if let Some(host) = host.take() {
                host.engine.shutdown(Duration::from_millis(patience_ms));
            }
            Ok(Answer::Ok)
        }
        (Command::Drop { how }, host) => {
            host.take().context("not started")?.leave(how);
            Ok(Answer::Ok)
        }
        (command, host) => host.as_mut().ok_or_else(|| anyhow!("not started"))?.obey(command).await,
    }
}

impl Host {
    async fn start(setup: &Setup, blocks: u64, block_bytes: u64, share: bool) -> Result<Self> {
        let registry = Registry::new();
        let ms = Duration::from_millis;
        let mut builder = Engine::builder(registry.clone())
            .listen(setup.listen.clone().unwrap_or_else(|| "127.0.0.1:0".into()));
        builder = builder.transports(setup.transport.as_deref().unwrap_or("tcp").parse()?);
        if let Some(directory) = &setup.run_directory {
            builder = builder.run_directory(directory);
        }
        if let Some(devices) = &setup.rdma_devices {
            builder = builder.rdma(own::adapters(devices));
        }
        if let Some(address) = &setup.lane_advertise {
            builder = builder.lane_advertise(address);
        }
        builder = builder.bulk_lanes(setup.bulk_lanes.unwrap_or(1));
        if let Some(bytes) = setup.slice_bytes {
            builder = builder.slice_bytes(bytes);
        }
        if let Some((ping, dead)) = setup.liveness_ms {
            builder = builder.liveness(ms(ping), ms(dead));
        }
        if let Some(idle) = setup.idle_ms {
            builder = builder.idle_after(ms(idle));
        }
        if let Some(timeout) = setup.connect_ms {
            builder = builder.connect_timeout(ms(timeout));
        }
        if let Some(notifications) = setup.notifications {
            builder = builder.notifications(notifications);
        }
        if let Some(transfers) = setup.open_transfers {
            builder = builder.open_transfers(transfers);
        }
        if let Some(listen) = &setup.bootstrap {
            builder = builder.bootstrap(Bootstrap::builder().listen(listen));
        }
        let engine = builder.start().await?;
        let bytes = blocks * block_bytes;
        let cache = if setup.sparse {
            let file = File::from(memfd_create("kvferry-test", MemfdFlags::CLOEXEC)?);
            file.set_len(bytes)?;
            registry.register(Memory::map_file(file)?, Access::ReadWrite)?
        } else if setup.foreign {
            let memory = Memory::anonymous(usize::try_from(bytes)?, Pages::Small)?;
            registry.register(memory, Access::ReadWrite)?
        } else {
            registry.allocate(bytes)?
        };
        let layout =
            cache.layout(Layout { offset: 0, block_bytes, stride: block_bytes, count: blocks })?;
        layout.publish("cache")?;
        if share {
            cache.share(Access::ReadWrite)?;
        }
        Ok(Self {
            registry,
            engine,
            cache: Some(cache),
            layout,
            block_bytes,
            peers: HashMap::new(),
            remotes: HashMap::new(),
            transfers: HashMap::new(),
            grants: HashMap::new(),
            held: None,
        })
    }

    async fn obey(&mut self, command: Command) -> Result<Answer> {
        match command {
            Command::Fill { blocks, seed } => {
                let (start, length) = self.range(&blocks);
                pattern::fill(self.cache()?, start, length, seed, start)?;
            }
            Command::Check { blocks, seed } => return self.wrong(&blocks, seed).map(Answer::Wrong),
            Command::Put { pieces, seed } => {
                let cache = self.cache()?;
                for piece in pieces {
                    pattern::fill(cache, piece.offset, piece.length, seed, piece.source)?;
                }
            }
            Command::Look { pieces, seed } => {
                let cache = self.cache()?;
                let mut wrong = Vec::new();
                for (index, Piece { offset, length, source }) in (0..).zip(pieces) {
                    if pattern::first_wrong(cache, offset, length, seed, source)?.is_some() {
                        wrong.push(index);
                    }
                }
                return Ok(Answer::Wrong(wrong));
            }
            Command::Publish { name, view: View { offset, block_bytes, stride, count } } => {
                let layout = Layout { offset, block_bytes, stride, count };
                self.cache()?.layout(layout)?.publish(&name)?;
            }
            Command::Connect { address } => {
                let peer = self.engine.connect(&address).await?;
                self.remotes.insert(address.clone(), peer.layout("cache")?);
                self.peers.insert(address, peer);
            }
            Command::NotInPlace { address } => {
                let why = self.peer(&address)?.not_in_place();
                return Ok(Answer::Why(why.map(|why| why.to_string())));
            }
            Command::Lookup { address } => {
                let remote = self.peer(&address)?.layout("cache")?;
                self.remotes.insert(address, remote);
            }
            Command::Submit { name, what } => {
                let transfer = self.submit(&what)?;
                self.transfers.insert(name, transfer);
            }
            Command::Storm { with, threads, transfers } => self.storm(&with, threads, transfers)?,
            Command::Wait { name, patience_ms } => {
                let transfer = self.transfers.get_mut(&name).context("no such transfer")?;
                let patience = Duration::from_millis(patience_ms);
                let ended = tokio::time::timeout(patience, transfer).await;
                return Ok(Answer::End(match ended {
                    Ok(Ok(report)) => End::Done {
                        bytes: report.bytes,
                        repeated: report.repeated_slices,
                        transport: report.transport.into(),
                        by_reference: report.by_reference,
                    },
                    Ok(Err(error)) => End::Failed {
                        cause: self::name(&error.cause),
                        message: error.to_string(),
                        remote: error.remote.to_string(),
                        retryable: error.cause.is_retryable(),
                    },
                    Err(_) => End::Pending,
                }));
            }
            Command::Cancel { name } => {
                self.transfers.get(&name).context("no such transfer")?.cancel();
            }
            Command::Grant { name, blocks, peer, write, ttl_ms } => {
                let spans = blocks.map(|block| self.layout.block(block));
                let spans = spans.collect::<Result<Vec<_>, _>>()?;
                let access = if write { Access::Write } else { Access::Read };
                let ttl = Duration::from_millis(ttl_ms);
                let grant = self.engine.grant(spans, Incarnation(peer), access, ttl)?;
                let ticket = self.engine.ticket(&grant);
                self.grants.insert(name, grant);
                return Ok(Answer::Ticket(ticket));
            }
            Command::Revoke { name } => {
                self.grants.remove(&name).context("no such grant")?.revoke();
            }
            Command::Unregister { patience_ms } => {
                let cache = self.cache.take().context("no cache")?;
                let released = cache.unregister(Duration::from_millis(patience_ms));
                return Ok(Answer::Cut { transfers: released.cut.len() });
            }
            Command::NextNotification { patience_ms, seed } => {
                return self.next_notification(patience_ms, seed);
            }
            Command::Register { bootstrap, engine_id, tp_rank, lease_ms } => {
                let rank = bootstrap::Rank { tp: tp_rank, ..bootstrap::Rank::default() };
                let address = bootstrap::WorkerAddress::new(self.engine.address().clone())?;
                let registration = bootstrap::Registration {
                    incarnation: Some(self.engine.incarnation()),
                    lease: Some(Duration::from_millis(lease_ms)),
                    ..bootstrap::Registration::new(&engine_id, rank, address)
                };
                let held = bootstrap::Client::new(&bootstrap)?.hold(registration)?;
                held.wait(Duration::from_secs(10))?;
                self.held = Some(held);
            }
            Command::Registration => {
                self.held.as_ref().and_then(bootstrap::Held::state).context("no attempt yet")??;
            }
            Command::Start { .. }
            | Command::Status
            | Command::Shutdown { .. }
            | Command::Drop { .. } => {}
        }
        Ok(Answer::Ok)
    }

    fn cache(&self) -> Result<&Region> {
        self.cache.as_ref().context("no cache")
    }

    fn range(&self, blocks: &std::ops::Range<u32>) -> (u64, u64) {
        let (start, end) = (u64::from(blocks.start), u64::from(blocks.end));
        (start * self.block_bytes, (end - start) * self.block_bytes)
    }

    fn wrong(&self, blocks: &[(u32, u32)], seed: u64) -> Result<Vec<u32>> {
        let cache = self.cache()?;
        let mut wrong = Vec::new();
        for (block, source) in blocks {
            let (at, source) = (u64::from(*block), u64::from(*source));
            let (at, source) = (at * self.block_bytes, source * self.block_bytes);
            if pattern::first_wrong(cache, at, self.block_bytes, seed, source)?.is_some() {
                wrong.push(*block);
            }
        }
        Ok(wrong)
    }

    fn peer(&self, address: &str) -> Result<&Peer> {
        self.peers.get(address).context("not connected")
    }

    fn submit(&self, what: &Move) -> Result<Transfer> {
        let peer = self.peer(&what.with)?;
        let remote = self.remotes.get(&what.with).context("not looked up")?;
        let mut remote = RemoteSpans::from(remote.blocks(what.remote.iter().copied()));
        if let Some(ticket) = &what.ticket {
            remote = remote.under(&Arc::new(RemoteGrant::from_ticket(ticket)?));
        }
        let local = self.layout.blocks(what.local.iter().copied());
        let mut request = match what.way {
            Way::Push => peer.write(local, remote),
            Way::Pull => peer.read(remote, local),
        };
        if let Some(notification) = &what.notify {
            request = request.notify(notification);
        }
        if let Some(deadline) = what.deadline_ms {
            request = request.deadline(Duration::from_millis(deadline));
        }
        Ok(request.checksum(what.checksum).submit().map_err(|error| error.cause)?)
    }

    fn storm(&self, with: &str, threads: u32, transfers: u32) -> Result<()> {
        let (peer, layout) = (self.peer(with)?, &self.layout);
        let remote = self.remotes.get(with).context("not looked up")?;
        let push = |block: u32| -> Result<()> {
            for _ in 0..transfers / threads {
                peer.write(layout.blocks([block]), remote.blocks([block])).submit()?.wait()?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let pushing: Vec<_> =
                (0..threads).map(|block| scope.spawn(move || push(block))).collect();
            pushing.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })
    }

    fn leave(self, how: Farewell) {
        match how {
            Farewell::EngineFirst => drop(self),
            Farewell::EngineLast => {
                let Self { registry, engine, cache, layout, peers, transfers, grants, .. } = self;
                drop((transfers, grants, peers, layout, cache, registry, engine));
            }
            Farewell::Panic => {
                let owner = std::thread::spawn(move || {
                    let _owned = self;
                    // A panic that nobody need read about.
                    std::panic::resume_unwind(Box::new("as it was told"));
                });
                assert!(owner.join().is_err(), "it panicked");
            }
        }
    }

    fn next_notification(&self, patience_ms: u64, seed: Option<u64>) -> Result<Answer> {
        let patience = Duration::from_millis(patience_ms);
        let Some(notification) = self.engine.wait_notification(patience) else {
            return Ok(Answer::Nothing);
        };
        let text = String::from_utf8_lossy(&notification.bytes).into_owned();
        let mut wrong = Vec::new();
        if let Some(seed) = seed {
            let blocks = text
                .split_whitespace()
                .map(|pair| {
                    let (block, source) = pair.split_once(':').context("not a pair of blocks")?;
                    Ok((block.parse()?, source.parse()?))
                })
                .collect::<Result<Vec<_>>>()?;
            wrong = self.wrong(&blocks, seed)?;
        }
        Ok(Answer::Notification { text, from: notification.from.0, wrong })
    }
}

fn held(host: Option<&Host>) -> Result<Held> {
    let status = host.map(|host| host.engine.status());
    let registry = host.map(|host| &host.registry);
    let of_process = process::usage_of("self")?;
    Ok(Held {
        transfers: status.map_or(0, |status| status.open_transfers),
        lanes_opened: status.map_or(0, |status| status.lanes_opened),
        lanes_accepted: status.map_or(0, |status| status.lanes_accepted),
        regions: registry.map_or(0, Registry::region_count),
        grants: registry.map_or(0, Registry::grant_count),
        refused: status.map_or(0, |status| status.refused_requests),
        stale: host
            .map_or(0, |host| host.peers.values().map(|peer| peer.status().stale_answers).sum()),
        ..of_process
    })
}
