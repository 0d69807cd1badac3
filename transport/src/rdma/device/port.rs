//! Ports of adapters.

use std::collections::BTreeMap;
use std::fmt;

use super::fact::Fact;
use super::gid::{self, GidEntry, GidIndex, GidTable};
use super::pkey::{self, PKey, PKeyIndex};
use super::root::HostRoot;

/// A port's number within its adapter; the first is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortNumber(pub u8);

/// A local identifier on an InfiniBand subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lid(pub u16);

/// A number with its name, as sysfs writes `4: ACTIVE`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Numbered {
    /// The number.
    pub number: u32,
    /// The name.
    pub label: String,
}

/// What a port is doing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PortState {
    /// It carries traffic.
    Active,
    /// It does not.
    Other(Numbered),
}

/// What a port is connected to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// An InfiniBand fabric.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
    /// Neither, as `Unknown`.
    Other(String),
}

/// How fast a link is, in megabits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkRate {
    /// Megabits per second.
    pub mbit_per_s: u64,
}

/// What the kernel says about a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Which port of the adapter.
    pub number: PortNumber,
    /// `ports/P/state`.
    pub state: Fact<PortState>,
    /// `ports/P/link_layer`.
    pub link_layer: Fact<LinkLayer>,
    /// `ports/P/rate`.
    pub rate: Fact<LinkRate>,
    /// `ports/P/sm_lid`: the subnet manager's address, one for each InfiniBand subnet.
    pub sm_lid: Fact<Lid>,
    /// `ports/P/pkeys`: the table of partition keys; iWARP has none.
    pub pkeys: Fact<BTreeMap<PKeyIndex, Fact<PKey>>>,
    /// `ports/P/gids`: entries that are not empty, by index.
    pub gids: Fact<Vec<GidEntry>>,
    /// How many entries the table of GIDs has, empty ones included.
    pub gid_table_length: u32,
}

impl Port {
    pub(super) fn read(root: &HostRoot, adapter: &str, number: PortNumber) -> Self {
        let path = |name: &str| format!("{adapter}/ports/{number}/{name}");
        let table = gid::read(root, adapter, number);
        let gid_table_length = table.as_ref().map_or(0, |table| table.length);
        Self {
            number,
            state: root.parsed(&path("state"), "a port's state", state),
            link_layer: root.text(&path("link_layer")).map(link_layer),
            rate: root.parsed(&path("rate"), "a link's rate", rate),
            sm_lid: root.parsed(&path("sm_lid"), "a local identifier", lid),
            pkeys: read_pkeys(root, &path("pkeys")),
            gids: table.map(|GidTable { entries, .. }| entries),
            gid_table_length,
        }
    }

    /// The entry at an index, where it is not empty.
    #[must_use]
    pub fn gid_at(&self, index: GidIndex) -> Option<&GidEntry> {
        self.gids.as_ref().ok()?.iter().find(|entry| entry.index == index)
    }
}

fn read_pkeys(root: &HostRoot, path: &str) -> Fact<BTreeMap<PKeyIndex, Fact<PKey>>> {
    let key = |name: &str| root.parsed(&format!("{path}/{name}"), "a partition key", pkey::parse);
    let names = root.names(path)?;
    let indexed = names.iter().filter_map(|name| Some((PKeyIndex(name.parse().ok()?), key(name))));
    Ok(indexed.collect())
}

impl Numbered {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (number, label) = text.split_once(':')?;
        Some(Self { number: number.trim().parse().ok()?, label: label.trim().to_owned() })
    }
}

fn state(text: &str) -> Option<PortState> {
    let numbered = Numbered::parse(text)?;
    Some(if numbered.number == 4 { PortState::Active } else { PortState::Other(numbered) })
}

fn link_layer(text: String) -> LinkLayer {
    match text.as_str() {
        "InfiniBand" => LinkLayer::InfiniBand,
        "Ethernet" => LinkLayer::Ethernet,
        _ => LinkLayer::Other(text),
    }
}

fn lid(text: &str) -> Option<Lid> {
    let digits = text.strip_prefix("0x")?;
    u16::from_str_radix(digits, 16).ok().map(Lid)
}

/// `2.5 Gb/sec (1X SDR)`: whole gigabits, and perhaps tenths.
fn rate(text: &str) -> Option<LinkRate> {
    let (number, rest) = text.split_once(' ')?;
    if !rest.starts_with("Gb/sec") {
        return None;
    }
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    if tenths.len() != 1 {
        return None;
    }
    let tenths: u64 = tenths.parse().ok()?;
    let mbit_per_s = whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(tenths * 100)?;
    Some(LinkRate { mbit_per_s })
}

impl fmt::Display for PortNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Numbered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}: {}", self.number, self.label))
    }
}

impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, tenths) = (self.mbit_per_s / 1000, self.mbit_per_s % 1000 / 100);
        let text = if tenths == 0 { whole.to_string() } else { format!("{whole}.{tenths}") };
        f.pad(&format!("{text} Gb/s"))
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
            Self::Other(text) => text,
        })
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Active => f.pad("ACTIVE"),
            Self::Other(numbered) => f.pad(&numbered.label),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_with_and_without_a_tenth() {
        let mbit = |text| rate(text).map(|rate| rate.mbit_per_s);
        assert_eq!(mbit("400 Gb/sec (4X NDR)"), Some(400_000));
        assert_eq!(mbit("2.5 Gb/sec (1X SDR)"), Some(2_500));
        for text in ["", "fast", "400", "400 Mb/sec", "2.55 Gb/sec", "-1 Gb/sec"] {
            assert_eq!(mbit(text), None, "{text}");
        }
    }

    #[test]
    fn only_state_four_is_active() {
        assert_eq!(state("4: ACTIVE"), Some(PortState::Active));
        assert!(matches!(state("1: DOWN"), Some(PortState::Other(_))));
        assert!(matches!(state("5: ACTIVE_DEFER"), Some(PortState::Other(_))));
        assert_eq!(state("ACTIVE"), None);
    }
}
