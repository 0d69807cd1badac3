//! Looking regions up by address, and keeping what owns their memory until they are gone.
//!
//! A region that was looked up is one reference more: while it is there, unregistering returns without
//! having ended anything. What owns the memory may then not go yet.

use std::time::Duration;

use kvferry_engine::{Error, Region, RegionId, Registry, Released};
use parking_lot::{Mutex, RwLock};

use crate::foreign::Owner;

/// Held for as long as a region that was looked up is referenced; exclusively to wait for all that are.
static LOOKING: RwLock<()> = RwLock::new(());

/// Owners whose objects unregistered while others had the same region.
static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// How long a look-up that turns out to be a region's last reference waits for its transfers.
const PATIENCE: Duration = Duration::from_secs(1);

struct Kept {
    registry: Registry,
    id: RegionId,
    base: u64,
    owner: Owner,
}

impl Kept {
    /// Whether nothing can touch the memory any more. One that is just being unregistered is not gone.
    fn is_gone(&self) -> bool {
        match self.registry.find(self.base, 1) {
            Ok(region) => region.id() != self.id,
            Err(Error::Unregistered { region }) => region != self.id,
            Err(_) => true,
        }
    }
}

/// Calls `call` with the region that covers a range.
pub(crate) fn with_region<T>(
    registry: &Registry,
    address: u64,
    length: u64,
    call: impl FnOnce(&Region) -> Result<T, Error>,
) -> Result<T, Error> {
    let _looking = LOOKING.read();
    let region = registry.find(address, length)?;
    let done = call(&region);
    // The last reference where it was unregistered meanwhile: that did not wait for transfers, this does.
    region.unregister(PATIENCE);
    done
}

/// Unregisters a reference to a region, and gives up what owns its memory once the region is gone: with
/// the last of its references. To be called without the interpreter's lock. What is returned beside is
/// to be dropped without any other lock: that may run code of its own.
pub(crate) fn unregister(
    registry: &Registry,
    region: Region,
    owner: Option<Owner>,
    patience: Duration,
) -> (Released, Vec<Owner>) {
    let (id, base) = (region.id(), region.base());
    let released = region.unregister(patience);
    // Those that looked the region up have given it back when this is had.
    let _alone = LOOKING.write();
    let mut kept = KEPT.lock();
    kept.extend(owner.map(|owner| Kept { registry: registry.clone(), id, base, owner }));
    let gone = kept.extract_if(.., |one| one.is_gone()).map(|one| one.owner).collect();
    (released, gone)
}
