//! What an engine is told of RDMA.

use kvferry_transport::rdma::device::HostRoot;
use kvferry_transport::rdma::verbs::Verbs;

use crate::topology::Wishes;

/// Where an engine's RDMA adapters are, and which of them it uses. By default those of this host, by
/// the system's libibverbs, as the environment wishes.
#[derive(Clone, Debug, Default)]
pub struct Rdma {
    verbs: Option<Verbs>,
    host: Option<HostRoot>,
    wishes: Option<Wishes>,
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

    pub(super) fn into_parts(self) -> (Option<Verbs>, Option<HostRoot>, Option<Wishes>) {
        (self.verbs, self.host, self.wishes)
    }
}
