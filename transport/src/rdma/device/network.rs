//! IP networks.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// A network: an address of which only the first `prefix_len` bits count; the others are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IpNetwork {
    address: IpAddr,
    prefix_len: u8,
}

/// Why a text or a pair of address and length is not a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// The prefix is longer than the address.
    #[error("a prefix of {prefix_len} bits is longer than {address}")]
    PrefixTooLong {
        /// The address.
        address: IpAddr,
        /// The prefix's length in bits.
        prefix_len: u8,
    },
    /// The text is not `ADDRESS/LENGTH`.
    #[error("{text:?} is not a network: expected ADDRESS/LENGTH, as 172.16.0.0/13")]
    Text {
        /// What was found.
        text: String,
    },
}

impl IpNetwork {
    /// The network in which an address lies.
    ///
    /// # Errors
    /// [`NetworkError::PrefixTooLong`] above 32 bits for IPv4 and 128 for IPv6.
    pub fn around(address: IpAddr, prefix_len: u8) -> Result<Self, NetworkError> {
        let too_long = NetworkError::PrefixTooLong { address, prefix_len };
        let address = match address {
            IpAddr::V4(v4) => {
                let spare = 32_u32.checked_sub(prefix_len.into()).ok_or(too_long)?;
                let mask = u32::MAX.checked_shl(spare).unwrap_or(0);
                IpAddr::V4((v4.to_bits() & mask).into())
            }
            IpAddr::V6(v6) => {
                let spare = 128_u32.checked_sub(prefix_len.into()).ok_or(too_long)?;
                let mask = u128::MAX.checked_shl(spare).unwrap_or(0);
                IpAddr::V6((v6.to_bits() & mask).into())
            }
        };
        Ok(Self { address, prefix_len })
    }

    /// The first address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// How many bits of the address count.
    #[must_use]
    pub fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    /// Whether an address lies in this network.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4()
            && Self::around(address, self.prefix_len).is_ok_and(|network| network == *self)
    }

    /// Whether every address lies in this network: the destination of a default route.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.prefix_len == 0
    }

    /// Whether this is IPv6's link-local network, which every link has and which joins none.
    #[must_use]
    pub fn is_link_local(&self) -> bool {
        match self.address {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => is_link_local(v6),
        }
    }
}

/// fe80::/10, RFC 4291 section 2.5.6.
pub(super) fn is_link_local(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.address, self.prefix_len))
    }
}

impl FromStr for IpNetwork {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let bad = || NetworkError::Text { text: text.to_owned() };
        let (address, prefix_len) = text.split_once('/').ok_or_else(bad)?;
        let address = address.parse().map_err(|_| bad())?;
        Self::around(address, prefix_len.parse().map_err(|_| bad())?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn neighbouring_thirteens_do_not_contain_each_other() {
        let low: IpNetwork = "172.16.0.9/13".parse().expect("a network");
        assert_eq!(low.to_string(), "172.16.0.0/13");
        assert!(low.contains("172.23.255.255".parse().expect("an address")));
        assert!(!low.contains("172.24.0.0".parse().expect("an address")));
        assert!(!low.contains("::ffff:172.16.0.1".parse().expect("an address")));
    }

    #[test]
    fn a_prefix_longer_than_its_address_is_refused() {
        for text in ["10.0.0.0/33", "fd00::/129", "10.0.0.0", "10.0.0/8", "10.0.0.0/-1", "/"] {
            assert!(text.parse::<IpNetwork>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_network_contains_the_address_it_was_made_around(bits: u128, prefix_len in 0_u8..=128) {
            let address = IpAddr::V6(bits.into());
            let network = IpNetwork::around(address, prefix_len).expect("a legal length");
            prop_assert!(network.contains(address));
            prop_assert_eq!(network.to_string().parse::<IpNetwork>(), Ok(network));
        }

        #[test]
        fn a_flipped_prefix_bit_leaves_the_network(bits: u32, prefix_len in 1_u8..=32, at in 0_u8..32) {
            let bit = at % prefix_len;
            let network = IpNetwork::around(IpAddr::V4(bits.into()), prefix_len).expect("legal");
            let other = bits ^ (1 << (31 - u32::from(bit)));
            prop_assert!(!network.contains(IpAddr::V4(other.into())));
        }
    }
}
