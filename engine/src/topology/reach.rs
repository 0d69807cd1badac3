//! Whether two ports can reach each other, as far as tables tell.
//!
//! A queue pair's packets leave by the interface of its GID and by no other, so a route over
//! another interface does not help: only those over the GID's own count, and both ends need one.

use std::net::IpAddr;

use kvferry_transport::rdma::device::{Lid, PKey, SubnetPrefix};

use super::endpoint::{Endpoint, EthernetReach, Fabric, RoceVersion};
use super::overlay::Overlay;
use super::probe::Answer;

/// Whether two ports can reach each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// They can.
    Reachable,
    /// Nobody knows without trying.
    Undecided(Doubt),
    /// They cannot.
    Unreachable(Obstacle),
}

/// Why tables cannot tell.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// Both have addresses that every link has.
    #[error("link-local addresses do not tell which link")]
    LinkLocal,
    /// Container networks look alike on every host.
    #[error("the address is that of {overlay}, which other hosts may have as well")]
    Overlay {
        /// Whose it is.
        overlay: Overlay,
    },
    /// The network of an address is not known.
    #[error("the network of {address} is not known")]
    NetworkUnknown {
        /// The address.
        address: IpAddr,
    },
    /// Only a default route leads there, which promises nothing.
    #[error("only a default route leads from {from} to {to}")]
    DefaultRoute {
        /// Whence.
        from: IpAddr,
        /// Whither.
        to: IpAddr,
    },
    /// The host has routing tables that cannot be read.
    #[error("no route from {from} to {to} in the main table, and there are others")]
    OtherTables {
        /// Whence.
        from: IpAddr,
        /// Whither.
        to: IpAddr,
    },
    /// The subnets have one prefix and two managers: two fabrics, or a manager just replaced.
    #[error("subnet {subnet} has managers {} and {}: two fabrics, or one whose manager changed", left.0, right.0)]
    Managers {
        /// The subnet.
        subnet: SubnetPrefix,
        /// The manager here.
        left: Lid,
        /// The manager there.
        right: Lid,
    },
}

/// Why two ports cannot reach each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// One is InfiniBand, one Ethernet.
    #[error("one is InfiniBand, the other Ethernet")]
    Fabrics,
    /// The InfiniBand subnets differ.
    #[error("InfiniBand subnets {left} and {right} differ")]
    Subnets {
        /// The subnet here.
        left: SubnetPrefix,
        /// The subnet there.
        right: SubnetPrefix,
    },
    /// The partitions differ.
    #[error("partition keys {left} and {right} are of two partitions")]
    Partitions {
        /// The key here.
        left: PKey,
        /// The key there.
        right: PKey,
    },
    /// Both are limited members of the partition.
    #[error("partition keys {left} and {right} are both limited members'")]
    LimitedMembers {
        /// The key here.
        left: PKey,
        /// The key there.
        right: PKey,
    },
    /// One speaks RoCE v1, one v2.
    #[error("one speaks RoCE v1, the other v2")]
    RoceVersions,
    /// One address is IPv4, one IPv6, or one is link-local.
    #[error("{left} and {right} are of different kinds")]
    Families {
        /// The address here.
        left: IpAddr,
        /// The address there.
        right: IpAddr,
    },
    /// Two adapters have one address.
    #[error("both ends have {address}: give them addresses of their own")]
    SameAddress {
        /// The address.
        address: IpAddr,
    },
    /// No route leads there.
    #[error("no route from {from} to {to} over the device's interface")]
    NoRoute {
        /// Whence.
        from: IpAddr,
        /// Whither.
        to: IpAddr,
    },
    /// It was tried, and failed.
    #[error("probed: {answer}")]
    Probed {
        /// What came of it.
        answer: Answer,
    },
    /// It was not tried: too much else was.
    #[error("not probed: {limit} probes found too little")]
    NotProbed {
        /// How many probes are made at most.
        limit: usize,
    },
}

/// Whether two ports can reach each other. The same in both directions, but for the order of what
/// a reason names.
#[must_use]
pub fn between(left: &Endpoint, right: &Endpoint) -> Reach {
    match (&left.fabric, &right.fabric) {
        (
            Fabric::InfiniBand { subnet: left_subnet, subnet_manager: left_manager },
            Fabric::InfiniBand { subnet: right_subnet, subnet_manager: right_manager },
        ) => {
            if let Err(obstacle) = partitions(left.pkey, right.pkey) {
                return Reach::Unreachable(obstacle);
            }
            if left_subnet != right_subnet {
                let (left, right) = (*left_subnet, *right_subnet);
                return Reach::Unreachable(Obstacle::Subnets { left, right });
            }
            match (*left_manager, *right_manager) {
                (Some(left), Some(right)) if left != right => {
                    Reach::Undecided(Doubt::Managers { subnet: *left_subnet, left, right })
                }
                _ => Reach::Reachable,
            }
        }
        (Fabric::Ethernet(left_reach), Fabric::Ethernet(right_reach)) => {
            let same_device = left.guid.is_some() && left.guid == right.guid;
            ethernet(left_reach, right_reach, same_device)
        }
        _ => Reach::Unreachable(Obstacle::Fabrics),
    }
}

fn partitions(left: Option<PKey>, right: Option<PKey>) -> Result<(), Obstacle> {
    let (Some(left), Some(right)) = (left, right) else { return Ok(()) };
    if left.partition() != right.partition() {
        return Err(Obstacle::Partitions { left, right });
    }
    if !left.is_full_member() && !right.is_full_member() {
        return Err(Obstacle::LimitedMembers { left, right });
    }
    Ok(())
}

/// `same_device`: both are one adapter, which reaches itself whatever its address.
fn ethernet(left: &EthernetReach, right: &EthernetReach, same_device: bool) -> Reach {
    if left.version != right.version {
        return Reach::Unreachable(Obstacle::RoceVersions);
    }
    if same_device && left.address == right.address {
        return Reach::Reachable;
    }
    let families = Obstacle::Families { left: left.address, right: right.address };
    if left.address.is_ipv4() != right.address.is_ipv4()
        || left.is_link_local() != right.is_link_local()
    {
        return Reach::Unreachable(families);
    }
    if left.is_link_local() {
        return Reach::Undecided(Doubt::LinkLocal);
    }
    if let Some(overlay) = left.overlay.as_ref().or(right.overlay.as_ref()) {
        return Reach::Undecided(Doubt::Overlay { overlay: overlay.clone() });
    }
    if left.address == right.address {
        return Reach::Unreachable(Obstacle::SameAddress { address: left.address });
    }
    match (one_way(left, right), one_way(right, left)) {
        (Reach::Reachable, other) | (other, Reach::Reachable) => other,
        (Reach::Unreachable(obstacle), _) | (_, Reach::Unreachable(obstacle)) => {
            Reach::Unreachable(obstacle)
        }
        (doubt, _) => doubt,
    }
}

fn one_way(from: &EthernetReach, to: &EthernetReach) -> Reach {
    let Some(own) = from.network else {
        return Reach::Undecided(Doubt::NetworkUnknown { address: from.address });
    };
    if own.contains(to.address) {
        return Reach::Reachable;
    }
    let (version, from_address, to_address) = (from.version, from.address, to.address);
    if version == RoceVersion::V2 {
        if from.routed.iter().any(|network| network.contains(to_address)) {
            return Reach::Reachable;
        }
        if !from.tables_complete {
            return Reach::Undecided(Doubt::OtherTables { from: from_address, to: to_address });
        }
        if from.default_route {
            return Reach::Undecided(Doubt::DefaultRoute { from: from_address, to: to_address });
        }
    }
    Reach::Unreachable(Obstacle::NoRoute { from: from_address, to: to_address })
}
