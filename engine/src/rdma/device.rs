//! A device that is open, for all engines of a registry: regions that are registered with it, queue
//! pairs that are on it, and which of its ports work.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use kvferry_proto::RegionId;
use kvferry_transport::memory::Location;
use kvferry_transport::rdma::device::{DeviceName, Gid, GidIndex, PortNumber};
use kvferry_transport::rdma::fetch::Registered;
use kvferry_transport::rdma::verbs::{Context, DeviceEvent, Verbs, VerbsError};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::error::RdmaError;
use super::link::Link;
use crate::registry::{Borrower, RegionInner};

/// See the [module](self).
pub(crate) struct Device {
    /// A forked child has it too, and must not give back what its parent uses.
    process: u32,
    context: Context,
    registered: Arc<Registered>,
    verbs: Verbs,
    /// Base and length of the regions that are registered with it.
    regions: Mutex<HashMap<RegionId, (u64, u64)>>,
    /// Held while a region is registered, which takes long.
    registering: Mutex<()>,
    /// Held while it is asked what it has to tell, and what follows is done: one after the other, as it
    /// came.
    telling: Mutex<()>,
    /// How many engines may use nothing but RDMA.
    demanders: AtomicUsize,
    state: Mutex<State>,
    news: watch::Sender<News>,
}

#[derive(Default)]
struct State {
    /// Why it is not used any more.
    obstacle: Option<Arc<str>>,
    used: Used,
    /// Ports that do not work now, and why.
    down: BTreeMap<PortNumber, Arc<str>>,
    links: Vec<(PortNumber, Weak<Link>)>,
}

/// The addresses by which ports are used, each as it was then.
type Used = BTreeMap<(PortNumber, GidIndex), Option<Gid>>;

/// What is new of a device.
#[derive(Clone, Copy, Default)]
pub(super) struct News {
    /// How often a port works again.
    pub(super) revivals: u64,
    /// It is not used any more.
    pub(super) is_over: bool,
}

/// What is kept of a device that is not used any more, for when it is opened anew.
pub(super) struct Former {
    /// Why it is not used.
    pub(super) why: Arc<str>,
    used: Used,
}

/// Where a queue pair has its place: a port of a device.
#[derive(Clone)]
pub(crate) struct Berth {
    pub(super) device: Arc<Device>,
    pub(super) port: PortNumber,
}

impl Device {
    pub(crate) fn open(verbs: &Verbs, name: &DeviceName) -> Result<Arc<Self>, RdmaError> {
        let context = verbs.open(name)?;
        let registered = Arc::new(Registered::new(&context)?);
        Ok(Arc::new(Self {
            process: std::process::id(),
            context,
            registered,
            verbs: verbs.clone(),
            regions: Mutex::default(),
            registering: Mutex::default(),
            telling: Mutex::default(),
            demanders: AtomicUsize::new(0),
            state: Mutex::default(),
            news: watch::Sender::default(),
        }))
    }

    pub(crate) fn name(&self) -> &DeviceName {
        self.context.name()
    }

    /// Whether it is this one, of this library.
    pub(crate) fn is(&self, verbs: &Verbs, name: &DeviceName) -> bool {
        self.name() == name && self.verbs.is_same(verbs)
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn registered(&self) -> &Arc<Registered> {
        &self.registered
    }

    /// An engine uses a port by this address, as it is now.
    pub(super) fn uses(&self, port: PortNumber, gid: GidIndex) {
        let found = self.context.gid(port, gid).ok();
        self.state.lock().used.insert((port, gid), found);
        // It may have been given up for an address that is another now.
        self.look_at(port);
    }

    /// It was opened in the place of another: its ports are used by the addresses that they had.
    pub(super) fn succeeds(&self, former: &Former) {
        let ports: BTreeSet<PortNumber> = former.used.keys().map(|(port, _)| *port).collect();
        for (place, gid) in &former.used {
            self.state.lock().used.entry(*place).or_insert(*gid);
        }
        ports.into_iter().for_each(|port| self.look_at(port));
    }

    /// What is to be kept of it, once it is not used any more.
    pub(super) fn former(&self) -> Option<Former> {
        let state = self.state.lock();
        Some(Former { why: state.obstacle.clone()?, used: state.used.clone() })
    }

    /// Whether this is the process that has opened it, and no child of that.
    pub(crate) fn is_own_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// An engine may use nothing but RDMA: memory that cannot be registered is an error from now on.
    pub(super) fn demand(&self) {
        self.demanders.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn demand_no_more(&self) {
        self.demanders.fetch_sub(1, Ordering::Relaxed);
    }

    /// Why it is not used any more, if so.
    pub(crate) fn obstacle(&self) -> Option<Arc<str>> {
        self.state.lock().obstacle.clone()
    }

    /// Why no queue pair is made on a port now, if so.
    pub(super) fn obstacle_of(&self, port: PortNumber) -> Option<Arc<str>> {
        let state = self.state.lock();
        state.obstacle.clone().or_else(|| state.down.get(&port).cloned())
    }

    /// Registers a region, unless it is already. It is given back when the region goes. Whether it was
    /// registered now.
    fn register(self: &Arc<Self>, region: &RegionInner) -> Result<bool, VerbsError> {
        if !self.is_own_process() {
            return Ok(false);
        }
        let _registering = self.registering.lock();
        let is_over = self.obstacle().is_some();
        if is_over || self.regions.lock().contains_key(&region.id) {
            return Ok(false);
        }
        // A region that has gone meanwhile needs none.
        let Ok(memory) = region.memory() else { return Ok(false) };
        self.registered.register(&memory)?;
        self.regions.lock().insert(region.id, (region.base(), region.length()));
        let borrower: Arc<dyn Borrower> = self.clone();
        let borrower: Weak<dyn Borrower> = Arc::downgrade(&borrower);
        // The device may have been given up meanwhile, with what was registered by then.
        if !region.tell(borrower) || self.obstacle().is_some() {
            self.recall(region.id);
            return Ok(false);
        }
        Ok(true)
    }

    /// Whether an engine may use nothing but RDMA, by any of these.
    pub(crate) fn is_any_demanded(devices: &[Arc<Self>]) -> bool {
        devices.iter().any(|one| one.demanders.load(Ordering::Relaxed) > 0)
    }

    /// Registers a region with all of these, side by side. One that does not take it is not used any
    /// more, unless an engine demands RDMA, which makes it an error. So it is of memory of a device,
    /// which nothing else moves: what the others have registered is none the worse.
    pub(crate) fn register_with(
        devices: &[Arc<Self>],
        region: &RegionInner,
    ) -> Result<(), RdmaError> {
        if region.location() == Location::File {
            return Ok(());
        }
        let results: Vec<Result<bool, VerbsError>> = match devices {
            [device] => vec![device.register(region)],
            devices => std::thread::scope(|scope| {
                let registering: Vec<_> =
                    devices.iter().map(|device| scope.spawn(|| device.register(region))).collect();
                let joined = registering.into_iter().map(|one| match one.join() {
                    Ok(result) => result,
                    Err(panic) => std::panic::resume_unwind(panic),
                });
                joined.collect()
            }),
        };
        // Others' engines may use what was registered before.
        let registered: Vec<_> = devices
            .iter()
            .zip(&results)
            .filter_map(|(device, result)| matches!(result, Ok(true)).then_some(device))
            .collect();
        for (device, result) in devices.iter().zip(results) {
            let Err(source) = result else { continue };
            if region.is_on_device() || Self::is_any_demanded(devices) {
                registered.iter().for_each(|one| one.recall(region.id));
                return Err(RdmaError::Region { region: region.id, source });
            }
            let error = RdmaError::Region { region: region.id, source };
            device.give_up(&error.to_string());
        }
        Ok(())
    }

    /// It is not used any more: what is under way ends, and memory is given back.
    fn give_up(&self, why: &str) {
        tracing::warn!(device = %self.name(), why, "an RDMA device is not used any more");
        let links = {
            let mut state = self.state.lock();
            state.obstacle.get_or_insert_with(|| format!("{}: {why}", self.name()).into());
            std::mem::take(&mut state.links)
        };
        lose(&links, why);
        let gone: Vec<_> = self.regions.lock().drain().collect();
        for (_, (base, length)) in gone {
            self.registered.withdraw(base, length);
        }
        self.news.send_modify(|news| news.is_over = true);
    }

    /// A queue pair is on a port. It is torn down as soon as that does not work any more.
    fn board(&self, port: PortNumber, link: &Arc<Link>) {
        let why = {
            let mut state = self.state.lock();
            state.links.retain(|(_, link)| link.strong_count() > 0);
            state.links.push((port, Arc::downgrade(link)));
            state.obstacle.clone().or_else(|| state.down.get(&port).cloned())
        };
        if let Some(why) = why {
            link.lose(&why);
        }
    }

    /// A descriptor that is readable when the device has something to tell, for as long as it is kept.
    pub(crate) fn events(&self) -> io::Result<OwnedFd> {
        self.context.event_descriptor().try_clone_to_owned()
    }

    /// What is new of it.
    pub(super) fn news(&self) -> watch::Receiver<News> {
        self.news.subscribe()
    }

    /// Takes what the device has to tell, and does what follows for queue pairs.
    pub(crate) fn take_events(&self) {
        let _telling = self.telling.lock();
        loop {
            match self.context.next_event() {
                Ok(Some(event)) => self.happened(event),
                Ok(None) => return,
                Err(error) => return self.give_up(&format!("it tells nothing any more: {error}")),
            }
        }
    }

    fn happened(&self, event: DeviceEvent) {
        tracing::info!(device = %self.name(), ?event, "an RDMA device tells something");
        match event {
            DeviceEvent::PortDown(port) => self.port_down(port, "its link is down"),
            // An address that is used may have gone, or another one may.
            DeviceEvent::PortActive(port) | DeviceEvent::AddressesChanged(port) => {
                self.look_at(port);
            }
            DeviceEvent::PortChanged(port) => {
                // Queue pairs keep what they were made with.
                self.port_down(port, "its local identifier or its keys have changed");
                self.look_at(port);
            }
            DeviceEvent::DeviceBroken => self.give_up("it has failed, as it says itself"),
            // Its completions say so, too.
            DeviceEvent::QueuePairBroken(_) | DeviceEvent::Other(_) => {}
        }
    }

    fn port_down(&self, port: PortNumber, why: &str) {
        let why: Arc<str> = format!("{}:{}: {why}", self.name(), port.0).into();
        let links = {
            let mut state = self.state.lock();
            state.down.insert(port, why.clone());
            let (on_it, others) =
                std::mem::take(&mut state.links).into_iter().partition(|(on, _)| *on == port);
            state.links = others;
            on_it
        };
        lose(&links, &why);
    }

    /// Whether a port works again, by the addresses that it is used by.
    fn look_at(&self, port: PortNumber) {
        let context = &self.context;
        let used: Vec<_> = {
            let state = self.state.lock();
            let of_port = state.used.iter().filter(|((on, _), _)| *on == port);
            of_port.map(|((_, index), gid)| (*index, *gid)).collect()
        };
        let is_active = context.port(port).is_ok_and(|facts| facts.is_active);
        let has_moved = used.iter().any(|(index, gid)| context.gid(port, *index).ok() != *gid);
        if !is_active {
            return self.port_down(port, "it is not active");
        }
        if has_moved {
            let why = "the address that it was chosen for is another now: start the engine anew";
            return self.port_down(port, why);
        }
        if self.state.lock().down.remove(&port).is_some() {
            self.news.send_modify(|news| news.revivals += 1);
        }
    }
}

/// Tears queue pairs down, and has their lanes go.
fn lose(links: &[(PortNumber, Weak<Link>)], why: &str) {
    for link in links.iter().filter_map(|(_, link)| link.upgrade()) {
        link.lose(why);
    }
}

impl Berth {
    /// What the queue pair reaches here.
    pub(super) fn registered(&self) -> &Arc<Registered> {
        self.device.registered()
    }

    /// A queue pair takes its place.
    pub(super) fn take(&self, link: &Arc<Link>) {
        self.device.board(self.port, link);
    }
}

impl Borrower for Device {
    fn recall(&self, region: RegionId) {
        if !self.is_own_process() {
            return;
        }
        let gone = self.regions.lock().remove(&region);
        if let Some((base, length)) = gone {
            self.registered.withdraw(base, length);
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !self.is_own_process() {
            // One handle more than is ever dropped.
            std::mem::forget((self.context.clone(), self.registered.clone()));
        }
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("name", self.name()).finish_non_exhaustive()
    }
}
