//! The devices that an engine uses, and the ports of them that it offers.

use std::sync::Arc;

use kvferry_transport::rdma::device::{HostFacts, HostRoot};
use kvferry_transport::rdma::verbs::{Counts, Route, Verbs};

use super::device::Device;
use super::error::RdmaError;
use super::settings::Rdma;
use crate::registry::Registry;
use crate::topology::{Endpoint, PortName, Topology, Wishes};
use crate::transports::{Transport, Transports};

/// How many lanes to one peer are opened for the sake of ports, so that peers take them.
const MOST_LANES: usize = 32;

/// The devices that an engine uses, open, and the ports of them that it offers. They belong to the
/// registry: all of its engines use the same.
pub(crate) struct Adapters {
    ports: Vec<Port>,
    devices: Vec<Arc<Device>>,
    is_demanded: bool,
}

struct Port {
    endpoint: Endpoint,
    device: usize,
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
            let device = match devices.iter().position(|open| open.name() == name) {
                Some(open) => open,
                None => {
                    devices.push(registry.device(&verbs, name)?);
                    devices.len() - 1
                }
            };
            devices[device].uses(endpoint.name.port, endpoint.gid_index);
            ports.push(Port { endpoint, device });
        }
        if is_demanded {
            devices.iter().for_each(|device| device.demand());
        }
        // From here on what was demanded is given back.
        let adapters = Self { ports, devices, is_demanded };
        registry.attach(&adapters.devices)?;
        match adapters.obstacle() {
            Some(why) => Err(RdmaError::GivenUp { why }),
            None => Ok(adapters),
        }
    }

    /// The ports that are used, as a peer needs to know them.
    pub(crate) fn endpoints(&self) -> Vec<Endpoint> {
        self.ports.iter().map(|port| port.endpoint.clone()).collect()
    }

    /// The devices that are used.
    pub(crate) fn devices(&self) -> &[Arc<Device>] {
        &self.devices
    }

    /// How much was asked of all devices, by all engines that use them.
    pub(crate) fn counts(&self) -> Counts {
        let each = self.devices.iter().map(|device| device.context().counts());
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

    /// Why none of its devices can be used any more, where that is so.
    pub(crate) fn obstacle(&self) -> Option<Arc<str>> {
        let mut obstacles = self.devices.iter().map(|device| device.obstacle());
        let first = obstacles.next()??;
        obstacles.all(|obstacle| obstacle.is_some()).then_some(first)
    }

    /// A port's device, and the way out by it.
    pub(super) fn way(&self, port: usize) -> Option<(&Arc<Device>, Route)> {
        let Port { endpoint, device } = self.ports.get(port)?;
        let route =
            Route { port: endpoint.name.port, gid: endpoint.gid_index, pkey: endpoint.pkey_index };
        Some((self.devices.get(*device)?, route))
    }
}

impl Drop for Adapters {
    fn drop(&mut self) {
        if self.is_demanded {
            self.devices.iter().for_each(|device| device.demand_no_more());
        }
    }
}

impl std::fmt::Debug for Adapters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ports = self.ports.iter().map(|port| port.endpoint.name.to_string());
        f.debug_struct("Adapters").field("ports", &ports.collect::<Vec<_>>()).finish()
    }
}
