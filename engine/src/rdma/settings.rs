//! What an engine is told of RDMA.

use kvferry_transport::rdma::device::HostRoot;
use kvferry_transport::rdma::verbs::Verbs;

use super::error::RdmaError;
use crate::topology::{DeviceList, Source, Unheeded, Wished, Wishes};

/// Where an engine's RDMA adapters are, and which of them it uses. By default those of this host, by
/// the system's libibverbs, as the environment wishes.
#[derive(Clone, Debug, Default)]
pub struct Rdma {
    verbs: Option<Verbs>,
    host: Option<HostRoot>,
    wishes: Option<Wishes>,
    /// Its wishes name devices: each has to be of use.
    names_devices: bool,
}

impl Rdma {
    /// Uses this library. Default: the system's.
    #[must_use]
    pub fn verbs(mut self, verbs: Verbs) -> Self {
        self.verbs = Some(verbs);
        self
    }

    /// Reads what the kernel says of adapters and networks here. Default: in the running kernel.
    #[must_use]
    pub fn host(mut self, host: HostRoot) -> Self {
        self.host = Some(host);
        self
    }

    /// Which devices, GIDs and partition keys are wanted. Default: as the environment says
    /// ([`Wishes::from_environment`]).
    #[must_use]
    pub fn wishes(mut self, wishes: Wishes) -> Self {
        self.wishes = Some(wishes);
        self
    }

    /// Uses these devices: names, separated by commas (`mlx5_0,mlx5_1:2` for one port of the second).
    /// One that is of no use is an error when the engine starts, whatever may carry transfers. All else
    /// is as the environment wishes.
    ///
    /// # Errors
    /// [`RdmaError::Wish`] for what is no list of names, or what the environment wishes in vain.
    pub fn devices(mut self, names: &str) -> Result<Self, RdmaError> {
        let from = Source("rdma_devices");
        let variable = |name: &str| std::env::var(name).ok();
        let mut wishes = Wishes::from_environment(variable)?;
        if let Some(value) = DeviceList::parse_names(from, names)? {
            let former = wishes.devices.replace(Wished { value, from });
            wishes.unheeded.extend(former.map(|Wished { from: weaker, .. }| {
                let value = variable(weaker.0).unwrap_or_default();
                Unheeded::Overridden { from: weaker, value, winner: from }
            }));
            self.names_devices = true;
        }
        self.wishes = Some(wishes);
        Ok(self)
    }

    pub(super) fn names_devices(&self) -> bool {
        self.names_devices
    }

    pub(super) fn into_parts(self) -> (Option<Verbs>, Option<HostRoot>, Option<Wishes>) {
        (self.verbs, self.host, self.wishes)
    }
}
