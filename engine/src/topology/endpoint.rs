//! What a peer must know of a port that is used.

use std::fmt;
use std::net::IpAddr;

use kvferry_transport::rdma::device::{
    DeviceName, Gid, GidIndex, Guid, IpNetwork, Lid, LinkRate, NetdevName, PKey, PKeyIndex,
    PortNumber, SubnetPrefix,
};

use super::overlay::Overlay;

/// A port of an adapter, written `mlx5_0:1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortName {
    /// The adapter.
    pub device: DeviceName,
    /// The port.
    pub port: PortNumber,
}

/// The payload bytes of a packet at most. There are only five: InfiniBand Architecture
/// Specification volume 1, section 7.7.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

/// A port that is used, as a peer needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Which port.
    pub name: PortName,
    /// The adapter's identity, where it has one.
    pub guid: Option<Guid>,
    /// The chosen identifier.
    pub gid: Gid,
    /// Where it stands in the port's table.
    pub gid_index: GidIndex,
    /// The partition key; RoCE has the default one, and none matters.
    pub pkey: Option<PKey>,
    /// Where it stands in the port's table.
    pub pkey_index: PKeyIndex,
    /// The largest packet. sysfs does not say it: on Ethernet it follows from the netdev's, on
    /// InfiniBand it is unknown until the device is opened and asked for `active_mtu`.
    pub mtu: Option<Mtu>,
    /// The speed of the link.
    pub rate: Option<LinkRate>,
    /// What it is connected to.
    pub fabric: Fabric,
}

/// What a port is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// An InfiniBand subnet.
    InfiniBand {
        /// The subnet.
        subnet: SubnetPrefix,
        /// Its manager. Every subnet has one, and two fabrics that nobody gave a prefix of their
        /// own differ at least in this.
        subnet_manager: Option<Lid>,
    },
    /// An Ethernet network.
    Ethernet(EthernetReach),
}

/// Which RoCE a GID speaks. Both ends must speak the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RoceVersion {
    /// Ethernet frames: not beyond its own link.
    V1,
    /// UDP.
    V2,
}

/// What the tables of a host say about the reach of an Ethernet port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EthernetReach {
    /// The protocol of its GID.
    pub version: RoceVersion,
    /// The address of its GID.
    pub address: IpAddr,
    /// The interface that has the address, where it can be seen.
    pub netdev: Option<NetdevName>,
    /// The network that it is in, where the interface has this address.
    pub network: Option<IpNetwork>,
    /// Other networks to which routes lead over this interface, the default route left out.
    pub routed: Vec<IpNetwork>,
    /// Whether a default route leads over this interface.
    pub default_route: bool,
    /// Whether the tables that were read are all there are: if not, what they do not mention may
    /// be reached all the same.
    pub tables_complete: bool,
    /// Set where the interface belongs to containers, whose networks look alike on every host.
    pub overlay: Option<Overlay>,
}

impl Endpoint {
    /// The Ethernet side, on Ethernet.
    #[must_use]
    pub fn ethernet(&self) -> Option<&EthernetReach> {
        match &self.fabric {
            Fabric::Ethernet(reach) => Some(reach),
            Fabric::InfiniBand { .. } => None,
        }
    }
}

impl EthernetReach {
    /// Whether the address is of use on its own link only.
    #[must_use]
    pub fn is_link_local(&self) -> bool {
        IpNetwork::around(self.address, 64.min(bits(self.address)))
            .is_ok_and(|network| network.is_link_local())
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl Mtu {
    /// The bytes that RoCE's headers may take of an Ethernet packet: GRH or IP 40, UDP 8, BTH 12,
    /// XRC 4, AtomicETH 28, ICRC 4 (`iboe_get_mtu` in the kernel's `include/rdma/ib_addr.h`).
    const ROCE_HEADERS_BYTES: u32 = 96;

    const ALL: [Self; 5] = [Self::B4096, Self::B2048, Self::B1024, Self::B512, Self::B256];

    /// How many bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            Self::B256 => 256,
            Self::B512 => 512,
            Self::B1024 => 1024,
            Self::B2048 => 2048,
            Self::B4096 => 4096,
        }
    }

    /// The one of so many bytes.
    #[must_use]
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// What a RoCE port has on an interface with this MTU; `None` where not even the smallest
    /// packet fits.
    #[must_use]
    pub fn of_netdev(mtu_bytes: u32) -> Option<Self> {
        let room = mtu_bytes.checked_sub(Self::ROCE_HEADERS_BYTES)?;
        Self::ALL.into_iter().find(|mtu| mtu.bytes() <= room)
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}:{}", self.device, self.port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packet_size_of_roce_leaves_room_for_its_headers() {
        assert_eq!(Mtu::of_netdev(1500), Some(Mtu::B1024));
        assert_eq!(Mtu::of_netdev(4191), Some(Mtu::B2048));
        assert_eq!(Mtu::of_netdev(4192), Some(Mtu::B4096));
        assert_eq!(Mtu::of_netdev(9000), Some(Mtu::B4096));
        assert_eq!(Mtu::of_netdev(351), None);
        assert_eq!(Mtu::of_netdev(0), None);
    }
}
