//! From a manifest to a tree of files.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::manifest::{Adapter, Manifest, Netdev, Port, number_of};
use super::tables;

/// How many GIDs a port's table has; those that a manifest does not give are empty.
const GID_TABLE: u16 = 16;

impl Manifest {
    /// Makes the tree in a directory that is empty or not there yet.
    ///
    /// # Errors
    /// Where the manifest says something impossible, or a file cannot be written.
    pub fn build(&self, directory: &Path) -> anyhow::Result<()> {
        let tree = Tree { root: directory.to_owned(), seed: self.about.clone() };
        let (adapters, netdevs) = self.expand()?;
        for class in ["sys/class/infiniband", "sys/class/net", "sys/bus/pci/devices"] {
            tree.directory(class)?;
        }
        for gpu in &self.gpu {
            tree.pci_device(&gpu.pci, Some(gpu.numa), "0x10de", "0x030200")?;
        }
        for adapter in &adapters {
            tree.adapter(adapter).with_context(|| adapter.name.clone())?;
        }
        for netdev in &netdevs {
            tree.netdev(netdev).with_context(|| netdev.name.clone())?;
        }
        let (ipv4, ipv6) = tables::routes(self, &netdevs)?;
        tree.file("proc/net/route", &ipv4)?;
        tree.file("proc/net/ipv6_route", &ipv6)?;
        tree.file("proc/net/fib_trie", &tables::trie(&self.other_tables))?;
        tree.file("ip-address.txt", &tables::addresses(&netdevs)?)?;
        for (path, content) in &self.files {
            tree.file(path, content)?;
        }
        Ok(())
    }
}

struct Tree {
    root: PathBuf,
    /// What makes the GUIDs of two machines differ.
    seed: String,
}

impl Tree {
    fn directory(&self, path: &str) -> anyhow::Result<()> {
        fs::create_dir_all(self.root.join(path)).with_context(|| path.to_owned())
    }

    fn file(&self, path: &str, content: &str) -> anyhow::Result<()> {
        let file = self.root.join(path);
        let parent = file.parent().context("a file without a directory")?;
        fs::create_dir_all(parent).with_context(|| path.to_owned())?;
        let content = if content.ends_with('\n') || content.is_empty() {
            content.to_owned()
        } else {
            format!("{content}\n")
        };
        fs::write(&file, content).with_context(|| path.to_owned())
    }

    /// A link in `/sys/class/CLASS` or `/sys/bus/pci/devices`, all of which lie two levels below
    /// `/sys` or three.
    fn link(&self, link: &str, up: &str, target: &str) -> anyhow::Result<()> {
        let link = self.root.join(link);
        if link.is_symlink() {
            return Ok(());
        }
        symlink(format!("{up}/{target}"), &link).with_context(|| link.display().to_string())
    }

    /// A device of the PCIe tree, of which several parts of a manifest may speak.
    fn pci_device(
        &self,
        path: &str,
        numa: Option<i64>,
        vendor: &str,
        class: &str,
    ) -> anyhow::Result<String> {
        let device = format!("devices/{path}");
        let (_, address) = path.rsplit_once('/').with_context(|| format!("{path}: no PCI path"))?;
        if self.root.join("sys").join(&device).join("vendor").exists() {
            return Ok(device);
        }
        self.file(&format!("sys/{device}/vendor"), vendor)?;
        self.file(&format!("sys/{device}/class"), class)?;
        self.file(&format!("sys/{device}/numa_node"), &numa.unwrap_or(-1).to_string())?;
        self.link(&format!("sys/bus/pci/devices/{address}"), "../../..", &device)?;
        Ok(device)
    }

    /// The directory of an adapter or interface: below its PCI device, or among the virtual ones.
    fn class_device(
        &self,
        class: &str,
        name: &str,
        pci: Option<&str>,
        numa: Option<i64>,
    ) -> anyhow::Result<String> {
        let parent = match pci {
            Some(path) => self.pci_device(path, numa, "0x15b3", "0x020000")?,
            None => "devices/virtual".to_owned(),
        };
        let own = format!("{parent}/{class}/{name}");
        self.directory(&format!("sys/{own}"))?;
        if pci.is_some() {
            self.link(&format!("sys/{own}/device"), "..", "..")?;
        }
        self.link(&format!("sys/class/{class}/{name}"), "../..", &own)?;
        Ok(format!("sys/{own}"))
    }

    fn netdev(&self, netdev: &Netdev) -> anyhow::Result<()> {
        let own = self.class_device("net", &netdev.name, netdev.pci.as_deref(), None)?;
        self.file(&format!("{own}/mtu"), &netdev.mtu.unwrap_or(9000).to_string())?;
        let kind = netdev.kind.as_ref().map(|kind| format!("DEVTYPE={kind}\n"));
        let uevent = format!("{}INTERFACE={}\n", kind.unwrap_or_default(), netdev.name);
        self.file(&format!("{own}/uevent"), &uevent)?;
        if netdev.bridge {
            self.directory(&format!("{own}/bridge"))?;
        }
        if !netdev.bonds.is_empty() {
            self.file(&format!("{own}/bonding/slaves"), &netdev.bonds.join(" "))?;
        }
        Ok(())
    }

    fn adapter(&self, adapter: &Adapter) -> anyhow::Result<()> {
        let name = &adapter.name;
        let own = self.class_device("infiniband", name, adapter.pci.as_deref(), adapter.numa)?;
        let node_type = adapter.node_type.as_deref().unwrap_or("1: CA");
        self.file(&format!("{own}/node_type"), node_type)?;
        let drawn = format!("{:016x}", number_of(&format!("{}{name}", self.seed)) | 1);
        let groups = [&drawn[..4], &drawn[4..8], &drawn[8..12], &drawn[12..]].join(":");
        self.file(&format!("{own}/node_guid"), adapter.guid.as_deref().unwrap_or(&groups))?;
        self.directory(&format!("{own}/ports"))?;
        for (number, port) in (1..).zip(&adapter.port) {
            self.port(&format!("{own}/ports/{}", port.number.unwrap_or(number)), port)?;
        }
        Ok(())
    }

    fn port(&self, own: &str, port: &Port) -> anyhow::Result<()> {
        let write = |file: &str, given: &Option<String>, usual: &str| {
            self.file(&format!("{own}/{file}"), given.as_deref().unwrap_or(usual))
        };
        write("state", &port.state, "4: ACTIVE")?;
        write("link_layer", &port.link_layer, "Ethernet")?;
        write("rate", &port.rate, "400 Gb/sec (4X NDR)")?;
        write("sm_lid", &port.sm_lid, "0x0")?;
        for (index, key) in port.pkeys.iter().enumerate() {
            self.file(&format!("{own}/pkeys/{index}"), key)?;
        }
        for index in 0..GID_TABLE {
            let given = port.gids.iter().find(|gid| gid.index == index);
            let gid = given.map_or(Ipv6Addr::UNSPECIFIED, |given| match given.gid {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            });
            let groups = gid.segments().map(|group| format!("{group:04x}")).join(":");
            self.file(&format!("{own}/gids/{index}"), &groups)?;
            for (attribute, value) in [
                ("types", given.and_then(|given| given.kind.as_ref())),
                ("ndevs", given.and_then(|given| given.netdev.as_ref())),
            ] {
                let path = format!("{own}/gid_attrs/{attribute}/{index}");
                match value {
                    Some(value) => self.file(&path, value)?,
                    // The kernel answers EINVAL. No plain file does, but a directory answers
                    // EISDIR, which is as unexpected to whoever reads it.
                    None => self.directory(&path)?,
                }
            }
        }
        Ok(())
    }
}
