//! Tables of addresses and routes, as the kernel and `ip` print them.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kvferry_transport::rdma::device::IpNetwork;

use super::manifest::{Manifest, Netdev, split};

/// The output of `ip -o address show`.
pub(super) fn addresses(netdevs: &[Netdev]) -> anyhow::Result<String> {
    let mut text = String::new();
    for (number, netdev) in (1..).zip(netdevs) {
        for address in &netdev.addresses {
            let family = if split(address)?.0.is_ipv4() { "inet" } else { "inet6" };
            let name = &netdev.name;
            writeln!(
                text,
                "{number}: {name}    {family} {address} scope global {name}\\       valid_lft forever preferred_lft forever"
            )?;
        }
    }
    Ok(text)
}

/// `/proc/net/route` and `/proc/net/ipv6_route`.
pub(super) fn routes(manifest: &Manifest, netdevs: &[Netdev]) -> anyhow::Result<(String, String)> {
    let mut ipv4 = String::from(
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n",
    );
    let mut ipv6 = String::new();
    let mut add = |network: IpNetwork,
                   gateway: Option<IpAddr>,
                   netdev: &str|
     -> anyhow::Result<()> {
        let flags = if gateway.is_some() { 3_u32 } else { 1 };
        match network.address() {
            IpAddr::V4(destination) => {
                let gateway = match gateway {
                    Some(IpAddr::V4(gateway)) => gateway,
                    None => Ipv4Addr::UNSPECIFIED,
                    Some(other) => anyhow::bail!("{other} is no gateway to {network}"),
                };
                let spare = 32 - u32::from(network.prefix_len());
                let mask = Ipv4Addr::from_bits(u32::MAX.checked_shl(spare).unwrap_or(0));
                let [destination, gateway, mask] = [destination, gateway, mask].map(hexadecimal);
                writeln!(
                    ipv4,
                    "{netdev}\t{destination}\t{gateway}\t{flags:04X}\t0\t0\t0\t{mask}\t0\t0\t0"
                )?;
            }
            IpAddr::V6(destination) => {
                let gateway = match gateway {
                    Some(IpAddr::V6(gateway)) => gateway,
                    None => Ipv6Addr::UNSPECIFIED,
                    Some(other) => anyhow::bail!("{other} is no gateway to {network}"),
                };
                let (to, length, via) =
                    (destination.to_bits(), network.prefix_len(), gateway.to_bits());
                writeln!(
                    ipv6,
                    "{to:032x} {length:02x} {:032x} 00 {via:032x} 00000100 00000001 00000000 {flags:08x} {netdev:>8}",
                    0
                )?;
            }
        }
        Ok(())
    };
    for netdev in netdevs {
        for address in &netdev.addresses {
            add(split(address)?.1, None, &netdev.name)?;
        }
    }
    for route in &manifest.routes {
        add(route.destination.parse()?, route.gateway, &route.netdev)?;
    }
    Ok((ipv4, ipv6))
}

/// `/proc/net/fib_trie`, of which only the headings matter here.
pub(super) fn trie(other_tables: &[u32]) -> String {
    let others = other_tables.iter().map(|table| format!("Id {table}:\n  +-- 0.0.0.0/0 2 0 2\n"));
    let own = ["Main:\n  +-- 0.0.0.0/0 3 0 5\n", "Local:\n  +-- 0.0.0.0/0 2 0 2\n"];
    others.chain(own.map(str::to_owned)).collect()
}

/// An address as the kernel prints it: as a number of the machine's byte order.
fn hexadecimal(address: Ipv4Addr) -> String {
    format!("{:08X}", u32::from_ne_bytes(address.octets()))
}
