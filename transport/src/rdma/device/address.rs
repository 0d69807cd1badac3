//! Addresses of network interfaces, with the networks they lie in.

use std::net::IpAddr;

use super::fact::{Absence, Fact};
use super::netdev::NetdevName;
use super::network::IpNetwork;
use super::root::HostRoot;

/// An address that an interface has.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfaceAddress {
    /// The interface.
    pub netdev: NetdevName,
    /// The address.
    pub address: IpAddr,
    /// The network that the interface reaches directly.
    pub network: IpNetwork,
}

const CAPTURED: &str = "/ip-address.txt";

impl InterfaceAddress {
    /// All addresses: asked of the running kernel, or read from `ip-address.txt` of a captured
    /// host.
    ///
    /// # Errors
    /// [`Absence`] where the kernel does not answer or the capture has no such file.
    pub fn read_all(root: &HostRoot) -> Fact<Vec<Self>> {
        if root.is_live() { ask_kernel() } else { parse_listing(CAPTURED, &root.text(CAPTURED)?) }
    }

    fn new(netdev: &str, address: IpAddr, prefix_len: u8) -> Option<Self> {
        // `getifaddrs` and `ip` name an address's label, which may be the interface's name with a
        // colon and more, or a pair `veth0@if3`.
        let netdev = NetdevName::new(netdev.split([':', '@']).next()?)?;
        let network = IpNetwork::around(address, prefix_len).ok()?;
        Some(Self { netdev, address, network })
    }
}

fn ask_kernel() -> Fact<Vec<InterfaceAddress>> {
    let interfaces =
        if_addrs::get_if_addrs().map_err(|error| Absence::NoAddresses { kind: error.kind() })?;
    let addresses = interfaces.iter().filter_map(|interface| {
        let (address, prefix_len) = match &interface.addr {
            if_addrs::IfAddr::V4(v4) => (IpAddr::V4(v4.ip), v4.prefixlen),
            if_addrs::IfAddr::V6(v6) => (IpAddr::V6(v6.ip), v6.prefixlen),
        };
        InterfaceAddress::new(&interface.name, address, prefix_len)
    });
    Ok(addresses.collect())
}

/// `2: eth0    inet 10.0.0.2/24 brd 10.0.0.255 scope global eth0\ ...`, an address a line.
fn parse_listing(path: &str, text: &str) -> Fact<Vec<InterfaceAddress>> {
    let bad = |line: &str| Absence::malformed(path, line, "a line of `ip -o address show`");
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| parse_line(line).ok_or_else(|| bad(line)))
        .collect()
}

fn parse_line(line: &str) -> Option<InterfaceAddress> {
    let mut words = line.split_whitespace();
    words.next()?.strip_suffix(':')?.parse::<u32>().ok()?;
    let netdev = words.next()?;
    if !matches!(words.next()?, "inet" | "inet6") {
        return None;
    }
    let (address, prefix_len) = words.next()?.split_once('/')?;
    InterfaceAddress::new(netdev, address.parse().ok()?, prefix_len.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_listing_gives_each_address_with_its_network() {
        let listing = "2: ens1np0    inet 172.16.0.1/13 brd 172.23.255.255 scope global ens1np0\\ \n\
                       2: ens1np0    inet6 fe80::1/64 scope link \\       valid_lft forever\n";
        let found = parse_listing(CAPTURED, listing).expect("two addresses");
        let networks: Vec<_> = found.iter().map(|found| found.network.to_string()).collect();
        assert_eq!(networks, ["172.16.0.0/13", "fe80::/64"]);
    }

    #[test]
    fn a_label_behind_the_interface_does_not_hide_it() {
        let address = "10.0.0.1".parse().expect("an address");
        for name in ["ens1np0:rail0", "ens1np0@if7", "ens1np0"] {
            let found = InterfaceAddress::new(name, address, 8).expect("an address");
            assert_eq!(found.netdev.as_str(), "ens1np0");
        }
    }

    #[test]
    fn the_running_kernel_lists_its_loopback() {
        let found = InterfaceAddress::read_all(&HostRoot::live()).expect("addresses");
        assert!(found.iter().any(|found| found.address.is_loopback()), "{found:?}");
    }

    proptest! {
        #[test]
        fn no_listing_panics(text in "(?s).{0,200}") {
            let _ = parse_listing(CAPTURED, &text);
        }
    }
}
