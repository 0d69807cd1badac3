//! What a manifest says.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;

use anyhow::Context as _;
use kvferry_transport::rdma::device::IpNetwork;
use serde::Deserialize;

/// A machine. Whatever is not given is as it mostly is; whatever is unknown is an error.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Manifest {
    /// What the machine is an example of.
    pub about: String,
    pub(super) netdev: Vec<Netdev>,
    pub(super) adapter: Vec<Adapter>,
    pub(super) roce: Vec<Roce>,
    pub(super) infiniband: Vec<InfiniBand>,
    pub(super) gpu: Vec<Gpu>,
    pub(super) routes: Vec<Route>,
    /// Numbers of further IPv4 routing tables.
    pub(super) other_tables: Vec<u32>,
    /// Any other file: path within the root, and content.
    pub(super) files: BTreeMap<String, String>,
}

/// A network interface. Its addresses bring their networks' routes along.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Netdev {
    pub(super) name: String,
    /// Its place in the PCIe tree; virtual without.
    pub(super) pci: Option<String>,
    pub(super) mtu: Option<u32>,
    /// `DEVTYPE`.
    pub(super) kind: Option<String>,
    pub(super) bridge: bool,
    pub(super) bonds: Vec<String>,
    pub(super) addresses: Vec<String>,
}

/// An adapter, in full.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Adapter {
    pub(super) name: String,
    /// Its place in the PCIe tree; without, there is no `device`.
    pub(super) pci: Option<String>,
    pub(super) numa: Option<i64>,
    pub(super) node_type: Option<String>,
    pub(super) guid: Option<String>,
    pub(super) port: Vec<Port>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Port {
    pub(super) number: Option<u8>,
    pub(super) state: Option<String>,
    pub(super) link_layer: Option<String>,
    pub(super) rate: Option<String>,
    pub(super) sm_lid: Option<String>,
    pub(super) pkeys: Vec<String>,
    pub(super) gids: Vec<Gid>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Gid {
    pub(super) index: u16,
    pub(super) gid: IpAddr,
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) netdev: Option<String>,
}

/// A RoCE adapter of one port with its interface, and the GIDs that the kernel makes of its
/// addresses: link-local first, each once for RoCE v1 and once for v2.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Roce {
    pub(super) name: String,
    pub(super) netdev: String,
    pub(super) pci: Option<String>,
    pub(super) numa: Option<i64>,
    pub(super) mtu: Option<u32>,
    #[serde(default)]
    pub(super) addresses: Vec<String>,
}

/// An InfiniBand adapter of one port.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InfiniBand {
    pub(super) name: String,
    pub(super) pci: Option<String>,
    pub(super) numa: Option<i64>,
    /// GID 0.
    pub(super) gid: IpAddr,
    pub(super) sm_lid: Option<String>,
    pub(super) pkeys: Option<Vec<String>>,
    pub(super) state: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Gpu {
    pub(super) pci: String,
    pub(super) numa: i64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Route {
    pub(super) destination: String,
    pub(super) gateway: Option<IpAddr>,
    pub(super) netdev: String,
}

impl Manifest {
    /// The manifest of a name.
    ///
    /// # Errors
    /// Where there is none, or it is malformed.
    pub fn named(name: &str) -> anyhow::Result<Self> {
        let path = super::manifests().join(format!("{name}.toml"));
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    }

    /// The adapters and interfaces in full, short forms written out.
    pub(super) fn expand(&self) -> anyhow::Result<(Vec<Adapter>, Vec<Netdev>)> {
        let (mut adapters, mut netdevs) = (self.adapter.clone(), self.netdev.clone());
        for roce in &self.roce {
            adapters.push(roce.adapter()?);
            netdevs.push(roce.netdev());
        }
        adapters.extend(self.infiniband.iter().map(InfiniBand::adapter));
        Ok((adapters, netdevs))
    }
}

impl Roce {
    fn netdev(&self) -> Netdev {
        Netdev {
            name: self.netdev.clone(),
            pci: self.pci.clone(),
            mtu: self.mtu,
            addresses: self.addresses.clone(),
            ..Netdev::default()
        }
    }

    fn adapter(&self) -> anyhow::Result<Adapter> {
        let mut gids = Vec::new();
        let mut addresses = vec![link_local(&self.name)];
        for address in &self.addresses {
            addresses.push(split(address)?.0);
        }
        for gid in addresses {
            for kind in ["IB/RoCE v1", "RoCE v2"] {
                let index = u16::try_from(gids.len())?;
                let (kind, netdev) = (Some(kind.to_owned()), Some(self.netdev.clone()));
                gids.push(Gid { index, gid, kind, netdev });
            }
        }
        let port = Port { gids, pkeys: vec!["0xffff".to_owned()], ..Port::default() };
        let (name, pci, numa) = (self.name.clone(), self.pci.clone(), self.numa);
        Ok(Adapter { name, pci, numa, port: vec![port], ..Adapter::default() })
    }
}

impl InfiniBand {
    fn adapter(&self) -> Adapter {
        let kind = Some("IB/RoCE v1".to_owned());
        let port = Port {
            state: self.state.clone(),
            link_layer: Some("InfiniBand".to_owned()),
            sm_lid: self.sm_lid.clone(),
            pkeys: self.pkeys.clone().unwrap_or_else(|| vec!["0xffff".to_owned()]),
            gids: vec![Gid { index: 0, gid: self.gid, kind, netdev: None }],
            ..Port::default()
        };
        let (name, pci, numa) = (self.name.clone(), self.pci.clone(), self.numa);
        Adapter { name, pci, numa, port: vec![port], ..Adapter::default() }
    }
}

/// A link-local address that no other name has.
fn link_local(name: &str) -> IpAddr {
    IpAddr::V6(((0xfe80_u128 << 112) | u128::from(number_of(name))).into())
}

/// A number that follows from a name: FNV-1a of its bytes.
pub(super) fn number_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// An address and its network, of `ADDRESS/LENGTH`.
pub(super) fn split(text: &str) -> anyhow::Result<(IpAddr, IpNetwork)> {
    let (address, _) = text.split_once('/').with_context(|| format!("{text}: no length"))?;
    let network = text.parse().with_context(|| format!("{text}: not a network"))?;
    Ok((address.parse().with_context(|| format!("{text}: not an address"))?, network))
}
