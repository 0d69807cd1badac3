//! Memory that is registered with one adapter, found by address.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use parking_lot::RwLock;

use crate::memory::Memory;
use crate::rdma::verbs::{
    Context, MemoryRegion, ProtectionDomain, RemoteAddress, Rights, VerbsError,
};

/// The longest part that is registered by one call: parts of a longer memory are registered side by
/// side, since each takes the time that locking its pages takes.
const PART_BYTES: u64 = 8 << 30;

/// How many threads register parts of one memory.
const THREADS: usize = 4;

/// What peers may do with it: read it. Nobody but this process stores into it, whatever keys it has.
/// Its own reads may arrive in any order, since nothing is said of them before they are complete.
const RIGHTS: Rights = Rights { read: true, write: false, relaxed_ordering: true };

/// Memory of this process that one adapter reaches.
#[derive(Debug)]
pub struct Registered {
    domain: ProtectionDomain,
    part_bytes: u64,
    /// By the address of its first byte.
    parts: RwLock<BTreeMap<u64, Arc<MemoryRegion>>>,
}

/// A part of some memory, and how peers name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where it starts, in bytes from the memory's start.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// How a peer names its first byte.
    pub remote: RemoteAddress,
}

impl Registered {
    /// Nothing yet, of an adapter that is open.
    ///
    /// # Errors
    /// Where the adapter has no more domains.
    pub fn new(context: &Context) -> Result<Self, VerbsError> {
        let most = context.limits().region_bytes.min(PART_BYTES);
        // Whole huge pages where the adapter takes as much, so that no page is locked twice.
        let part_bytes = if most >= 2 << 20 { most & !((2 << 20) - 1) } else { most.max(1) };
        let domain = ProtectionDomain::new(context)?;
        Ok(Self { domain, part_bytes, parts: RwLock::default() })
    }

    /// What queue pairs have to be of, to reach it.
    #[must_use]
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Registers all of some memory, which takes about 0.3 s a GiB for pages that are to be locked.
    ///
    /// # Errors
    /// What the adapter says of a part; none is registered then.
    pub fn register(&self, memory: &Memory) -> Result<(), VerbsError> {
        let starts = (0..memory.length()).step_by(usize::try_from(self.part_bytes).unwrap_or(1));
        let starts: Vec<u64> = starts.collect();
        let register = |start: &u64| {
            let bytes = self.part_bytes.min(memory.length() - start);
            self.domain.register(memory, *start, bytes, RIGHTS)
        };
        let made: Result<Vec<MemoryRegion>, VerbsError> = if let [start] = starts[..] {
            register(&start).map(|part| vec![part])
        } else {
            let share = starts.len().div_ceil(THREADS).max(1);
            thread::scope(|scope| {
                let shares = starts.chunks(share);
                let shares: Vec<_> = shares
                    .map(|starts| {
                        scope.spawn(move || {
                            starts.iter().map(register).collect::<Result<Vec<_>, _>>()
                        })
                    })
                    .collect();
                let made = shares.into_iter().map(|share| match share.join() {
                    Ok(made) => made,
                    Err(panic) => std::panic::resume_unwind(panic),
                });
                made.collect::<Result<Vec<_>, _>>().map(|made| made.into_iter().flatten().collect())
            })
        };
        let made = made?;
        let mut parts = self.parts.write();
        for part in made {
            parts.insert(start_of(&part), Arc::new(part));
        }
        Ok(())
    }

    /// Gives the registrations of the memory at these addresses back. What is under way from or to
    /// it ends with an error; what a [`Fetcher`](super::Fetcher) has posted keeps its own until that
    /// is over.
    pub fn withdraw(&self, base: u64, length: u64) {
        let gone: Vec<_> = {
            let mut parts = self.parts.write();
            let starts: Vec<u64> =
                parts.range(base..base + length).map(|(start, _)| *start).collect();
            starts.iter().filter_map(|start| parts.remove(start)).collect()
        };
        // Outside the lock: it takes a while for large ones.
        drop(gone);
    }

    /// What peers are told of the memory at these addresses; nothing where not all of it is
    /// registered.
    #[must_use]
    pub fn parts(&self, base: u64, length: u64) -> Vec<Part> {
        let parts = self.parts.read();
        let told: Vec<Part> = parts
            .range(base..base + length)
            .map(|(start, part)| Part {
                offset: start - base,
                bytes: part.bytes(),
                remote: part.address_of(part.offset()),
            })
            .collect();
        if told.iter().map(|part| part.bytes).sum::<u64>() == length { told } else { Vec::new() }
    }

    /// The part that an address lies in.
    pub(super) fn find(&self, address: u64) -> Option<Arc<MemoryRegion>> {
        let parts = self.parts.read();
        let (start, part) = parts.range(..=address).next_back()?;
        (address - start < part.bytes()).then(|| part.clone())
    }
}

/// The address of a part's first byte.
pub(super) fn start_of(part: &MemoryRegion) -> u64 {
    part.address_of(part.offset()).address
}
