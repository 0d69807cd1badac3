//! One end of a queue pair, with memory, as tests of the verbs use it: two of them in two processes.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use kvferry_proto::frame::PairAddress;
use kvferry_transport::memory::Memory;
use kvferry_transport::rdma::device::{DeviceName, Gid, GidIndex, Lid, PKeyIndex, PortNumber};
use kvferry_transport::rdma::verbs::{
    Address, Capacity, Completion, CompletionQueue, Context, LocalSpan, MemoryRegion, Mtu, Outcome,
    ProtectionDomain, QueuePair, RemoteAddress, Rights, Route, Status, Unconnected, Verbs,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

/// How long anything may take that is to happen: the guest that these tests run in is emulated.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What a queue pair of these tests has room for.
pub const CAPACITY: Capacity =
    Capacity { requests: 64, announcements: 16, spans: 4, inline_bytes: 32 };

/// The number of the first announcement that is expected; requests have smaller ones.
const FIRST_EXPECTED: u64 = 1000;

const PORT: PortNumber = PortNumber(1);

/// How an address of IPv4 begins, as a global identifier.
const IPV4: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// How many global identifiers are looked at.
const GIDS: u16 = 16;

/// A device, memory that is registered with it, and a queue pair that has no peer yet.
#[derive(Debug)]
pub struct Side {
    /// The device.
    pub context: Context,
    /// To which everything belongs.
    pub domain: ProtectionDomain,
    /// Where everything completes.
    pub queue: CompletionQueue,
    /// The memory.
    pub memory: Memory,
    /// All of it, registered for everybody.
    pub region: MemoryRegion,
}

/// What one end tells the other.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Offer {
    number: u32,
    first_packet: u32,
    gid: [u8; 16],
    lid: u16,
    mtu_bytes: u32,
    reads: u8,
    /// Where its memory starts.
    pub address: u64,
    /// The key to it.
    pub key: u32,
}

impl Side {
    /// Opens a device and registers `bytes` bytes.
    ///
    /// # Errors
    /// What the verbs say.
    pub fn open(device: &str, bytes: usize) -> anyhow::Result<Self> {
        let context = Verbs::load()?.open(&DeviceName::new(device))?;
        let domain = ProtectionDomain::new(&context)?;
        let queue =
            CompletionQueue::new(&context, 4 * (CAPACITY.requests + CAPACITY.announcements))?;
        let memory = Memory::allocate(bytes)?;
        let rights = Rights { read: true, write: true, relaxed_ordering: true };
        let region = domain.register(&memory, 0, memory.length(), rights)?;
        Ok(Self { context, domain, queue, memory, region })
    }

    /// A queue pair that expects as many announcements as it has room for.
    ///
    /// # Errors
    /// What the verbs say.
    pub fn pair(&self) -> anyhow::Result<Unconnected> {
        // In the guest the default partition key is first.
        let route = Route { port: PORT, gid: self.gid()?, pkey: PKeyIndex(0) };
        let pair = Unconnected::new(&self.domain, &self.queue, route, CAPACITY, 4711)?;
        let ids: Vec<u64> = (FIRST_EXPECTED..).take(CAPACITY.announcements as usize).collect();
        pair.expect(&ids)?;
        Ok(pair)
    }

    /// Where the routable address is: second, until it is taken away and given again.
    fn gid(&self) -> anyhow::Result<GidIndex> {
        let is_routable = |index: &u16| {
            let gid = self.context.gid(PORT, GidIndex(*index));
            gid.is_ok_and(|gid| gid.0.starts_with(&IPV4))
        };
        let found = (0..GIDS).find(is_routable).context("the adapter has no address of IPv4")?;
        Ok(GidIndex(found))
    }

    /// What the other end needs to know of it.
    #[must_use]
    pub fn offer(&self, pair: &Unconnected) -> Offer {
        let Address { number, first_packet, gid, lid, mtu, reads } = pair.address();
        let RemoteAddress { address, key } = self.region.address_of(0);
        let (gid, lid, mtu_bytes) = (gid.0, lid.0, mtu.bytes());
        Offer { number, first_packet, gid, lid, mtu_bytes, reads, address, key }
    }

    /// A span of the memory.
    #[must_use]
    pub fn span(&self, offset: u64, bytes: u32) -> LocalSpan<'_> {
        LocalSpan { region: &self.region, offset, bytes }
    }

    /// Waits for completions, asleep, until there are `count`. Of a queue pair that has failed, what
    /// is expected in vain does not count.
    ///
    /// # Errors
    /// Where they do not come, with those that did.
    pub fn completions(&self, count: usize) -> anyhow::Result<Vec<Completion>> {
        let deadline = Instant::now() + PATIENCE;
        let mut found = Vec::new();
        loop {
            self.queue.arm()?;
            self.queue.poll(&mut found, usize::MAX)?;
            found.retain(|end| !is_in_vain(end));
            if found.len() >= count {
                return Ok(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "only these of {count} came: {found:?}");
            let left = Timespec::try_from(left)?;
            poll(&mut [PollFd::new(&self.queue, PollFlags::IN)], Some(&left))?;
            self.queue.take_wakeup()?;
        }
    }
}

fn is_in_vain(end: &Completion) -> bool {
    end.id >= FIRST_EXPECTED
        && matches!(end.outcome, Outcome::Failed { status: Status::Flushed, .. })
}

impl Offer {
    /// As it is told behind a hello, to be connected to the target's first port.
    #[must_use]
    pub fn on_the_wire(&self) -> PairAddress {
        let Self { number, first_packet, gid, lid, mtu_bytes, reads, .. } = *self;
        PairAddress { number, first_packet, gid, lid, port: 0, mtu_bytes, reads: reads.max(1) }
    }

    /// What was told so, of a queue pair whose peer needs no memory of it.
    #[must_use]
    pub fn of_wire(told: &PairAddress) -> Self {
        let PairAddress { number, first_packet, gid, lid, mtu_bytes, reads, .. } = *told;
        Self { number, first_packet, gid, lid, mtu_bytes, reads, address: 0, key: 0 }
    }

    /// Connects a queue pair to the one that this is of.
    ///
    /// # Errors
    /// What the verbs say.
    pub fn connect(&self, pair: Unconnected) -> anyhow::Result<QueuePair> {
        let Self { number, first_packet, gid, lid, reads, .. } = *self;
        let mtu = Mtu::of_bytes(self.mtu_bytes).context("a payload that no packet has")?;
        let peer = Address { number, first_packet, gid: Gid(gid), lid: Lid(lid), mtu, reads };
        Ok(pair.connect(&peer)?)
    }

    /// A place in its memory.
    #[must_use]
    pub fn at(&self, offset: u64) -> RemoteAddress {
        RemoteAddress { address: self.address + offset, key: self.key }
    }
}

/// The other process: opens `device`, fills `bytes` bytes with `fill`, says what its end is, and does
/// what it is told, line by line: an offer is connected to, `announced N` waits for N announcements
/// and says their words, `read OFFSET BYTES` says what is in its memory.
///
/// # Errors
/// What it was told and could not do.
pub fn serve(device: &str, bytes: usize, fill: u8) -> anyhow::Result<()> {
    let side = Side::open(device, bytes)?;
    side.memory.copy_in(0, &vec![fill; bytes])?;
    let mut waiting = vec![side.pair()?];
    let mut connected = Vec::new();
    say(&side.offer(&waiting[0]))?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["announced", count] => {
                let done = side.completions(count.parse()?)?;
                say(&done.iter().map(|end| format!("{:?}", end.outcome)).collect::<Vec<_>>())?;
            }
            ["read", offset, bytes] => {
                let mut content = vec![0; bytes.parse()?];
                side.memory.copy_out(offset.parse()?, &mut content)?;
                say(&content)?;
            }
            // A further queue pair, for whoever has broken the last.
            ["again"] => {
                waiting.push(side.pair()?);
                say(&side.offer(&waiting[waiting.len() - 1]))?;
            }
            _ => {
                let offer: Offer = serde_json::from_str(&line).context("neither word nor offer")?;
                let Some(pair) = waiting.pop() else { bail!("nothing is left to connect") };
                connected.push(offer.connect(pair)?);
                say(&"connected")?;
            }
        }
    }
    Ok(())
}

fn say(what: &impl Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, what)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}
