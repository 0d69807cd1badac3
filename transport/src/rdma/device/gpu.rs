//! GPUs, as far as the PCI bus tells; no CUDA call is made.

use std::fmt;

use super::fact::Fact;
use super::pci::{self, NumaNode, PciAddress, PciPath};
use super::root::HostRoot;

/// A physical GPU's number: its place in the order of PCI addresses, which is how `nvidia-smi`
/// counts, and CUDA with `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuIndex(pub u32);

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Which of the host's.
    pub index: GpuIndex,
    /// Where it is.
    pub address: PciAddress,
    /// The way to it from its host bridge.
    pub pci: Fact<PciPath>,
    /// The memory node it is near.
    pub numa_node: Fact<NumaNode>,
}

const DEVICES: &str = "/sys/bus/pci/devices";
const NVIDIA: &str = "0x10de";
/// PCI classes "VGA compatible controller" and "3D controller", before their interface byte.
const DISPLAY_CLASSES: [&str; 2] = ["0x0300", "0x0302"];

impl Gpu {
    /// All NVIDIA GPUs, in the order of their numbers.
    ///
    /// # Errors
    /// [`Absence`](super::Absence) where the kernel has no list of PCI devices.
    pub fn read_all(root: &HostRoot) -> Fact<Vec<Self>> {
        let names = root.names(DEVICES)?;
        let mut addresses: Vec<PciAddress> = names
            .iter()
            .filter(|name| is_gpu(root, name))
            .filter_map(|name| name.parse().ok())
            .collect();
        addresses.sort_unstable();
        Ok((0..)
            .zip(addresses)
            .map(|(number, address)| Self::read(root, number, address))
            .collect())
    }

    fn read(root: &HostRoot, number: u32, address: PciAddress) -> Self {
        let path = format!("{DEVICES}/{address}");
        Self {
            index: GpuIndex(number),
            address,
            pci: PciPath::read(root, &path),
            numa_node: pci::read_numa_node(root, &format!("{path}/numa_node")),
        }
    }
}

fn is_gpu(root: &HostRoot, name: &str) -> bool {
    let says = |file| root.text(&format!("{DEVICES}/{name}/{file}")).unwrap_or_default();
    says("vendor") == NVIDIA && DISPLAY_CLASSES.iter().any(|class| says("class").starts_with(class))
}

impl fmt::Display for GpuIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
