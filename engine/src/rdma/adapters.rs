//! The devices that an engine uses, and the ports of them that it offers.

use std::sync::{Arc, Weak};

use kvferry_transport::rdma::device::{DeviceName, HostFacts, HostRoot};
use kvferry_transport::rdma::verbs::{Counts, Route, Verbs};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::device::{Device, Former};
use super::error::RdmaError;
use super::settings::Rdma;
use crate::registry::Registry;
use crate::topology::{Endpoint, PortName, Topology, Wishes};
use crate::transports::{Transport, Transports};

/// How many lanes to one peer are opened for the sake of ports, so that peers take them.
const MOST_LANES: usize = 32;

/// The adapters that an engine uses, and the ports of them that it offers. Devices that are open belong to
/// the registry: all of its engines use the same.
pub(crate) struct Adapters {
    ports: Vec<Port>,
    adapters: Vec<Adapter>,
    verbs: Verbs,
    is_demanded: bool,
    /// Rises whenever a port or an adapter works again.
    revived: watch::Sender<u64>,
}

struct Port {
    endpoint: Endpoint,
    adapter: usize,
}

/// An adapter that is used.
struct Adapter {
    name: DeviceName,
    state: Mutex<State>,
}

struct State {
    /// Open, or what is kept of it since it failed.
    device: Result<Arc<Device>, Former>,
    /// What was asked of it when it was open before.
    asked_before: Counts,
}

impl Adapters {
    /// Those of an engine that may use these transports, or why it uses none.
    ///
    /// # Errors
    /// The same, where there have to be some.
    pub(crate) fn of_engine(
        transports: Transports,
        settings: Rdma,
        registry: &Registry,
    ) -> Result<Result<Arc<Self>, Arc<str>>, RdmaError> {
        if !transports.permit(Transport::Rdma) {
            return Ok(Err("only other transports are allowed".into()));
        }
        let is_demanded = !transports.permit(Transport::Tcp);
        let names_devices = settings.names_devices();
        match Self::open(settings, registry, is_demanded) {
            Ok(adapters) => Ok(Ok(Arc::new(adapters))),
            Err(error) if is_demanded || names_devices => Err(error),
            Err(error) => Ok(Err(error.to_string().into())),
        }
    }

    /// Opens what the settings say, and registers the registry's regions with it. Where RDMA is
    /// demanded, a device that does not take one of them is an error; else it is not used.
    fn open(settings: Rdma, registry: &Registry, is_demanded: bool) -> Result<Self, RdmaError> {
        let (verbs, host, wishes) = settings.into_parts();
        // What is demanded says first that the library is missing; else it is not loaded for nothing.
        let verbs = if is_demanded { Some(verbs.map_or_else(Verbs::load, Ok)?) } else { verbs };
        let wishes = match wishes {
            Some(wishes) => wishes,
            None => Wishes::from_environment(|name| std::env::var(name).ok())?,
        };
        let facts = HostFacts::read(&host.unwrap_or_else(HostRoot::live));
        let topology = Topology::choose(&facts, &wishes);
        if let Some(error) = topology.errors.into_iter().next() {
            return Err(RdmaError::Selection(Box::new(error)));
        }
        let (mut usable, mut refused) = (Vec::new(), Vec::new());
        for port in topology.ports {
            match port.verdict {
                Ok(endpoint) => usable.push(endpoint),
                Err(why) => refused.push((port.name.to_string(), why)),
            }
        }
        if usable.is_empty() {
            return Err(RdmaError::NoPort { refused });
        }
        let verbs = verbs.map_or_else(Verbs::load, Ok)?;
        let mut devices: Vec<Arc<Device>> = Vec::new();
        let mut ports = Vec::new();
        for endpoint in usable {
            let name = &endpoint.name.device;
            let adapter = match devices.iter().position(|open| open.name() == name) {
                Some(open) => open,
                None => {
                    devices.push(registry.device(&verbs, name)?);
                    devices.len() - 1
                }
            };
            devices[adapter].uses(endpoint.name.port, endpoint.gid_index);
            ports.push(Port { endpoint, adapter });
        }
        if is_demanded {
            devices.iter().for_each(|device| device.demand());
        }
        // From here on what was demanded is given back.
        let adapters = devices.iter().cloned().map(Adapter::open).collect();
        let adapters = Self { ports, adapters, verbs, is_demanded, revived: watch::Sender::new(0) };
        registry.attach(&devices)?;
        let mut obstacles = devices.iter().map(|device| device.obstacle());
        match obstacles.next().flatten() {
            Some(why) if obstacles.all(|why| why.is_some()) => Err(RdmaError::GivenUp { why }),
            _ => Ok(adapters),
        }
    }

    /// The ports that are used, as a peer needs to know them.
    pub(crate) fn endpoints(&self) -> Vec<Endpoint> {
        self.ports.iter().map(|port| port.endpoint.clone()).collect()
    }

    /// How many adapters there are.
    pub(super) fn count(&self) -> usize {
        self.adapters.len()
    }

    /// The name of an adapter's device.
    pub(super) fn name(&self, adapter: usize) -> &DeviceName {
        &self.adapters[adapter].name
    }

    /// The device of an adapter, or why it is not open.
    pub(super) fn device(&self, adapter: usize) -> Result<Arc<Device>, Arc<str>> {
        match &self.adapters[adapter].state.lock().device {
            Ok(device) => Ok(device.clone()),
            Err(former) => Err(former.why.clone()),
        }
    }

    /// Lets go of an adapter's device, where that is not used any more: it is closed with the last lane
    /// that is on it.
    pub(super) fn close_failed(&self, adapter: usize) {
        let mut state = self.adapters[adapter].state.lock();
        let Ok(device) = &state.device else { return };
        let Some(former) = device.former() else { return };
        let counts = device.context().counts();
        if self.is_demanded {
            device.demand_no_more();
        }
        state.asked_before = state.asked_before.plus(counts);
        let failed = std::mem::replace(&mut state.device, Err(former));
        drop(state);
        drop(failed);
    }

    /// Opens an adapter anew that has failed, and registers the registry's regions with it, for as long as
    /// anybody uses these adapters. Takes as long as that takes.
    ///
    /// # Errors
    /// Why it cannot be used yet.
    pub(super) fn reopen(
        this: &Weak<Self>,
        adapter: usize,
        registry: &Registry,
    ) -> Result<(), RdmaError> {
        let Some(adapters) = this.upgrade() else { return Ok(()) };
        let Adapter { name, state } = &adapters.adapters[adapter];
        let device = registry.device(&adapters.verbs, name)?;
        if let Err(former) = &state.lock().device {
            device.succeeds(former);
        }
        // An engine that ends meanwhile waits for one region at most.
        drop(adapters);
        // Not demanded yet: memory that it does not take is no error of anybody's now.
        registry.attach_while(std::slice::from_ref(&device), || this.strong_count() > 0)?;
        if let Some(why) = device.obstacle() {
            return Err(RdmaError::GivenUp { why });
        }
        let Some(adapters) = this.upgrade() else { return Ok(()) };
        if adapters.is_demanded {
            device.demand();
        }
        adapters.adapters[adapter].state.lock().device = Ok(device);
        adapters.note_revived();
        Ok(())
    }

    /// A port or an adapter works again.
    pub(super) fn note_revived(&self) {
        self.revived.send_modify(|times| *times += 1);
    }

    /// Rises whenever a port or an adapter works again.
    pub(super) fn revived(&self) -> watch::Receiver<u64> {
        self.revived.subscribe()
    }

    /// How much was asked of all adapters, by all engines that use them.
    pub(crate) fn counts(&self) -> Counts {
        let each = self.adapters.iter().map(|adapter| {
            let state = adapter.state.lock();
            let now = state.device.as_ref().map(|device| device.context().counts());
            state.asked_before.plus(now.unwrap_or_default())
        });
        each.fold(Counts::default(), Counts::plus)
    }

    /// How many lanes large transfers need for all ports to be used: each is on one pair of them.
    pub(crate) fn lanes(&self) -> usize {
        self.ports.len().min(MOST_LANES)
    }

    /// Which of the ports has this name.
    pub(crate) fn position(&self, name: &PortName) -> Option<usize> {
        self.ports.iter().position(|port| port.endpoint.name == *name)
    }

    /// Which adapter a port is of, and the way out by it.
    pub(super) fn way(&self, port: usize) -> Option<(usize, Route)> {
        let Port { endpoint, adapter } = self.ports.get(port)?;
        let route =
            Route { port: endpoint.name.port, gid: endpoint.gid_index, pkey: endpoint.pkey_index };
        Some((*adapter, route))
    }
}

impl Adapter {
    fn open(device: Arc<Device>) -> Self {
        let name = device.name().clone();
        let state = State { device: Ok(device), asked_before: Counts::default() };
        Self { name, state: Mutex::new(state) }
    }
}

impl Drop for Adapters {
    fn drop(&mut self) {
        if self.is_demanded {
            let open =
                self.adapters.iter_mut().filter_map(|one| one.state.get_mut().device.as_ref().ok());
            open.for_each(|device| device.demand_no_more());
        }
    }
}

impl std::fmt::Debug for Adapters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ports = self.ports.iter().map(|port| port.endpoint.name.to_string());
        f.debug_struct("Adapters").field("ports", &ports.collect::<Vec<_>>()).finish()
    }
}
