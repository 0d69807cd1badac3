//! Network interfaces that GIDs belong to.

use std::fmt;

use super::fact::Fact;
use super::root::HostRoot;

/// The name of a network interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetdevName(String);

/// What the kernel says about a network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netdev {
    /// Its name.
    pub name: NetdevName,
    /// The largest packet, in bytes.
    pub mtu_bytes: Fact<u32>,
    /// Whether it is a bridge.
    pub is_bridge: bool,
    /// `DEVTYPE` of its `uevent`, where it has one: `vxlan`, `bond`, `vlan`, `bridge`.
    pub kind: Option<String>,
    /// The interfaces that it bonds; empty where it is no bond.
    pub bonds: Vec<NetdevName>,
    /// Whether it is hardware: it has a `device`.
    pub is_hardware: bool,
}

const NETDEVS: &str = "/sys/class/net";

impl NetdevName {
    /// A name, unless the kernel would not take it: `dev_valid_name` in `net/core/dev.c` allows at
    /// most 15 bytes and no slash, colon or white space.
    pub fn new(name: &str) -> Option<Self> {
        let legal = !name.is_empty()
            && name.len() <= 15
            && name != "."
            && name != ".."
            && !name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace());
        legal.then(|| Self(name.to_owned()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NetdevName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Netdev {
    /// All network interfaces, ordered by name.
    ///
    /// # Errors
    /// [`Absence`](super::Absence) where the kernel has no list of them.
    pub fn read_all(root: &HostRoot) -> Fact<Vec<Self>> {
        let names = root.names(NETDEVS)?;
        let named = names.iter().filter_map(|name| NetdevName::new(name));
        // `bonding_masters` is a file among the interfaces.
        let interfaces = named.filter(|name| name.as_str() != "bonding_masters");
        Ok(interfaces.map(|name| Self::read(root, name)).collect())
    }

    fn read(root: &HostRoot, name: NetdevName) -> Self {
        let path = |file: &str| format!("{NETDEVS}/{name}/{file}");
        let slaves = root.text(&path("bonding/slaves")).unwrap_or_default();
        let uevent = root.text(&path("uevent")).unwrap_or_default();
        Self {
            mtu_bytes: root.parsed(&path("mtu"), "an MTU", |text| text.parse().ok()),
            is_bridge: root.exists(&path("bridge")),
            kind: uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE=")).map(str::to_owned),
            bonds: slaves.split_whitespace().filter_map(NetdevName::new).collect(),
            is_hardware: root.exists(&path("device")),
            name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_kernel_would_refuse_are_none() {
        for name in ["", ".", "..", "a/b", "eth0:1", "a b", "sixteen-letters-"] {
            assert_eq!(NetdevName::new(name), None, "{name:?}");
        }
        assert!(NetdevName::new("fifteen-letters").is_some());
    }
}
