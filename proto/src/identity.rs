//! Newtypes for everything that has a number, so that one cannot be passed for another.

use std::fmt;

/// A random number drawn when an engine starts. An address and an incarnation name an engine; an
/// address alone never does. Zero is never drawn and means "none" on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub u64);

/// A region of one process: the slot it holds and the generation of that slot. A slot that is used
/// again gets a new generation, so an old id never names new memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId {
    /// Index into the owner's table.
    pub slot: u32,
    /// How many regions held this slot before, plus one.
    pub generation: u32,
}

/// A grant of one process: 32 bits that find it, 32 random bits that make a guess improbable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantId(pub u64);

/// A transfer of one session. Numbers rise by one and are never used twice between the same two
/// incarnations, which is what lets the target recognise repeats and forget what is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(pub u64);

/// A lane of one session, numbered by the engine that opened it and never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u32);

impl GrantId {
    /// The id whose `slot` finds the grant and whose `nonce` proves that the id was handed out.
    #[must_use]
    pub fn new(slot: u32, nonce: u32) -> Self {
        Self(u64::from(nonce) << 32 | u64::from(slot))
    }

    /// The index in the owner's table.
    #[must_use]
    pub fn slot(self) -> u32 {
        u32::try_from(self.0 & u64::from(u32::MAX)).unwrap_or(u32::MAX)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}.{}", self.slot, self.generation)
    }
}

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The nonce stays out of logs: it is half of what protects the grant.
        write!(f, "g{}", self.slot())
    }
}

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}", self.0)
    }
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lane {}", self.0)
    }
}
