//! Places in the PCIe tree.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use super::fact::{Absence, Fact};
use super::root::HostRoot;

/// A NUMA node's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NumaNode(pub u32);

/// The address of a PCI function, ordered as `nvidia-smi` counts GPUs: domain, bus, device,
/// function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// Domain, also called segment.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, below 32.
    pub device: u8,
    /// Function, below 8.
    pub function: u8,
}

/// The way from a host bridge to a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PciPath {
    /// The host bridge, as `pci0000:15`.
    pub host_bridge: String,
    /// The bridges on the way, then the device: never empty.
    pub functions: Vec<PciAddress>,
}

impl FromStr for PciAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (domain, rest) = text.split_once(':').ok_or(())?;
        let (bus, rest) = rest.split_once(':').ok_or(())?;
        let (device, function) = rest.split_once('.').ok_or(())?;
        if domain.len() < 4 || bus.len() != 2 || device.len() != 2 || function.len() != 1 {
            return Err(());
        }
        let byte = |text| u8::from_str_radix(text, 16).map_err(|_| ());
        let address = Self {
            domain: u32::from_str_radix(domain, 16).map_err(|_| ())?,
            bus: byte(bus)?,
            device: byte(device)?,
            function: byte(function)?,
        };
        if address.device < 32 && address.function < 8 { Ok(address) } else { Err(()) }
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        f.pad(&format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
    }
}

impl PciPath {
    /// The path that a directory under `/sys/devices` shows, if it is one of the PCIe tree. What
    /// lies below the last function (a netdev, a sub-function) does not count.
    #[must_use]
    pub fn parse(directory: &Path) -> Option<Self> {
        let mut parts = directory.components().map(|part| part.as_os_str().to_string_lossy());
        let host_bridge = parts.find(|part| is_host_bridge(part))?.into_owned();
        let functions: Vec<_> = parts.map_while(|part| part.parse().ok()).collect();
        if functions.is_empty() { None } else { Some(Self { host_bridge, functions }) }
    }

    /// The device at the end.
    #[must_use]
    pub fn device(&self) -> Option<PciAddress> {
        self.functions.last().copied()
    }

    pub(super) fn read(root: &HostRoot, link: &str) -> Fact<Self> {
        let target = root.target(link)?;
        Self::parse(&target).ok_or_else(|| {
            Absence::malformed(link, &target.to_string_lossy(), "a device on a PCI bus")
        })
    }
}

fn is_host_bridge(part: &str) -> bool {
    let Some((domain, bus)) = part.strip_prefix("pci").and_then(|rest| rest.split_once(':')) else {
        return false;
    };
    let hexadecimal = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit());
    hexadecimal(domain) && hexadecimal(bus)
}

pub(super) fn read_numa_node(root: &HostRoot, path: &str) -> Fact<NumaNode> {
    let number: i64 = root.parsed(path, "a NUMA node's number", |text| text.parse().ok())?;
    match u32::try_from(number) {
        Ok(node) => Ok(NumaNode(node)),
        Err(_) if number == -1 => {
            Err(Absence::NotAssigned { path: path.to_owned(), what: "NUMA node" })
        }
        Err(_) => Err(Absence::malformed(path, &number.to_string(), "a NUMA node's number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_keeps_bridges_and_device_and_drops_what_lies_below() {
        let path = PciPath::parse(Path::new(
            "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/mlx5_core.sf.4/infiniband/mlx5_2",
        ));
        let path = path.expect("a PCI path");
        assert_eq!(path.host_bridge, "pci0000:15");
        assert_eq!(path.device().map(|device| device.to_string()), Some("0000:16:00.0".into()));
        assert_eq!(path.functions.len(), 2);
    }

    #[test]
    fn what_is_not_on_a_pci_bus_has_no_path() {
        for directory in ["/sys/devices/virtual/net/lo", "/sys/devices/pci0000:00", "/", "/pcix:y/"]
        {
            assert_eq!(PciPath::parse(Path::new(directory)), None, "{directory}");
        }
    }

    #[test]
    fn a_device_without_a_node_is_told_from_one_that_talks_nonsense() {
        let root = tempfile::tempdir().expect("a directory");
        let read = |content: &str| {
            std::fs::write(root.path().join("numa_node"), content).expect("a file");
            read_numa_node(&HostRoot::captured(root.path()), "/numa_node")
        };
        assert_eq!(read("1\n"), Ok(NumaNode(1)));
        assert!(matches!(read("-1\n"), Err(Absence::NotAssigned { .. })));
        assert!(matches!(read("-2\n"), Err(Absence::Malformed { .. })));
        assert!(matches!(read(""), Err(Absence::Malformed { .. })));
    }

    #[test]
    fn addresses_of_wrong_form_are_refused() {
        for text in ["0000:18:20.0", "0000:18:00.8", "18:00.0", "0000:18:00", "0000:1:00.0", ""] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
        let wide: PciAddress = "10000:e1:00.0".parse().expect("a domain of five digits");
        assert_eq!(wide.to_string(), "10000:e1:00.0");
    }
}
