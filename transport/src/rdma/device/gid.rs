//! Global identifiers of ports: 128 bits that look like, and mostly are, IPv6 addresses.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use super::fact::Fact;
use super::netdev::NetdevName;
use super::network::is_link_local;
use super::port::PortNumber;
use super::root::HostRoot;

/// A global identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

/// An index in a port's table of global identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GidIndex(pub u16);

/// The upper 64 bits of an InfiniBand port's GID 0: its subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubnetPrefix(pub u64);

/// How far a GID's address carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GidScope {
    /// An IPv4 address that routers forward, whichever range it lies in: 10/8 is what data centres
    /// use for their fabrics.
    Ipv4,
    /// A global or unique-local IPv6 address.
    Ipv6,
    /// fe80::/10 or 169.254/16: not beyond its own link.
    LinkLocal,
}

/// The protocol that packets with a GID speak.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GidType {
    /// RoCE v2: over UDP, routable.
    RoceV2,
    /// InfiniBand, or RoCE v1 on Ethernet, which is not routable.
    IbOrRoceV1,
    /// Something else.
    Other(String),
}

/// An entry of a port's table that is not all zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Where it stands in the table.
    pub index: GidIndex,
    /// The identifier.
    pub gid: Gid,
    /// Its protocol.
    pub kind: Fact<GidType>,
    /// The netdev that it belongs to; not known in another network namespace.
    pub netdev: Fact<NetdevName>,
}

impl Gid {
    /// Whether the entry is empty.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// The address that it stands for: IPv4 where it is a mapped one.
    #[must_use]
    pub fn address(self) -> IpAddr {
        let address = Ipv6Addr::from(self.0);
        address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
    }

    /// How far its address carries.
    #[must_use]
    pub fn scope(self) -> GidScope {
        match self.address() {
            IpAddr::V4(v4) if v4.is_link_local() => GidScope::LinkLocal,
            IpAddr::V4(_) => GidScope::Ipv4,
            IpAddr::V6(v6) if is_link_local(v6) => GidScope::LinkLocal,
            IpAddr::V6(_) => GidScope::Ipv6,
        }
    }

    /// The subnet, on InfiniBand.
    #[must_use]
    pub fn subnet_prefix(self) -> SubnetPrefix {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        SubnetPrefix(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&Ipv6Addr::from(self.0).to_string())
    }
}

impl fmt::Display for SubnetPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g, h, i] = self.0.to_be_bytes();
        f.pad(&format!("{a:02x}{b:02x}:{c:02x}{d:02x}:{e:02x}{g:02x}:{h:02x}{i:02x}"))
    }
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::RoceV2 => "RoCE v2",
            Self::IbOrRoceV1 => "IB/RoCE v1",
            Self::Other(text) => text,
        })
    }
}

/// A port's table: how long it is, and the entries that are not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GidTable {
    pub(super) length: u32,
    pub(super) entries: Vec<GidEntry>,
}

pub(super) fn read(root: &HostRoot, adapter: &str, port: PortNumber) -> Fact<GidTable> {
    let port = format!("{adapter}/ports/{port}");
    let mut table = GidTable::default();
    for name in root.names(&format!("{port}/gids"))? {
        let Ok(index) = name.parse().map(GidIndex) else { continue };
        table.length += 1;
        let gid = root.parsed(&format!("{port}/gids/{name}"), "a GID", parse);
        // An entry that cannot be read can be no more chosen than an empty one.
        let Ok(gid) = gid else { continue };
        if gid.is_zero() {
            continue;
        }
        table.entries.push(GidEntry {
            index,
            gid,
            kind: root.text(&format!("{port}/gid_attrs/types/{name}")).map(kind),
            netdev: root.parsed(
                &format!("{port}/gid_attrs/ndevs/{name}"),
                "a netdev's name",
                NetdevName::new,
            ),
        });
    }
    table.entries.sort_by_key(|entry| entry.index);
    Ok(table)
}

fn kind(text: String) -> GidType {
    match text.as_str() {
        "RoCE v2" => GidType::RoceV2,
        "IB/RoCE v1" => GidType::IbOrRoceV1,
        _ => GidType::Other(text),
    }
}

/// What sysfs writes: eight groups of four hexadecimal digits, never shortened.
fn parse(text: &str) -> Option<Gid> {
    if text.len() != 39 {
        return None;
    }
    text.parse::<Ipv6Addr>().ok().map(|address| Gid(address.octets()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        Gid(text.parse::<Ipv6Addr>().expect("an address").octets())
    }

    #[test]
    fn scope_follows_the_address_and_not_its_range_of_private_use() {
        assert_eq!(gid("::ffff:10.14.1.72").scope(), GidScope::Ipv4);
        assert_eq!(gid("::ffff:169.254.3.1").scope(), GidScope::LinkLocal);
        assert_eq!(gid("fd93:16d3::1").scope(), GidScope::Ipv6);
        assert_eq!(gid("2001:db8::1").scope(), GidScope::Ipv6);
        assert_eq!(gid("fe80::1").scope(), GidScope::LinkLocal);
        assert_eq!(gid("febf::1").scope(), GidScope::LinkLocal);
    }

    #[test]
    fn the_subnet_prefix_is_the_upper_half() {
        let prefix = gid("fec0:1:2:3:4:5:6:7").subnet_prefix();
        assert_eq!(prefix, SubnetPrefix(0xfec0_0001_0002_0003));
        assert_eq!(prefix.to_string(), "fec0:0001:0002:0003");
    }

    #[test]
    fn only_the_long_form_that_sysfs_writes_is_a_gid() {
        assert!(parse("fe80:0000:0000:0000:0000:0000:0000:0001").is_some());
        assert_eq!(parse("fe80::1"), None);
        assert_eq!(parse("fe80:0000:0000:0000:0000:0000:0000:000g"), None);
    }
}
