//! The verdict on one port.

use kvferry_transport::rdma::device::{
    Adapter, GidEntry, GidType, HostFacts, IpNetwork, LinkLayer, NetdevName, NodeType, PKeyIndex,
    Port, PortState, Route,
};

use super::endpoint::{Endpoint, EthernetReach, Fabric, Mtu, PortName, RoceVersion};
use super::overlay::Overlay;
use super::verdict::{Caution, Refusal};
use super::wishes::Wishes;
use super::{gid, pkey};

/// Whether a port can carry traffic, whatever the user's lists say, and how.
pub(super) fn assess(
    facts: &HostFacts,
    wishes: &Wishes,
    adapter: &Adapter,
    port: &Port,
    cautions: &mut Vec<Caution>,
) -> Result<Endpoint, Refusal> {
    check_adapter(adapter)?;
    check_state(port)?;
    let link_layer = check_link_layer(port)?;
    let pkey = match link_layer {
        LinkLayer::InfiniBand => Some(pkey::choose(port, wishes.pkey_index.as_ref(), cautions)?),
        _ => None,
    };
    let entry = gid::choose(port, link_layer, facts, wishes.gid_index.as_ref())?;
    let (fabric, mtu) = match link_layer {
        LinkLayer::InfiniBand => (infiniband(port, entry), None),
        _ => ethernet(facts, entry, cautions),
    };
    Ok(Endpoint {
        name: PortName { device: adapter.name.clone(), port: port.number },
        guid: adapter.guid.as_ref().ok().copied(),
        gid: entry.gid,
        gid_index: entry.index,
        pkey: pkey.map(|(_, key)| key),
        pkey_index: pkey.map_or(PKeyIndex(0), |(index, _)| index),
        mtu,
        rate: port.rate.as_ref().ok().copied(),
        fabric,
    })
}

/// The verdict that holds for all ports of an adapter.
pub(super) fn check_adapter(adapter: &Adapter) -> Result<(), Refusal> {
    match &adapter.node_type {
        Ok(NodeType::ChannelAdapter) => Ok(()),
        Ok(NodeType::Rnic) => Err(Refusal::Iwarp),
        Ok(NodeType::Other(found)) => Err(Refusal::NodeType { found: found.clone() }),
        Err(absence) => Err(Refusal::Unknown { absence: absence.clone() }),
    }
}

fn check_state(port: &Port) -> Result<(), Refusal> {
    match &port.state {
        Ok(PortState::Active) => Ok(()),
        Ok(PortState::Other(found)) => Err(Refusal::NotActive { found: found.clone() }),
        Err(absence) => Err(Refusal::Unknown { absence: absence.clone() }),
    }
}

fn check_link_layer(port: &Port) -> Result<&LinkLayer, Refusal> {
    match &port.link_layer {
        Ok(LinkLayer::Other(found)) => Err(Refusal::LinkLayer { found: found.clone() }),
        Ok(known) => Ok(known),
        Err(absence) => Err(Refusal::Unknown { absence: absence.clone() }),
    }
}

fn infiniband(port: &Port, chosen: &GidEntry) -> Fabric {
    // The subnet is GID 0's, whichever is used; only a table without it leaves the chosen one.
    let first = port.gids.as_ref().ok().and_then(|entries| entries.first()).unwrap_or(chosen);
    Fabric::InfiniBand {
        subnet: first.gid.subnet_prefix(),
        subnet_manager: port.sm_lid.as_ref().ok().copied().filter(|lid| lid.0 != 0),
    }
}

fn ethernet(
    facts: &HostFacts,
    entry: &GidEntry,
    cautions: &mut Vec<Caution>,
) -> (Fabric, Option<Mtu>) {
    let netdev = entry.netdev.as_ref().ok();
    let reach = EthernetReach {
        version: version(entry),
        address: entry.gid.address(),
        netdev: netdev.cloned(),
        network: netdev.and_then(|name| network(facts, name, entry)),
        routed: vec![],
        default_route: false,
        tables_complete: tables_complete(facts, entry),
        overlay: netdev.and_then(|name| Overlay::detect(name, facts.netdev(name))),
    };
    let reach = with_routes(facts, reach);
    warn(&reach, entry, cautions);
    let mtu_bytes = netdev.and_then(|name| facts.netdev(name)?.mtu_bytes.clone().ok());
    let mtu = mtu_bytes.and_then(Mtu::of_netdev);
    if let (Some(netdev), Some(mtu_bytes), Some(mtu)) = (netdev.cloned(), mtu_bytes, mtu)
        && mtu < Mtu::B4096
    {
        cautions.push(Caution::SmallPackets { netdev, mtu_bytes, mtu });
    }
    (Fabric::Ethernet(reach), mtu)
}

fn version(entry: &GidEntry) -> RoceVersion {
    match &entry.kind {
        Ok(GidType::IbOrRoceV1) => RoceVersion::V1,
        _ => RoceVersion::V2,
    }
}

fn network(facts: &HostFacts, netdev: &NetdevName, entry: &GidEntry) -> Option<IpNetwork> {
    let addresses = facts.addresses.as_ref().ok()?;
    let mut own = addresses.iter().filter(|own| own.netdev == *netdev);
    own.find(|own| own.address == entry.gid.address()).map(|own| own.network)
}

/// Whether what the tables do not mention cannot be reached. IPv6 shows all its tables in one
/// file; of IPv4's only the main one can be read.
fn tables_complete(facts: &HostFacts, entry: &GidEntry) -> bool {
    let routes = &facts.routes;
    if entry.gid.address().is_ipv6() {
        return routes.ipv6.is_ok();
    }
    let only_main = routes.other_ipv4_tables.as_ref().is_ok_and(Vec::is_empty);
    routes.ipv4.is_ok() && only_main
}

fn with_routes(facts: &HostFacts, mut reach: EthernetReach) -> EthernetReach {
    let tables = &facts.routes;
    let table = if reach.address.is_ipv4() { &tables.ipv4 } else { &tables.ipv6 };
    let (Ok(table), Some(netdev)) = (table, &reach.netdev) else { return reach };
    let over: Vec<&Route> = table.iter().filter(|route| route.netdev == *netdev).collect();
    reach.default_route = over.iter().any(|route| route.destination.is_everything());
    let networks = over.iter().map(|route| route.destination).filter(|network| {
        !network.is_everything() && !network.is_link_local() && Some(*network) != reach.network
    });
    reach.routed = networks.collect();
    reach.routed.sort_unstable();
    reach.routed.dedup();
    reach
}

fn warn(reach: &EthernetReach, entry: &GidEntry, cautions: &mut Vec<Caution>) {
    if let Some(overlay) = reach.overlay.clone() {
        cautions.push(Caution::Overlay { overlay });
    } else if reach.is_link_local() {
        cautions.push(Caution::LinkLocal);
    } else if reach.network.is_none() {
        cautions.push(match reach.netdev.clone() {
            Some(netdev) => Caution::NoNetwork { netdev },
            None => Caution::NoNetdev,
        });
    }
    if reach.version == RoceVersion::V1 {
        cautions.push(Caution::RoceV1 { index: entry.index });
    }
}
