//! Ports on the wire.

use kvferry_proto::message::MessageError;
use kvferry_proto::rpc::{self, rdma_port};
use kvferry_transport::rdma::device::{
    DeviceName, Gid, GidIndex, Guid, IpNetwork, Lid, NetdevName, PKey, PKeyIndex, PortNumber,
    SubnetPrefix,
};

use crate::topology::{Endpoint, EthernetReach, Fabric, Mtu, Overlay, PortName, RoceVersion, Sign};

/// The longest name of a device: `IB_DEVICE_NAME_MAX` of the kernel.
const NAME_BYTES: usize = 64;

/// How many networks of a port are looked at.
const NETWORKS: usize = 4096;

/// What a peer is told of a port.
pub(crate) fn to_wire(endpoint: &Endpoint) -> rpc::RdmaPort {
    let fabric = match &endpoint.fabric {
        Fabric::InfiniBand { subnet, subnet_manager } => {
            rdma_port::Fabric::Infiniband(rpc::RdmaInfiniBand {
                subnet: subnet.0,
                manager: subnet_manager.map(|lid| lid.0.into()),
            })
        }
        Fabric::Ethernet(reach) => rdma_port::Fabric::Ethernet(rpc::RdmaEthernet {
            roce_version: match reach.version {
                RoceVersion::V1 => 1,
                RoceVersion::V2 => 2,
            },
            network: reach.network.map(|network| network.to_string()).unwrap_or_default(),
            routed: reach.routed.iter().take(NETWORKS).map(ToString::to_string).collect(),
            default_route: reach.default_route,
            tables_complete: reach.tables_complete,
            overlay: reach.overlay.as_ref().map(|o| o.netdev.to_string()).unwrap_or_default(),
        }),
    };
    rpc::RdmaPort {
        device: endpoint.name.device.to_string(),
        port: endpoint.name.port.0.into(),
        gid: endpoint.gid.0.to_vec(),
        pkey: endpoint.pkey.map(|pkey| pkey.0.into()),
        mtu_bytes: endpoint.mtu.map_or(0, Mtu::bytes),
        guid: endpoint.guid.map_or(0, |guid| guid.0),
        fabric: Some(fabric),
    }
}

/// A port of a peer's.
///
/// # Errors
/// Where no honest peer describes one so.
pub(crate) fn from_wire(port: rpc::RdmaPort) -> Result<Endpoint, MessageError> {
    const MESSAGE: &str = "RdmaPort";
    let value = |field, value| MessageError::Value { message: MESSAGE, field, value };
    let missing = |field| MessageError::Missing { message: MESSAGE, field };
    let malformed = |reason: String| MessageError::Malformed { message: MESSAGE, reason };
    check_name(&port.device)?;
    let number = u8::try_from(port.port).ok().filter(|number| *number > 0);
    let number = number.ok_or_else(|| value("port", port.port.into()))?;
    let gid = <[u8; 16]>::try_from(port.gid.as_slice()).map_err(|_| missing("gid of 16 bytes"))?;
    let gid = Gid(gid);
    let pkey = port
        .pkey
        .map(|pkey| u16::try_from(pkey).map_err(|_| value("pkey", pkey.into())))
        .transpose()?;
    let mtu = match port.mtu_bytes {
        0 => None,
        bytes => Some(Mtu::from_bytes(bytes).ok_or_else(|| value("mtu_bytes", bytes.into()))?),
    };
    let fabric = match port.fabric.ok_or_else(|| missing("fabric"))? {
        rdma_port::Fabric::Infiniband(fabric) => Fabric::InfiniBand {
            subnet: SubnetPrefix(fabric.subnet),
            subnet_manager: fabric
                .manager
                .map(|lid| u16::try_from(lid).map(Lid).map_err(|_| value("manager", lid.into())))
                .transpose()?,
        },
        rdma_port::Fabric::Ethernet(reach) => {
            let network = |text: &str| {
                text.parse::<IpNetwork>().map_err(|error| malformed(format!("{text:?}: {error}")))
            };
            if reach.routed.len() > NETWORKS {
                let (message, field, found) = (MESSAGE, "routed networks", reach.routed.len());
                return Err(MessageError::TooMany { message, field, found, limit: NETWORKS });
            }
            let own = Some(reach.network.as_str()).filter(|own| !own.is_empty());
            Fabric::Ethernet(EthernetReach {
                version: match reach.roce_version {
                    1 => RoceVersion::V1,
                    2 => RoceVersion::V2,
                    other => return Err(value("roce_version", other.into())),
                },
                address: gid.address(),
                netdev: None,
                network: own.map(network).transpose()?,
                routed: reach.routed.iter().map(|one| network(one)).collect::<Result<_, _>>()?,
                default_route: reach.default_route,
                tables_complete: reach.tables_complete,
                overlay: match reach.overlay.as_str() {
                    "" => None,
                    netdev => {
                        let named = NetdevName::new(netdev);
                        let netdev =
                            named.ok_or_else(|| malformed("its overlay is no name".into()))?;
                        Some(Overlay { netdev, sign: Sign::Label })
                    }
                },
            })
        }
    };
    Ok(Endpoint {
        name: PortName { device: DeviceName::new(port.device), port: PortNumber(number) },
        guid: Some(Guid(port.guid)).filter(|guid| guid.0 != 0),
        gid,
        // Of use to its owner only.
        gid_index: GidIndex(0),
        pkey: pkey.map(PKey),
        pkey_index: PKeyIndex(0),
        mtu,
        rate: None,
        fabric,
    })
}

/// A name is shown to people: it is no longer than names are, and of printable characters.
fn check_name(name: &str) -> Result<(), MessageError> {
    if name.len() > NAME_BYTES {
        let (message, field, found) = ("RdmaPort", "bytes of a device's name", name.len());
        return Err(MessageError::TooMany { message, field, found, limit: NAME_BYTES });
    }
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        let reason = "its device has no name that can be one".into();
        return Err(MessageError::Malformed { message: "RdmaPort", reason });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn ethernet() -> Endpoint {
        let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1];
        Endpoint {
            name: PortName { device: DeviceName::new("mlx5_0"), port: PortNumber(1) },
            guid: Some(Guid(7)),
            gid: Gid(gid),
            gid_index: GidIndex(0),
            pkey: None,
            pkey_index: PKeyIndex(0),
            mtu: Some(Mtu::B4096),
            rate: None,
            fabric: Fabric::Ethernet(EthernetReach {
                version: RoceVersion::V2,
                address: IpAddr::from([10, 77, 0, 1]),
                netdev: None,
                network: Some("10.77.0.0/24".parse().unwrap()),
                routed: vec!["10.78.0.0/16".parse().unwrap()],
                default_route: true,
                tables_complete: false,
                overlay: None,
            }),
        }
    }

    #[test]
    fn a_port_is_read_as_it_was_written() {
        let infiniband = Endpoint {
            pkey: Some(PKey(0x8001)),
            mtu: None,
            fabric: Fabric::InfiniBand {
                subnet: SubnetPrefix(0xfe80 << 48),
                subnet_manager: Some(Lid(3)),
            },
            ..ethernet()
        };
        for endpoint in [ethernet(), infiniband] {
            assert_eq!(from_wire(to_wire(&endpoint)).unwrap(), endpoint);
        }
    }

    #[test]
    fn what_no_honest_peer_says_is_refused() {
        let good = || to_wire(&ethernet());
        let with = |change: fn(&mut rpc::RdmaEthernet)| {
            let mut port = good();
            if let Some(rdma_port::Fabric::Ethernet(reach)) = &mut port.fabric {
                change(reach);
            }
            port
        };
        for bad in [
            rpc::RdmaPort { device: String::new(), ..good() },
            rpc::RdmaPort { device: "mlx5\n0".into(), ..good() },
            rpc::RdmaPort { device: "m".repeat(65), ..good() },
            rpc::RdmaPort { port: 0, ..good() },
            rpc::RdmaPort { port: 256, ..good() },
            rpc::RdmaPort { gid: vec![1; 15], ..good() },
            rpc::RdmaPort { pkey: Some(1 << 16), ..good() },
            rpc::RdmaPort { mtu_bytes: 1500, ..good() },
            rpc::RdmaPort { fabric: None, ..good() },
            with(|reach| reach.roce_version = 3),
            with(|reach| reach.network = "10.0.0.0/33".into()),
            with(|reach| reach.routed = vec!["10.0.0.0/8".into(); 4097]),
        ] {
            assert!(from_wire(bad.clone()).is_err(), "{bad:?}");
        }
    }
}
