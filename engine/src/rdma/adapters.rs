//! The devices of an engine, and its regions in them.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Weak};

use kvferry_proto::RegionId;
use kvferry_transport::memory::Location;
use kvferry_transport::rdma::device::{HostFacts, HostRoot};
use kvferry_transport::rdma::fetch::Registered;
use kvferry_transport::rdma::verbs::{Context, Route, Verbs};
use parking_lot::Mutex;

use super::error::RdmaError;
use super::settings::Rdma;
use crate::registry::{Borrower, RegionInner};
use crate::topology::{Endpoint, PortName, Topology, Wishes};

/// The devices that an engine uses, open, and the ports of them that it offers. Regions are registered
/// with each device once, when they are registered or the engine starts, so that no slice waits for
/// it, and given back when they are unregistered.
pub(crate) struct Adapters {
    ports: Vec<Port>,
    /// A forked child has them too, and must not give back what its parent uses.
    process: u32,
    devices: ManuallyDrop<Vec<Device>>,
    /// Base and length of the regions that are registered with the devices.
    regions: Mutex<HashMap<RegionId, (u64, u64)>>,
    /// Held while a region is registered, which takes long.
    registering: Mutex<()>,
}

struct Port {
    endpoint: Endpoint,
    device: usize,
}

pub(super) struct Device {
    pub(super) context: Context,
    pub(super) registered: Arc<Registered>,
}

impl Adapters {
    /// Opens what the settings say.
    pub(crate) fn open(settings: Rdma) -> Result<Self, RdmaError> {
        let (verbs, host, wishes) = settings.into_parts();
        let verbs = verbs.map_or_else(Verbs::load, Ok)?;
        let wishes = match wishes {
            Some(wishes) => wishes,
            None => Wishes::from_environment(|name| std::env::var(name).ok())?,
        };
        let facts = HostFacts::read(&host.unwrap_or_else(HostRoot::live));
        let topology = Topology::choose(&facts, &wishes);
        if let Some(error) = topology.errors.into_iter().next() {
            return Err(RdmaError::Selection(Box::new(error)));
        }
        let (mut ports, mut devices): (Vec<Port>, Vec<Device>) = (Vec::new(), Vec::new());
        let mut refused = Vec::new();
        for port in topology.ports {
            let endpoint = match port.verdict {
                Ok(endpoint) => endpoint,
                Err(why) => {
                    refused.push((port.name.to_string(), why));
                    continue;
                }
            };
            let name = &endpoint.name.device;
            let device = match devices.iter().position(|open| open.context.name() == name) {
                Some(open) => open,
                None => {
                    let context = verbs.open(name)?;
                    let registered = Arc::new(Registered::new(&context)?);
                    devices.push(Device { context, registered });
                    devices.len() - 1
                }
            };
            ports.push(Port { endpoint, device });
        }
        if ports.is_empty() {
            return Err(RdmaError::NoPort { refused });
        }
        let process = std::process::id();
        let (regions, registering) = (Mutex::default(), Mutex::default());
        let devices = ManuallyDrop::new(devices);
        Ok(Self { ports, process, devices, regions, registering })
    }

    /// The ports that are used, as a peer needs to know them.
    pub(crate) fn endpoints(&self) -> Vec<Endpoint> {
        self.ports.iter().map(|port| port.endpoint.clone()).collect()
    }

    /// How many ports are used.
    pub(crate) fn port_count(&self) -> usize {
        self.ports.len()
    }

    /// Which of the ports has this name.
    pub(crate) fn position(&self, name: &PortName) -> Option<usize> {
        self.ports.iter().position(|port| port.endpoint.name == *name)
    }

    /// A port's device, and the way out by it.
    pub(super) fn way(&self, port: usize) -> Option<(&Device, Route)> {
        let Port { endpoint, device } = self.ports.get(port)?;
        let route =
            Route { port: endpoint.name.port, gid: endpoint.gid_index, pkey: endpoint.pkey_index };
        Some((self.devices.get(*device)?, route))
    }

    /// Registers a region with every device, unless it is already, or is a file's, which no device
    /// reaches. It is given back when the region goes.
    pub(crate) fn register(self: &Arc<Self>, region: &RegionInner) -> Result<(), RdmaError> {
        let _registering = self.registering.lock();
        if region.location() == Location::File || self.regions.lock().contains_key(&region.id) {
            return Ok(());
        }
        // A region that has gone meanwhile needs none.
        let Ok(memory) = region.memory() else { return Ok(()) };
        let (base, length) = (region.base(), region.length());
        let result = std::thread::scope(|scope| {
            let registering: Vec<_> = self
                .devices
                .iter()
                .map(|device| scope.spawn(|| device.registered.register(&memory)))
                .collect();
            registering.into_iter().try_for_each(|one| match one.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        });
        if let Err(source) = result {
            self.withdraw(base, length);
            return Err(RdmaError::Region { region: region.id, source });
        }
        self.regions.lock().insert(region.id, (base, length));
        let borrower: Arc<dyn Borrower> = self.clone();
        let borrower: Weak<dyn Borrower> = Arc::downgrade(&borrower);
        if !region.tell(borrower) {
            self.recall(region.id);
        }
        Ok(())
    }

    fn withdraw(&self, base: u64, length: u64) {
        for device in &*self.devices {
            device.registered.withdraw(base, length);
        }
    }
}

impl Borrower for Adapters {
    fn recall(&self, region: RegionId) {
        if self.process != std::process::id() {
            return;
        }
        let gone = self.regions.lock().remove(&region);
        if let Some((base, length)) = gone {
            self.withdraw(base, length);
        }
    }
}

impl Drop for Adapters {
    fn drop(&mut self) {
        let devices = std::mem::take(&mut *self.devices);
        if self.process == std::process::id() {
            drop(devices);
        } else {
            std::mem::forget(devices);
        }
    }
}

impl std::fmt::Debug for Adapters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ports = self.ports.iter().map(|port| port.endpoint.name.to_string());
        f.debug_struct("Adapters").field("ports", &ports.collect::<Vec<_>>()).finish()
    }
}
