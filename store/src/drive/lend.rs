//! Memory that is lent: populated on a thread of its own, mounted, taken back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvferry_engine::{Access, Incarnation, Memory, Region, Registry};
use kvferry_proto::pool::{Lent, NAME_BYTES, SegmentId, Unmount};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::kernel::room;
use super::shared::Shared;
use crate::error::Error;

/// How long the transfers of this process that use a segment may take to end once it is taken back.
const UNREGISTER: Duration = Duration::from_millis(500);

/// How memory that is lent stands.
#[derive(Clone, Debug)]
pub enum SegmentState {
    /// Its pages are being had from the kernel: so many bytes of them are there.
    Populating(u64),
    /// The master is being told of it.
    Mounting,
    /// It is in the pool.
    Mounted,
    /// It is not in the pool, because of this. It is tried again where that can help.
    NotMounted(Error),
    /// It was taken back.
    Unmounted,
}

#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) id: SegmentId,
    pub(crate) name: String,
    pub(crate) length: u64,
    /// Where this engine is reached.
    address: String,
    /// It is being taken back: nobody is to be told of it again.
    is_leaving: AtomicBool,
    memory: Mutex<Lending>,
    state: watch::Sender<SegmentState>,
}

#[derive(Debug)]
struct Lending {
    /// Until it was taken back.
    region: Option<Region>,
    /// Who was told of it last.
    master: Option<Incarnation>,
    /// That one has answered: it may let anybody write from then on.
    is_placed: bool,
}

impl Segment {
    /// What a master is to be told, and whether nothing can land in it that another allowed.
    ///
    /// Writers that a former master let write may still be at it, and this one does not know them.
    /// So the region is given another number, and the grants on the former end with it: it is fenced,
    /// and can be used at once. Who still reads by the former number is refused, and asks again.
    pub(crate) fn prepare(
        &self,
        registry: &Registry,
        master: Incarnation,
    ) -> Result<(Lent, bool), Error> {
        let mut lending = self.memory.lock();
        let mut region = lending.region.take().ok_or(Error::TakenBack)?;
        if lending.master.is_some_and(|former| former != master) {
            let memory = region.memory()?;
            region.unregister(Duration::ZERO);
            region = registry.register(memory, Access::ReadWrite)?;
            region.share(Access::ReadWrite)?;
            lending.is_placed = false;
        }
        let lent = Lent {
            segment: self.id,
            name: self.name.clone(),
            address: self.address.clone(),
            region: region.id(),
            offset: 0,
            length: self.length,
        };
        lending.region = Some(region);
        // Also where it is not known whether it hears of it: a repeat says the same.
        lending.master = Some(master);
        Ok((lent, !lending.is_placed))
    }

    /// The master has it.
    pub(crate) fn mounted(&self) {
        self.memory.lock().is_placed = true;
        self.set(SegmentState::Mounted);
    }

    fn was_mounted(&self) -> bool {
        self.memory.lock().master.is_some()
    }

    pub(crate) fn is_mountable(&self) -> bool {
        !self.is_leaving.load(Ordering::Acquire)
    }

    /// Whether no master was told of it yet.
    pub(crate) fn is_new(&self) -> bool {
        matches!(*self.state.borrow(), SegmentState::Populating(_)) && self.is_mountable()
    }

    pub(crate) fn set(&self, state: SegmentState) {
        self.state.send_if_modified(|current| {
            let is_over = matches!(current, SegmentState::Unmounted);
            if !is_over {
                *current = state;
            }
            !is_over
        });
    }
}

fn check_room(bytes: u64) -> Result<(), Error> {
    room().map_or(Ok(()), |room| room.check(bytes))
}

/// Begins to lend memory. What follows happens in the background.
pub(crate) fn lend(
    shared: &Arc<Shared>,
    bytes: u64,
    name: String,
) -> Result<(SegmentId, watch::Receiver<SegmentState>), Error> {
    shared.check_open()?;
    if name.len() > NAME_BYTES {
        return Err(Error::NameTooLong { found: name.len(), limit: NAME_BYTES });
    }
    let length = usize::try_from(bytes).ok().filter(|length| *length > 0).ok_or(Error::Empty)?;
    check_room(bytes)?;
    let id = draw()?;
    let (state, seen) = watch::channel(SegmentState::Populating(0));
    let populating = shared.clone();
    let thread = thread::Builder::new()
        .name("kvferry-populate".into())
        .spawn(move || populate(&populating, id, name, length, &state))
        .map_err(|error| Error::system("starting a thread that populates memory", error))?;
    let mut threads = shared.populating.lock();
    threads.retain(|thread| !thread.is_finished());
    threads.push(thread);
    Ok((id, seen))
}

fn draw() -> Result<SegmentId, Error> {
    loop {
        let drawn = getrandom::u64().map_err(|error| Error::system("drawing a number", error))?;
        if drawn != 0 {
            return Ok(SegmentId(drawn));
        }
    }
}

fn populate(
    shared: &Arc<Shared>,
    id: SegmentId,
    name: String,
    length: usize,
    state: &watch::Sender<SegmentState>,
) {
    match register(shared, length, state) {
        Ok(region) => {
            let segment = Arc::new(Segment {
                id,
                name,
                length: length as u64,
                address: shared.engine.address().to_string(),
                is_leaving: AtomicBool::new(false),
                memory: Mutex::new(Lending {
                    region: Some(region),
                    master: None,
                    is_placed: false,
                }),
                state: state.clone(),
            });
            shared.inventory.lock().add(id, length as u64);
            let mut segments = shared.segments.lock();
            // Under the lock under which a closing store takes them all.
            if shared.check_open().is_ok() {
                segments.insert(id, segment);
                drop(segments);
                shared.mount.notify_one();
            } else {
                state.send_replace(SegmentState::Unmounted);
            }
        }
        Err(error) => {
            tracing::error!(segment = %id, %error, "memory cannot be lent");
            state.send_replace(SegmentState::NotMounted(error));
        }
    }
}

/// Has the memory populated, piece by piece: what others take meanwhile is seen in time.
fn register(
    shared: &Shared,
    length: usize,
    state: &watch::Sender<SegmentState>,
) -> Result<Region, Error> {
    let mut refused = None;
    let began = Instant::now();
    let memory = Memory::allocate_while(length, |populated| {
        state.send_replace(SegmentState::Populating(populated as u64));
        refused = shared.check_open().and_then(|()| check_room((length - populated) as u64)).err();
        refused.is_none()
    });
    let memory = match (memory, refused) {
        (Ok(memory), _) => memory,
        (Err(_), Some(refused)) => return Err(refused),
        (Err(error), None) => return Err(kvferry_engine::Error::from(error).into()),
    };
    state.send_replace(SegmentState::Populating(length as u64));
    tracing::info!(
        bytes = length,
        page_bytes = memory.page_bytes(),
        took = ?began.elapsed(),
        "memory populated"
    );
    let region = shared.engine.registry().register(memory, Access::ReadWrite)?;
    region.share(Access::ReadWrite)?;
    Ok(region)
}

/// Takes a segment back: the master stops placing objects in it, what reads it may go on for
/// `grace`, and when this is done nobody touches its memory any more.
pub(crate) async fn unmount(
    shared: &Arc<Shared>,
    id: SegmentId,
    grace: Duration,
) -> Result<Duration, Error> {
    let Some(segment) = shared.segments.lock().get(&id).cloned() else {
        return Err(Error::TakenBack);
    };
    segment.is_leaving.store(true, Ordering::Release);
    let client = shared.engine.incarnation();
    let told = if segment.was_mounted() {
        shared.master.unmount(Unmount { client, segment: id, grace }).await
    } else {
        Ok(Duration::ZERO)
    };
    shared.segments.lock().remove(&id);
    shared.inventory.lock().remove(id);
    segment.set(SegmentState::Unmounted);
    let region = segment.memory.lock().region.take();
    if let Some(region) = region {
        // It waits for this process's own transfers.
        let released = tokio::task::spawn_blocking(move || region.unregister(UNREGISTER)).await;
        released.map_err(|error| Error::system("unregistering a segment", error))?;
    }
    tracing::info!(segment = %id, name = segment.name, "segment unmounted");
    told
}
