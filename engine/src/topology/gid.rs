//! Which GID a port uses.

use std::cmp::Reverse;

use kvferry_transport::rdma::device::{
    GidEntry, GidIndex, GidScope, GidType, HostFacts, LinkLayer, Port,
};

use super::overlay::Overlay;
use super::verdict::{GidProblem, Refusal};
use super::wishes::Wished;

/// The GID of an Ethernet or InfiniBand port.
///
/// An index that the user asked for wins, and is checked. Without one, InfiniBand uses the first
/// GID, and Ethernet the best RoCE v2 one: see [`rank`].
pub(super) fn choose<'a>(
    port: &'a Port,
    link_layer: &LinkLayer,
    facts: &HostFacts,
    wish: Option<&Wished<GidIndex>>,
) -> Result<&'a GidEntry, Refusal> {
    let entries = port.gids.as_ref().map_err(|a| Refusal::Unknown { absence: a.clone() })?;
    if let Some(Wished { value: index, from }) = wish {
        return wished(port, link_layer, *index).map_err(|problem| Refusal::WishedGid {
            index: *index,
            from: *from,
            problem,
        });
    }
    let Some(first) = entries.first() else {
        return Err(Refusal::NoGid { table_length: port.gid_table_length });
    };
    match link_layer {
        LinkLayer::InfiniBand => Ok(first),
        _ => {
            let candidates = entries.iter().filter(|entry| entry.kind == Ok(GidType::RoceV2));
            let best = candidates.min_by_key(|entry| rank(entry, facts));
            best.ok_or(Refusal::NoRoceV2 { entries: entries.len() })
        }
    }
}

fn wished<'a>(
    port: &'a Port,
    link_layer: &LinkLayer,
    index: GidIndex,
) -> Result<&'a GidEntry, GidProblem> {
    if u32::from(index.0) >= port.gid_table_length {
        return Err(GidProblem::BeyondTable { table_length: port.gid_table_length });
    }
    let entry = port.gid_at(index).ok_or_else(|| {
        let first = port.gids.as_ref().ok().and_then(|entries| entries.first());
        GidProblem::Empty { first: first.map(|entry| entry.index) }
    })?;
    if *link_layer == LinkLayer::InfiniBand {
        return Ok(entry);
    }
    match &entry.kind {
        Ok(GidType::RoceV2 | GidType::IbOrRoceV1) => Ok(entry),
        Ok(found) => Err(GidProblem::Type { found: found.clone() }),
        Err(absence) => Err(GidProblem::TypeUnknown { absence: absence.clone() }),
    }
}

/// How good a GID is, the best first:
///
/// 1. not a container's before a container's;
/// 2. further than its link before link-local;
/// 3. with an interface that is visible here before one of another network namespace;
/// 4. IPv4 before IPv6;
/// 5. with an address that its interface really has before one that it does not;
/// 6. the lowest index, which is the oldest address.
fn rank(entry: &GidEntry, facts: &HostFacts) -> impl Ord + use<> {
    let netdev = entry.netdev.as_ref().ok();
    let overlay = netdev.is_some_and(|name| Overlay::detect(name, facts.netdev(name)).is_some());
    let scope = entry.gid.scope();
    let assigned = facts.addresses.as_ref().is_ok_and(|addresses| {
        addresses
            .iter()
            .any(|own| Some(&own.netdev) == netdev && own.address == entry.gid.address())
    });
    (
        overlay,
        scope == GidScope::LinkLocal,
        Reverse(netdev.is_some()),
        scope,
        Reverse(assigned),
        entry.index,
    )
}
