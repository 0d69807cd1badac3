//! Route groups: the ports of a host that reach each other.

use std::fmt;

use kvferry_transport::rdma::device::{IpNetwork, Lid, PKey, SubnetPrefix};

use super::endpoint::{Endpoint, Fabric, PortName};
use super::reach::{self, Reach};

/// What ports have in common that reach each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GroupLabel {
    /// A partition of an InfiniBand subnet.
    Subnet {
        /// The subnet's prefix.
        prefix: SubnetPrefix,
        /// The subnet's manager, where it is known.
        manager: Option<Lid>,
        /// The partition, without the membership bit.
        partition: u16,
    },
    /// An IP network.
    Network(IpNetwork),
    /// The link of one port: of a link-local address, an overlay's or an unknown network's it is
    /// not known who else is there.
    Link(PortName),
}

/// The partition that every subnet has: InfiniBand Architecture Specification volume 1, section
/// 10.9.1.2.
const DEFAULT_PARTITION: u16 = 0x7fff;

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
                let partition = endpoint.pkey.map_or(DEFAULT_PARTITION, PKey::partition);
                Self::Subnet { prefix: *subnet, manager: *subnet_manager, partition }
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
    // Two ports of one host may have one address; they are on one network all the same.
    GroupLabel::of(left) == GroupLabel::of(right) || reach::between(left, right) == Reach::Reachable
}

impl fmt::Display for GroupLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Subnet { prefix, manager, partition } => {
                write!(f, "{prefix}")?;
                if let Some(manager) = manager {
                    write!(f, " (SM {})", manager.0)?;
                }
                if *partition != DEFAULT_PARTITION {
                    write!(f, " partition {partition:#06x}")?;
                }
                Ok(())
            }
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
