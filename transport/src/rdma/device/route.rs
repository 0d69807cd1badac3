//! Routing tables.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::fact::{Absence, Fact};
use super::netdev::NetdevName;
use super::network::IpNetwork;
use super::root::HostRoot;

/// A usable route of unicast packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where it leads.
    pub destination: IpNetwork,
    /// The router on the way; none for a network that the interface is in.
    pub gateway: Option<IpAddr>,
    /// The interface that packets leave by.
    pub netdev: NetdevName,
}

/// What the routing tables say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingTables {
    /// IPv4 routes of the main table.
    pub ipv4: Fact<Vec<Route>>,
    /// IPv6 routes of all tables.
    pub ipv6: Fact<Vec<Route>>,
    /// Numbers of the IPv4 tables besides `local` and `main`. Where there are any, rules choose
    /// between tables, and the main one alone does not say what cannot be reached.
    pub other_ipv4_tables: Fact<Vec<u32>>,
}

const IPV4: &str = "/proc/net/route";
const IPV6: &str = "/proc/net/ipv6_route";
const TRIE: &str = "/proc/net/fib_trie";

/// Flags of `include/uapi/linux/route.h` and `ipv6_route.h`.
const RTF_UP: u32 = 0x0001;
const RTF_GATEWAY: u32 = 0x0002;
const RTF_REJECT: u32 = 0x0200;
const RTF_ANYCAST: u32 = 0x0010_0000;
const RTF_LOCAL: u32 = 0x8000_0000;

/// What becomes of a line: a route, a line that is none, or not a line of this table.
enum Line {
    Route(Route),
    NotUnicast,
    Nonsense,
}

impl RoutingTables {
    /// Reads the tables.
    #[must_use]
    pub fn read(root: &HostRoot) -> Self {
        Self {
            ipv4: root.text(IPV4).and_then(|text| parse_ipv4_table(&text)),
            ipv6: root.text(IPV6).and_then(|text| parse_table(IPV6, text.lines(), ipv6)),
            other_ipv4_tables: root.parsed(TRIE, "a trie of routes", other_tables),
        }
    }
}

fn parse_ipv4_table(text: &str) -> Fact<Vec<Route>> {
    // A kernel's table has a heading even when it is empty; an empty file is a copy that failed.
    match text.split_once('\n').unwrap_or((text, "")) {
        (heading, routes) if heading.starts_with("Iface") => {
            parse_table(IPV4, routes.lines(), ipv4)
        }
        (other, _) => Err(Absence::malformed(IPV4, other, "the heading of a routing table")),
    }
}

fn parse_table<'a>(
    path: &str,
    lines: impl Iterator<Item = &'a str>,
    parse: impl Fn(&str) -> Line,
) -> Fact<Vec<Route>> {
    let mut routes = Vec::new();
    for line in lines {
        match parse(line) {
            Line::Route(route) => routes.push(route),
            Line::NotUnicast => {}
            // A route that is left out would read as "cannot be reached".
            Line::Nonsense => return Err(Absence::malformed(path, line, "a route")),
        }
    }
    Ok(routes)
}

fn ipv4(line: &str) -> Line {
    let columns: Vec<_> = line.split_whitespace().collect();
    let [netdev, destination, gateway, flags, _, _, _, mask, ..] = columns[..] else {
        return Line::Nonsense;
    };
    let (Some(destination), Some(gateway), Some(mask)) =
        (ipv4_address(destination), ipv4_address(gateway), ipv4_address(mask))
    else {
        return Line::Nonsense;
    };
    let prefix_len = mask.to_bits().leading_ones();
    let Ok(prefix_len) = u8::try_from(prefix_len) else { return Line::Nonsense };
    route(netdev, destination.into(), prefix_len, gateway.into(), flags)
}

/// The kernel prints the address, which is in network byte order, as a number of the host's.
fn ipv4_address(hexadecimal: &str) -> Option<Ipv4Addr> {
    if hexadecimal.len() != 8 {
        return None;
    }
    u32::from_str_radix(hexadecimal, 16).ok().map(|number| number.to_ne_bytes().into())
}

fn ipv6(line: &str) -> Line {
    let columns: Vec<_> = line.split_whitespace().collect();
    let [destination, prefix_len, _, _, gateway, _, _, _, flags, netdev] = columns[..] else {
        return Line::Nonsense;
    };
    let (Some(destination), Some(gateway), Ok(prefix_len)) =
        (ipv6_address(destination), ipv6_address(gateway), u8::from_str_radix(prefix_len, 16))
    else {
        return Line::Nonsense;
    };
    if destination.is_multicast() {
        return Line::NotUnicast;
    }
    route(netdev, destination.into(), prefix_len, gateway.into(), flags)
}

fn ipv6_address(hexadecimal: &str) -> Option<Ipv6Addr> {
    if hexadecimal.len() != 32 {
        return None;
    }
    u128::from_str_radix(hexadecimal, 16).ok().map(Ipv6Addr::from_bits)
}

fn route(netdev: &str, destination: IpAddr, prefix_len: u8, gateway: IpAddr, flags: &str) -> Line {
    let Ok(flags) = u32::from_str_radix(flags, 16) else { return Line::Nonsense };
    if flags & RTF_UP == 0 || flags & (RTF_REJECT | RTF_LOCAL | RTF_ANYCAST) != 0 {
        return Line::NotUnicast;
    }
    let (Some(netdev), Ok(destination)) =
        (NetdevName::new(netdev), IpNetwork::around(destination, prefix_len))
    else {
        return Line::Nonsense;
    };
    let gateway = (flags & RTF_GATEWAY != 0).then_some(gateway);
    Line::Route(Route { destination, gateway, netdev })
}

/// Headings of the trie: `Main:`, `Local:`, and `Id 200:` for the others.
fn other_tables(trie: &str) -> Option<Vec<u32>> {
    let mut headings = trie.lines().filter(|line| !line.starts_with(' ')).peekable();
    headings.peek()?;
    let number = |heading: &str| match heading.strip_prefix("Id ") {
        None => matches!(heading, "Main:" | "Local:").then_some(None),
        Some(rest) => rest.strip_suffix(':')?.parse().ok().map(Some),
    };
    Some(headings.map(number).collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADING: &str = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT";

    fn parse_ipv4(lines: &str) -> Fact<Vec<Route>> {
        parse_table(IPV4, lines.lines(), ipv4)
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn addresses_of_the_ipv4_table_are_read_in_network_order() {
        let routes = parse_ipv4(
            "ens1np0\t000010AC\t00000000\t0001\t0\t0\t0\t0000F8FF\t0\t0\t0\n\
             ens1np0\t0000000A\t010010AC\t0003\t0\t0\t0\t000000FF\t0\t0\t0\n",
        )
        .expect("two routes");
        assert_eq!(routes[0].destination.to_string(), "172.16.0.0/13");
        assert_eq!(routes[0].gateway, None);
        assert_eq!(routes[1].destination.to_string(), "10.0.0.0/8");
        assert_eq!(routes[1].gateway, Some("172.16.0.1".parse().expect("an address")));
    }

    #[test]
    fn rejecting_local_and_multicast_routes_lead_nowhere() {
        let zeros = "0".repeat(32);
        let lines = [
            format!("{zeros} 00 {zeros} 00 {zeros} ffffffff 1 0 00200200 lo"),
            format!("{:032x} 80 {zeros} 00 {zeros} 0 2 0 80200001 lo", 1),
            format!("ff{} 08 {zeros} 00 {zeros} 100 3 0 00000001 eth0", "0".repeat(30)),
            format!("fd{} 40 {zeros} 00 {zeros} 100 3 0 00000001 eth0", "0".repeat(30)),
        ];
        let routes = parse_table(IPV6, lines.iter().map(String::as_str), ipv6).expect("routes");
        let destinations: Vec<_> = routes.iter().map(|r| r.destination.to_string()).collect();
        assert_eq!(destinations, ["fd00::/64"]);
    }

    #[test]
    fn an_empty_file_is_no_empty_table() {
        assert_eq!(parse_ipv4_table(HEADING), Ok(vec![]));
        assert!(parse_ipv4_table("").is_err());
    }

    #[test]
    fn one_unreadable_line_makes_the_table_unknown() {
        assert!(matches!(parse_ipv4("eth0 zzz"), Err(Absence::Malformed { .. })));
    }

    #[test]
    fn tables_besides_main_and_local_are_seen() {
        let trie = "Id 200:\n  +-- 0.0.0.0/0 2 0 2\nMain:\n  +-- 0.0.0.0/0\nLocal:\n   |-- Id 7:\n";
        assert_eq!(other_tables(trie), Some(vec![200]));
        assert_eq!(other_tables("Local:\n  +-- 0.0.0.0/0"), Some(vec![]));
        assert_eq!(other_tables(""), None, "no kernel has no table");
        assert_eq!(other_tables("Id x:\n"), None);
    }

    #[test]
    fn the_running_kernel_has_tables_that_can_be_read() {
        let tables = RoutingTables::read(&HostRoot::live());
        assert!(tables.ipv4.is_ok(), "{:?}", tables.ipv4);
        assert!(tables.other_ipv4_tables.is_ok(), "{:?}", tables.other_ipv4_tables);
    }

    proptest! {
        #[test]
        fn no_table_panics(text in "(?s).{0,200}") {
            let _ = parse_ipv4(&text);
            let _ = parse_table(IPV6, text.lines(), ipv6);
            let _ = parse_ipv4_table(&format!("{HEADING}\n{text}"));
            let _ = other_tables(&text);
        }
    }
}
