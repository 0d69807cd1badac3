//! Why a port is not used, and what to mind where it is.

use kvferry_transport::rdma::device::{
    Absence, GidIndex, GidType, NetdevName, Numbered, PKey, PKeyIndex, PortNumber,
};

use super::endpoint::Mtu;
use super::overlay::Overlay;
use super::wishes::Source;

/// Why a port is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The device is iWARP: its connections are made by its own connection manager only.
    #[error("node type 4: RNIC (iWARP), which is not supported")]
    Iwarp,
    /// The device is a switch, a router, `7: unspecified` or something else that is no adapter.
    #[error("node type {found}, not a channel adapter")]
    NodeType {
        /// What the device says it is.
        found: Numbered,
    },
    /// The port is down, or on its way up.
    #[error("the port is {}, not ACTIVE: check cable, switch port and, on InfiniBand, the subnet manager", found.label)]
    NotActive {
        /// The port's state.
        found: Numbered,
    },
    /// The port is connected to neither InfiniBand nor Ethernet.
    #[error("link layer {found:?}, neither InfiniBand nor Ethernet")]
    LinkLayer {
        /// What it says.
        found: String,
    },
    /// A fact without which nothing can be decided is not known.
    #[error("{absence}")]
    Unknown {
        /// Which, and why.
        absence: Absence,
    },
    /// The adapter has no port.
    #[error("the adapter has no port")]
    NoPort,
    /// The table of partition keys has no entry at the index.
    #[error("no partition key at index {}, the table has {entries}", index.0)]
    NoPKey {
        /// The index in use.
        index: PKeyIndex,
        /// How many entries there are.
        entries: usize,
    },
    /// The partition key names no partition.
    #[error("partition key {key} at index {} names no partition{}", index.0, alternative(*full))]
    NoPartition {
        /// The index in use.
        index: PKeyIndex,
        /// The key found.
        key: PKey,
        /// The first entry that would do.
        full: Option<(PKeyIndex, PKey)>,
    },
    /// The partition key makes the port a limited member: start-up would work and transfers to
    /// other limited members fail.
    #[error("partition key {key} at index {} is a limited member's: two of them cannot talk{}", index.0, alternative(*full))]
    LimitedMember {
        /// The index in use.
        index: PKeyIndex,
        /// The key found.
        key: PKey,
        /// The first entry that would do.
        full: Option<(PKeyIndex, PKey)>,
    },
    /// The table of GIDs is empty.
    #[error("all {table_length} GIDs are empty: give the interface an address")]
    NoGid {
        /// How long the table is.
        table_length: u32,
    },
    /// There are GIDs, and none of them speaks RoCE v2.
    #[error("no RoCE v2 GID among {entries}: give the interface an address, or enable RoCE v2")]
    NoRoceV2 {
        /// How many GIDs there are.
        entries: usize,
    },
    /// The GID index that the user asked for is of no use here.
    #[error("GID index {} asked for by {from}: {problem}", index.0)]
    WishedGid {
        /// The index.
        index: GidIndex,
        /// Who asked.
        from: Source,
        /// What is wrong with it.
        problem: GidProblem,
    },
    /// The user listed other devices.
    #[error("not among the devices of {by}")]
    NotListed {
        /// The list.
        by: Source,
    },
    /// The user excluded it.
    #[error("excluded by {by}")]
    Excluded {
        /// Who excluded it.
        by: Source,
    },
    /// The user asked for another port.
    #[error("{by} asks for port {}", wanted.0)]
    OtherPort {
        /// Which.
        wanted: PortNumber,
        /// Who asked.
        by: Source,
    },
}

/// What is wrong with a GID that the user asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GidProblem {
    /// The table is shorter.
    #[error("the table has {table_length} entries")]
    BeyondTable {
        /// How long it is.
        table_length: u32,
    },
    /// The entry is all zeros.
    #[error("that entry is empty{}", first_used(*first))]
    Empty {
        /// The first entry that is not.
        first: Option<GidIndex>,
    },
    /// The entry's protocol is not known.
    #[error("its protocol is not known: {absence}")]
    TypeUnknown {
        /// Why.
        absence: Absence,
    },
    /// The entry's protocol is not one that an Ethernet port can use.
    #[error("it speaks {found}")]
    Type {
        /// What it is.
        found: GidType,
    },
}

/// What to mind about a port that is used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Caution {
    /// The best GID reaches no further than its link.
    #[error("only a link-local GID: reaches its own link only, a probe decides with whom")]
    LinkLocal,
    /// The best GID belongs to containers.
    #[error("only a GID of {overlay}: a probe decides with whom")]
    Overlay {
        /// Whose it is.
        overlay: Overlay,
    },
    /// The GID's interface is not known here: another network namespace has it.
    #[error("the GID's interface is not visible here: a probe decides with whom")]
    NoNetdev,
    /// The interface does not have the GID's address, or its addresses are not known.
    #[error("{netdev} has no such address: its network is unknown, a probe decides with whom")]
    NoNetwork {
        /// The interface.
        netdev: NetdevName,
    },
    /// The GID that the user asked for speaks RoCE v1.
    #[error("GID index {} speaks RoCE v1, which no router forwards", index.0)]
    RoceV1 {
        /// The index.
        index: GidIndex,
    },
    /// The partition key that the user asked for is a limited member's.
    #[error("partition key {key} is a limited member's: it reaches full members only")]
    LimitedMember {
        /// The key.
        key: PKey,
    },
    /// Packets are smaller than they could be.
    #[error("packets of {mtu} bytes: {netdev} has MTU {mtu_bytes}, 4192 and more give 4096")]
    SmallPackets {
        /// The interface.
        netdev: NetdevName,
        /// Its MTU.
        mtu_bytes: u32,
        /// The packet size that follows.
        mtu: Mtu,
    },
}

fn alternative(full: Option<(PKeyIndex, PKey)>) -> String {
    match full {
        Some((index, key)) => format!(
            "; index {at} has {key}, a full member's: KVFERRY_RDMA_PKEY_INDEX={at} takes it",
            at = index.0
        ),
        None => "; no entry is a full member's, ask the fabric's administrator".to_owned(),
    }
}

fn first_used(first: Option<GidIndex>) -> String {
    first.map_or_else(String::new, |index| format!(", the first that is not is {}", index.0))
}
