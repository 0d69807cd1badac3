//! A registered range: references, who uses it, and how it is given back.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use kvferry_proto::message::{Location, RegionDescription, StandingGrant};
use kvferry_proto::{Access, GrantId, RegionId, TransferId};
use kvferry_transport::memory::{self, Memory};
use parking_lot::{Condvar, Mutex, RwLock};

use super::layout::{Layout, LayoutView};
use super::span::Span;
use super::{GrantInner, Registry};
use crate::error::Error;
use crate::time;

/// Something that uses a region's memory until it ends: a transfer.
pub(crate) trait Holder: Send + Sync {
    /// Its name in reports.
    fn transfer(&self) -> TransferId;
    /// Makes it end now, without waiting for any peer.
    fn cut(&self);
}

/// Somebody whom a region was lent to: another process reads it.
pub(crate) trait Borrower: Send + Sync {
    /// The region goes: it is not to be read any more.
    fn recall(&self, region: RegionId);
}

/// How another process reads a region that it was lent.
pub(crate) enum Lent {
    /// By a mapping of this.
    Descriptor(OwnedFd),
    /// In this process's memory, from this address on.
    InPlace {
        /// The address.
        base: u64,
    },
}

#[derive(Default)]
struct State {
    references: u64,
    /// No new use: the region is on its way out.
    closing: bool,
    next_use: u64,
    uses: BTreeMap<u64, Weak<dyn Holder>>,
    /// Standing grants, by access: at most one each.
    standing: Vec<Arc<GrantInner>>,
    /// Names of layouts that are published.
    published: u64,
    borrowers: Vec<Weak<dyn Borrower>>,
}

impl State {
    fn tell(&mut self, borrower: Weak<dyn Borrower>) {
        self.borrowers.retain(|one| one.strong_count() > 0);
        self.borrowers.push(borrower);
    }
}

pub(crate) struct RegionInner {
    pub(crate) id: RegionId,
    pub(crate) access: Access,
    base: u64,
    length: u64,
    location: memory::Location,
    /// Gone once the region is unregistered: views and spans that are kept keep no memory.
    memory: RwLock<Option<Memory>>,
    state: Mutex<State>,
    /// A use ended.
    released: Condvar,
}

impl RegionInner {
    pub(super) fn new(id: RegionId, memory: Memory, access: Access) -> Self {
        Self {
            id,
            access,
            base: memory.base(),
            length: memory.length(),
            location: memory.location(),
            memory: RwLock::new(Some(memory)),
            state: Mutex::default(),
            released: Condvar::new(),
        }
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    pub(crate) fn end(&self) -> u64 {
        self.base() + self.length()
    }

    /// The memory, while the region is registered.
    pub(crate) fn memory(&self) -> Result<Memory, Error> {
        self.memory.read().clone().ok_or(Error::Unregistered { region: self.id })
    }

    /// The size of its pages in bytes; 0 once it is unregistered.
    fn page_bytes(&self) -> usize {
        self.memory.read().as_ref().map_or(0, Memory::page_bytes)
    }

    /// Whether it covers `[address, address + length)`.
    pub(crate) fn contains(&self, address: u64, length: u64) -> bool {
        address >= self.base() && address.checked_add(length).is_some_and(|end| end <= self.end())
    }

    /// Keeps the region until the use is dropped.
    pub(crate) fn begin_use(
        self: &Arc<Self>,
        holder: Weak<dyn Holder>,
    ) -> Result<RegionUse, Error> {
        let mut state = self.state.lock();
        if state.closing {
            return Err(Error::Unregistered { region: self.id });
        }
        let id = state.next_use;
        state.next_use += 1;
        state.uses.insert(id, holder);
        Ok(RegionUse { region: self.clone(), id })
    }

    /// Whether it can be lent by no descriptor, but only be read where it lies.
    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self.location, memory::Location::Host { .. })
    }

    /// Whether adapters reach it, and no processor does.
    pub(crate) fn is_on_device(&self) -> bool {
        self.location == memory::Location::Device
    }

    /// Lends its memory to another process, which reads it until it is recalled from `borrower`;
    /// `None` where it is on its way out, cannot be lent, or no descriptor is left.
    pub(crate) fn lend(&self, borrower: Weak<dyn Borrower>) -> Option<Lent> {
        let mut state = self.state.lock();
        if state.closing {
            return None;
        }
        let lent = if self.is_foreign() {
            Lent::InPlace { base: self.base }
        } else {
            Lent::Descriptor(self.memory().ok()?.lend().ok()??)
        };
        state.tell(borrower);
        Some(lent)
    }

    /// Has `borrower` told when the region goes; false where it is on its way out.
    pub(crate) fn tell(&self, borrower: Weak<dyn Borrower>) -> bool {
        let mut state = self.state.lock();
        if !state.closing {
            state.tell(borrower);
        }
        !state.closing
    }

    /// Where its memory lives.
    pub(crate) fn location(&self) -> memory::Location {
        self.location
    }

    /// What peers are told, if anything.
    pub(super) fn describe(&self) -> Option<RegionDescription> {
        let state = self.state.lock();
        let listed = !state.closing && (state.published > 0 || !state.standing.is_empty());
        // The widest standing grant: it covers what the narrower ones do.
        let standing = state.standing.iter().max_by_key(|grant| grant.access == Access::ReadWrite);
        listed.then(|| RegionDescription {
            id: self.id,
            base: self.base(),
            length: self.length(),
            location: match self.location {
                memory::Location::Host { numa } => Location::Host { numa },
                memory::Location::Shared { numa } => Location::Shared {
                    numa,
                    page_kib: u32::try_from(self.page_bytes() >> 10).unwrap_or(u32::MAX),
                },
                memory::Location::File => Location::File,
                memory::Location::Device => Location::Device,
            },
            standing: standing.map(|grant| StandingGrant { grant: grant.id, access: grant.access }),
        })
    }

    /// Whether it is on its way out: nothing new may be granted or published of it.
    pub(crate) fn is_closing(&self) -> bool {
        self.state.lock().closing
    }

    /// A layout of it was published, or withdrawn.
    pub(super) fn count_published(&self, by: i64) {
        let mut state = self.state.lock();
        state.published = state.published.saturating_add_signed(by);
    }
}

/// Keeps a region registered while it lives.
pub(crate) struct RegionUse {
    region: Arc<RegionInner>,
    id: u64,
}

impl Drop for RegionUse {
    fn drop(&mut self) {
        self.region.state.lock().uses.remove(&self.id);
        self.region.released.notify_all();
    }
}

/// What [`Region::unregister`] came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// Other references to the region are left: it stays registered.
    pub still_referenced: bool,
    /// Transfers that did not end in time and were cut: they ended with
    /// [`Error::RegionWithdrawn`].
    pub cut: Vec<TransferId>,
}

/// A registered range of this process. Clones and ranges registered inside it are references;
/// the region is unregistered with the last one.
///
/// Dropping the last reference unregisters without waiting: grants are revoked, and transfers that
/// use the region end with [`Error::RegionWithdrawn`]. [`Region::unregister`] waits for them.
pub struct Region {
    registry: Registry,
    inner: Arc<RegionInner>,
    offset: u64,
    length: u64,
    /// False once the reference was given back.
    held: bool,
}

impl Region {
    pub(super) fn reference(
        registry: &Registry,
        inner: Arc<RegionInner>,
        offset: u64,
        length: u64,
    ) -> Result<Self, Error> {
        {
            let mut state = inner.state.lock();
            if state.closing {
                return Err(Error::Unregistered { region: inner.id });
            }
            state.references += 1;
        }
        Ok(Self { registry: registry.clone(), inner, offset, length, held: true })
    }

    pub(super) fn inner(&self) -> &RegionInner {
        &self.inner
    }

    /// Its id: slot and generation.
    #[must_use]
    pub fn id(&self) -> RegionId {
        self.inner.id
    }

    /// The address of its first byte in this process.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.inner.base() + self.offset
    }

    /// Its length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The most that peers can be granted.
    #[must_use]
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// The memory behind it. Offsets there count from the region's start, not this reference's.
    ///
    /// # Errors
    /// [`Error::Unregistered`] when another reference is just unregistering it.
    pub fn memory(&self) -> Result<Memory, Error> {
        self.inner.memory()
    }

    /// The size of its pages in bytes, as far as the kernel says.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.inner.page_bytes()
    }

    /// Copies bytes out, starting at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], or [`Error::Memory`] when the memory cannot be touched.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let at = self.check(offset, into.len() as u64)?;
        Ok(self.memory()?.copy_out(at, into)?)
    }

    /// Copies bytes in, starting at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], or [`Error::Memory`] when the memory cannot be touched.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        let at = self.check(offset, from.len() as u64)?;
        Ok(self.memory()?.copy_in(at, from)?)
    }

    /// A range of it, for transfers and grants.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when it reaches outside.
    pub fn span(&self, offset: u64, length: u64) -> Result<Span, Error> {
        let offset = self.check(offset, length)?;
        Ok(Span { region: self.inner.clone(), offset, length })
    }

    /// All of it, for transfers and grants.
    #[must_use]
    pub fn whole(&self) -> Span {
        Span { region: self.inner.clone(), offset: self.offset, length: self.length }
    }

    /// A view of it as blocks.
    ///
    /// # Errors
    /// [`Error::BadLayout`] when it describes nothing, or bytes outside the region.
    pub fn layout(&self, layout: Layout) -> Result<LayoutView, Error> {
        LayoutView::new(&self.registry, &self.inner, self.offset, self.length, layout)
    }

    /// Grants every peer `access` to the whole region until it is unregistered: what engines that
    /// register memory and hand out its address expect. What was shared before stays shared; a part
    /// of what is shared for this access already is shared, too.
    ///
    /// # Errors
    /// [`Error::AccessConflict`] when the region is not registered for it,
    /// [`Error::PartOfRegion`] when this is a reference to a part of it, or
    /// [`Error::Unregistered`].
    pub fn share(&self, access: Access) -> Result<GrantId, Error> {
        self.check_access(access)?;
        let region_length = self.inner.length();
        let mut state = self.inner.state.lock();
        if state.closing {
            return Err(Error::Unregistered { region: self.inner.id });
        }
        if let Some(grant) = state.standing.iter().find(|grant| grant.access.permits(access)) {
            return Ok(grant.id);
        }
        if self.length != region_length {
            let (region, length) = (self.inner.id, self.length);
            return Err(Error::PartOfRegion { region, length, region_length });
        }
        // Peers are told of one grant, which has to permit all that was shared.
        let access = if state.standing.is_empty() { access } else { Access::ReadWrite };
        let whole = Span { region: self.inner.clone(), offset: 0, length: self.inner.length() };
        let grant = self.registry.grants().insert(vec![whole], None, access, None)?;
        state.standing.push(grant.clone());
        drop(state);
        self.registry.table().touch_region(&self.registry, self.inner.id);
        Ok(grant.id)
    }

    /// Gives this reference back. With the last one the region's grants are revoked, transfers that
    /// use it are waited for, and those that have not ended after `patience` are cut. When this
    /// returns nothing touches the memory any more, unless other references are left. Blocks for at
    /// most `patience`, and the time of one system call.
    pub fn unregister(mut self, patience: Duration) -> Released {
        self.release(patience)
    }

    fn release(&mut self, patience: Duration) -> Released {
        let deadline = time::after(Instant::now(), patience);
        let mut state = self.inner.state.lock();
        if std::mem::replace(&mut self.held, false) {
            state.references -= 1;
        }
        if state.references > 0 || state.closing {
            let still_referenced = state.references > 0;
            return Released { still_referenced, cut: Vec::new() };
        }
        state.closing = true;
        let standing = std::mem::take(&mut state.standing);
        drop(state);
        self.registry.table().withdraw_region(&self.registry, self.inner.id);
        drop(standing);
        self.registry.grants().revoke_region(self.inner.id);

        let mut state = self.inner.state.lock();
        while !state.uses.is_empty() {
            if self.inner.released.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        let left: Vec<_> = state.uses.values().filter_map(Weak::upgrade).collect();
        drop(state);
        let mut cut = Vec::new();
        for holder in left {
            cut.push(holder.transfer());
            holder.cut();
        }
        let borrowers = std::mem::take(&mut self.inner.state.lock().borrowers);
        for borrower in borrowers.iter().filter_map(Weak::upgrade) {
            borrower.recall(self.inner.id);
        }
        self.registry.remove(&self.inner);
        self.inner.memory.write().take();
        Released { still_referenced: false, cut }
    }

    fn check(&self, offset: u64, length: u64) -> Result<u64, Error> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(self.offset + offset),
            _ => Err(Error::OutOfBounds {
                offset,
                length,
                within: "a region",
                within_length: self.length,
            }),
        }
    }

    fn check_access(&self, wanted: Access) -> Result<(), Error> {
        if self.inner.access.permits(wanted) {
            return Ok(());
        }
        Err(Error::AccessConflict {
            existing: self.inner.id,
            registered: self.inner.access,
            wanted,
        })
    }
}

impl Clone for Region {
    fn clone(&self) -> Self {
        // A reference is held, so the region is not closing.
        self.inner.state.lock().references += 1;
        Self {
            registry: self.registry.clone(),
            inner: self.inner.clone(),
            offset: self.offset,
            length: self.length,
            held: true,
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.release(Duration::ZERO);
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("id", &self.id())
            .field("base", &format_args!("{:#x}", self.base()))
            .field("length", &self.length)
            .field("access", &self.access())
            .finish_non_exhaustive()
    }
}
