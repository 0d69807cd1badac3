//! Interfaces that belong to containers: bridges, tunnels, and what their names say.
//!
//! A container network has the same addresses on every host (Docker's bridge is 172.17.0.1 nearly
//! everywhere), so its GIDs look routable and are not. Which *range* an address lies in says
//! nothing: data-centre fabrics are numbered from 10/8 as container networks are.

use std::fmt;

use kvferry_transport::rdma::device::{Netdev, NetdevName};

/// An interface that belongs to containers, and how that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlay {
    /// The interface.
    pub netdev: NetdevName,
    /// How it is known.
    pub sign: Sign,
}

/// How an interface is known to belong to containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It is a bridge.
    Bridge,
    /// It is a tunnel: `DEVTYPE` says so.
    Tunnel,
    /// Its name is one that container networks give, and it is no hardware.
    Label,
}

const TUNNELS: [&str; 5] = ["vxlan", "geneve", "gre", "ipip", "wireguard"];

/// What Docker, Podman, Kubernetes network plug-ins, LXC and libvirt call their interfaces.
const LABELS: [&str; 22] = [
    "docker",
    "br-",
    "podman",
    "cni",
    "nerdctl",
    "flannel",
    "cali",
    "vxlan",
    "tunl",
    "cilium",
    "lxc",
    "lxd",
    "weave",
    "kube-",
    "nodelocaldns",
    "antrea",
    "genev",
    "ovn",
    "ovs-",
    "veth",
    "virbr",
    "vnet",
];

impl Overlay {
    /// Whether an interface belongs to containers. `facts` are what sysfs says about it, if
    /// anything: without them only its name speaks.
    #[must_use]
    pub fn detect(name: &NetdevName, facts: Option<&Netdev>) -> Option<Self> {
        let found = |sign| Some(Self { netdev: name.clone(), sign });
        if let Some(facts) = facts {
            if facts.is_hardware || !facts.bonds.is_empty() {
                return None;
            }
            if facts.is_bridge {
                return found(Sign::Bridge);
            }
            if facts.kind.as_deref().is_some_and(|kind| TUNNELS.contains(&kind)) {
                return found(Sign::Tunnel);
            }
        }
        if LABELS.iter().any(|label| name.as_str().starts_with(label)) {
            return found(Sign::Label);
        }
        None
    }
}

impl fmt::Display for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.sign {
            Sign::Bridge => "a bridge",
            Sign::Tunnel => "a tunnel",
            Sign::Label => "by its name a container's",
        };
        write!(f, "{} ({what})", self.netdev)
    }
}

#[cfg(test)]
mod tests {
    use kvferry_transport::rdma::device::Fact;

    use super::*;

    fn netdev(name: &str) -> Netdev {
        let mtu_bytes: Fact<u32> = Ok(1500);
        let name = NetdevName::new(name).expect("a name");
        Netdev { name, mtu_bytes, is_bridge: false, kind: None, bonds: vec![], is_hardware: false }
    }

    fn sign(netdev: &Netdev) -> Option<Sign> {
        Overlay::detect(&netdev.name, Some(netdev)).map(|overlay| overlay.sign)
    }

    #[test]
    fn bridges_and_tunnels_are_known_whatever_they_are_called() {
        assert_eq!(sign(&Netdev { is_bridge: true, ..netdev("storage") }), Some(Sign::Bridge));
        let vxlan = Netdev { kind: Some("vxlan".into()), ..netdev("storage") };
        assert_eq!(sign(&vxlan), Some(Sign::Tunnel));
    }

    #[test]
    fn hardware_and_bonds_are_never_taken_for_overlays_by_their_names() {
        assert_eq!(sign(&Netdev { is_hardware: true, ..netdev("docker7") }), None);
        let slave = NetdevName::new("ens1").expect("a name");
        assert_eq!(sign(&Netdev { bonds: vec![slave], ..netdev("br-rdma") }), None);
    }

    #[test]
    fn what_is_no_hardware_is_known_by_its_name() {
        for name in ["docker0", "br-1f3a", "cni0", "flannel.1", "cali12", "veth9", "virbr0"] {
            assert_eq!(sign(&netdev(name)), Some(Sign::Label), "{name}");
        }
        for name in ["eth0", "bond0", "ens1.100", "rdma0"] {
            assert_eq!(sign(&netdev(name)), None, "{name}");
        }
    }
}
