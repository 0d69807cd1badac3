//! A port that is used, as JSON: what one host tells another.

use std::net::{IpAddr, Ipv6Addr};

use anyhow::Context as _;
use kvferry_engine::topology::{
    Endpoint, EthernetReach, Fabric, Mtu, Overlay, PortName, RoceVersion, Sign,
};
use kvferry_transport::rdma::device::{
    DeviceName, Gid, GidIndex, Guid, IpNetwork, Lid, LinkRate, NetdevName, PKey, PKeyIndex,
    PortNumber, SubnetPrefix,
};
use serde::{Deserialize, Serialize};

/// A port that is used.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct EndpointRow {
    device: String,
    port: u8,
    /// Sixteen hexadecimal digits.
    guid: Option<String>,
    gid: Ipv6Addr,
    gid_index: u16,
    pkey: Option<u16>,
    pkey_index: u16,
    mtu_bytes: Option<u32>,
    rate_mbit_per_s: Option<u64>,
    fabric: FabricRow,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum FabricRow {
    InfiniBand { subnet_prefix: String, subnet_manager_lid: Option<u16> },
    Ethernet(EthernetRow),
}

#[derive(Debug, Serialize, Deserialize)]
struct EthernetRow {
    roce_version: u8,
    address: IpAddr,
    netdev: Option<String>,
    network: Option<String>,
    routed: Vec<String>,
    default_route: bool,
    tables_complete: bool,
    overlay: Option<OverlayRow>,
}

#[derive(Debug, Serialize, Deserialize)]
struct OverlayRow {
    netdev: String,
    sign: SignRow,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SignRow {
    Bridge,
    Tunnel,
    Label,
}

impl From<&Endpoint> for EndpointRow {
    fn from(endpoint: &Endpoint) -> Self {
        Self {
            device: endpoint.name.device.to_string(),
            port: endpoint.name.port.0,
            guid: endpoint.guid.map(|guid| format!("{:016x}", guid.0)),
            gid: endpoint.gid.0.into(),
            gid_index: endpoint.gid_index.0,
            pkey: endpoint.pkey.map(|key| key.0),
            pkey_index: endpoint.pkey_index.0,
            mtu_bytes: endpoint.mtu.map(Mtu::bytes),
            rate_mbit_per_s: endpoint.rate.map(|rate| rate.mbit_per_s),
            fabric: match &endpoint.fabric {
                Fabric::InfiniBand { subnet, subnet_manager } => FabricRow::InfiniBand {
                    subnet_prefix: format!("{:016x}", subnet.0),
                    subnet_manager_lid: subnet_manager.map(|lid| lid.0),
                },
                Fabric::Ethernet(reach) => FabricRow::Ethernet(reach.into()),
            },
        }
    }
}

impl From<&EthernetReach> for EthernetRow {
    fn from(reach: &EthernetReach) -> Self {
        Self {
            roce_version: match reach.version {
                RoceVersion::V1 => 1,
                RoceVersion::V2 => 2,
            },
            address: reach.address,
            netdev: reach.netdev.as_ref().map(ToString::to_string),
            network: reach.network.map(|network| network.to_string()),
            routed: reach.routed.iter().map(ToString::to_string).collect(),
            default_route: reach.default_route,
            tables_complete: reach.tables_complete,
            overlay: reach.overlay.as_ref().map(|overlay| OverlayRow {
                netdev: overlay.netdev.to_string(),
                sign: match overlay.sign {
                    Sign::Bridge => SignRow::Bridge,
                    Sign::Tunnel => SignRow::Tunnel,
                    Sign::Label => SignRow::Label,
                },
            }),
        }
    }
}

impl TryFrom<EndpointRow> for Endpoint {
    type Error = anyhow::Error;

    fn try_from(row: EndpointRow) -> anyhow::Result<Self> {
        let name = PortName { device: DeviceName::new(row.device), port: PortNumber(row.port) };
        let mtu = |bytes| {
            Mtu::from_bytes(bytes).with_context(|| format!("no packet has {bytes} bytes at most"))
        };
        Ok(Self {
            name,
            guid: row.guid.as_deref().map(sixteen_digits).transpose()?.map(Guid),
            gid: Gid(row.gid.octets()),
            gid_index: GidIndex(row.gid_index),
            pkey: row.pkey.map(PKey),
            pkey_index: PKeyIndex(row.pkey_index),
            mtu: row.mtu_bytes.map(mtu).transpose()?,
            rate: row.rate_mbit_per_s.map(|mbit_per_s| LinkRate { mbit_per_s }),
            fabric: match row.fabric {
                FabricRow::InfiniBand { subnet_prefix, subnet_manager_lid } => Fabric::InfiniBand {
                    subnet: SubnetPrefix(sixteen_digits(&subnet_prefix)?),
                    subnet_manager: subnet_manager_lid.map(Lid),
                },
                FabricRow::Ethernet(row) => Fabric::Ethernet(row.try_into()?),
            },
        })
    }
}

impl TryFrom<EthernetRow> for EthernetReach {
    type Error = anyhow::Error;

    fn try_from(row: EthernetRow) -> anyhow::Result<Self> {
        let network = |text: &String| Ok::<IpNetwork, anyhow::Error>(text.parse()?);
        Ok(Self {
            version: match row.roce_version {
                1 => RoceVersion::V1,
                2 => RoceVersion::V2,
                other => anyhow::bail!("there is no RoCE v{other}"),
            },
            address: row.address,
            netdev: row.netdev.as_deref().map(netdev).transpose()?,
            network: row.network.as_ref().map(network).transpose()?,
            routed: row.routed.iter().map(network).collect::<Result<_, _>>()?,
            default_route: row.default_route,
            tables_complete: row.tables_complete,
            overlay: row.overlay.map(Overlay::try_from).transpose()?,
        })
    }
}

impl TryFrom<OverlayRow> for Overlay {
    type Error = anyhow::Error;

    fn try_from(row: OverlayRow) -> anyhow::Result<Self> {
        let sign = match row.sign {
            SignRow::Bridge => Sign::Bridge,
            SignRow::Tunnel => Sign::Tunnel,
            SignRow::Label => Sign::Label,
        };
        Ok(Self { netdev: netdev(&row.netdev)?, sign })
    }
}

fn netdev(name: &str) -> anyhow::Result<NetdevName> {
    NetdevName::new(name).with_context(|| format!("{name:?} is no interface's name"))
}

fn sixteen_digits(text: &str) -> anyhow::Result<u64> {
    anyhow::ensure!(text.len() == 16, "{text:?} is not sixteen hexadecimal digits");
    u64::from_str_radix(text, 16).with_context(|| format!("{text:?} is not hexadecimal"))
}
