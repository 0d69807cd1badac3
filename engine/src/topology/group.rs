//! Route groups: the ports of a host that reach each other.

use std::fmt;

use kvferry_transport::rdma::device::{IpNetwork, Lid, SubnetPrefix};

use super::endpoint::{Endpoint, Fabric, PortName};
use super::reach::{self, Reach};

/// What ports have in common that reach each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GroupLabel {
    /// An InfiniBand subnet, and its manager.
    Subnet {
        /// Its prefix.
        prefix: SubnetPrefix,
        /// Its manager, where it is known.
        manager: Option<Lid>,
    },
    /// An IP network.
    Network(IpNetwork),
    /// The link of one port: of a link-local address, an overlay's or an unknown network's it is
    /// not known who else is there.
    Link(PortName),
}

/// Ports of a host that reach each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteGroup {
    /// What they have in common: several where routes join networks. In order, never empty.
    pub labels: Vec<GroupLabel>,
    /// The ports, by name.
    pub members: Vec<PortName>,
}

impl GroupLabel {
    /// The label of a port.
    #[must_use]
    pub fn of(endpoint: &Endpoint) -> Self {
        let link = || Self::Link(endpoint.name.clone());
        match &endpoint.fabric {
            Fabric::InfiniBand { subnet, subnet_manager } => {
                Self::Subnet { prefix: *subnet, manager: *subnet_manager }
            }
            Fabric::Ethernet(reach) if reach.is_link_local() || reach.overlay.is_some() => link(),
            Fabric::Ethernet(reach) => reach.network.map_or_else(link, Self::Network),
        }
    }
}

/// The groups of a host's ports, in the order of their first members.
#[must_use]
pub fn of_host(endpoints: &[&Endpoint]) -> Vec<RouteGroup> {
    positions(endpoints)
        .into_iter()
        .map(|members| {
            let members: Vec<&Endpoint> = members.into_iter().map(|at| endpoints[at]).collect();
            let mut labels: Vec<_> = members.iter().map(|member| GroupLabel::of(member)).collect();
            labels.sort();
            labels.dedup();
            let members = members.into_iter().map(|member| member.name.clone()).collect();
            RouteGroup { labels, members }
        })
        .collect()
}

/// The same as positions: every position once, ascending within its group.
pub(super) fn positions(endpoints: &[&Endpoint]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for at in 0..endpoints.len() {
        let reaches = |group: &Vec<usize>| group.iter().any(|other| joined(endpoints, *other, at));
        let (joins, apart): (Vec<_>, Vec<_>) = groups.into_iter().partition(reaches);
        let mut merged: Vec<usize> = joins.into_iter().flatten().collect();
        merged.push(at);
        merged.sort_unstable();
        groups = apart;
        groups.push(merged);
        groups.sort_by_key(|group| group.first().copied());
    }
    groups
}

fn joined(endpoints: &[&Endpoint], left: usize, right: usize) -> bool {
    let (left, right) = (endpoints[left], endpoints[right]);
    GroupLabel::of(left) == GroupLabel::of(right)
        && !matches!(GroupLabel::of(left), GroupLabel::Link(_))
        || reach::between(left, right) == Reach::Reachable
}

impl fmt::Display for GroupLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Subnet { prefix, manager: Some(manager) } => {
                write!(f, "{prefix} (SM {})", manager.0)
            }
            Self::Subnet { prefix, manager: None } => write!(f, "{prefix}"),
            Self::Network(network) => write!(f, "{network}"),
            Self::Link(port) => write!(f, "link of {port}"),
        }
    }
}

impl fmt::Display for RouteGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.labels.first().map(ToString::to_string).unwrap_or_default();
        match self.labels.len() {
            0 | 1 => f.pad(&first),
            labels => f.pad(&format!("{first} +{}", labels - 1)),
        }
    }
}
