//! Partition keys.

use std::fmt;

/// A partition key: InfiniBand Architecture Specification volume 1, section 10.9.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PKey(pub u16);

/// An index in a port's table of partition keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PKeyIndex(pub u16);

impl PKey {
    const FULL: u16 = 0x8000;

    /// Full members talk to everybody in the partition, limited members only to full ones.
    #[must_use]
    pub fn is_full_member(self) -> bool {
        self.0 & Self::FULL != 0
    }

    /// The partition, without the membership bit. 0 is no partition.
    #[must_use]
    pub fn partition(self) -> u16 {
        self.0 & !Self::FULL
    }
}

impl fmt::Display for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:#06x}", self.0))
    }
}

/// The key that sysfs writes as `0xffff`.
pub(super) fn parse(text: &str) -> Option<PKey> {
    u16::from_str_radix(text.strip_prefix("0x")?, 16).ok().map(PKey)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn membership_is_the_highest_bit_and_the_rest_is_the_partition() {
        assert!(PKey(0xffff).is_full_member() && !PKey(0x7fff).is_full_member());
        assert_eq!(PKey(0xffff).partition(), PKey(0x7fff).partition());
        assert_eq!(PKey(0x8000).partition(), 0);
        assert_eq!(parse("0x7fff"), Some(PKey(0x7fff)));
        assert_eq!(parse("7fff"), None);
    }
}
