//! Addresses: names, IPv4 and IPv6, with a port.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use crate::error::Error;

/// A host (name or address) and a port. Names are resolved each time a connection is made, so a
/// name whose address changes is followed.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    host: Arc<str>,
    port: u16,
}

impl Endpoint {
    /// An endpoint of its parts. An IPv6 address is given without brackets.
    #[must_use]
    pub fn new(host: &str, port: u16) -> Self {
        Self { host: host.into(), port }
    }

    /// The name or address.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether the host is `0.0.0.0` or `::`, which names nobody.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        self.host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified())
    }

    /// Whether the host is an IPv6 address.
    fn is_v6(&self) -> bool {
        self.host.contains(':')
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(address: &str) -> Result<Self, Error> {
        let error = |reason| Error::Address { address: address.into(), reason };
        let (host, port) = match address.strip_prefix('[') {
            Some(rest) => {
                let (host, port) =
                    rest.split_once(']').ok_or(error("the bracket is not closed"))?;
                // A zone (`fe80::1%eth0`) belongs to the system's resolver.
                let plain = host.split('%').next().unwrap_or(host);
                plain.parse::<Ipv6Addr>().map_err(|_| error("not an IPv6 address"))?;
                (host, port.strip_prefix(':').ok_or(error("the port is missing"))?)
            }
            None => address.rsplit_once(':').ok_or(error("the port is missing"))?,
        };
        if host.is_empty() {
            return Err(error("the host is missing"));
        }
        if host.contains("//") {
            return Err(error("a URL's scheme does not belong here"));
        }
        if !address.starts_with('[') && host.contains(':') {
            return Err(error("an IPv6 address needs brackets"));
        }
        let port = port.parse().map_err(|_| error("the port is not a number from 0 to 65535"))?;
        Ok(Self::new(host, port))
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self::new(&address.ip().to_canonical().to_string(), address.port())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_v6() {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Something that names an endpoint: a string, or the parts.
pub trait IntoEndpoint {
    /// The endpoint.
    ///
    /// # Errors
    /// [`Error::Address`] when the string is none.
    fn into_endpoint(self) -> Result<Endpoint, Error>;
}

impl IntoEndpoint for &str {
    fn into_endpoint(self) -> Result<Endpoint, Error> {
        self.parse()
    }
}

impl IntoEndpoint for String {
    fn into_endpoint(self) -> Result<Endpoint, Error> {
        self.parse()
    }
}

impl IntoEndpoint for &String {
    fn into_endpoint(self) -> Result<Endpoint, Error> {
        self.parse()
    }
}

impl IntoEndpoint for Endpoint {
    fn into_endpoint(self) -> Result<Endpoint, Error> {
        Ok(self)
    }
}

impl IntoEndpoint for &Endpoint {
    fn into_endpoint(self) -> Result<Endpoint, Error> {
        Ok(self.clone())
    }
}

impl IntoEndpoint for SocketAddr {
    fn into_endpoint(self) -> Result<Endpoint, Error> {
        Ok(self.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_both_families_are_understood_and_printed_as_they_were_written() {
        for text in ["prefill-0:7001", "10.0.0.1:0", "[::1]:65535", "[fe80::1%eth0]:7001"] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.to_string(), text);
        }
        assert!("[::]:7001".parse::<Endpoint>().unwrap().is_wildcard());
        assert!("0.0.0.0:7001".parse::<Endpoint>().unwrap().is_wildcard());
        assert!(!"[::1]:7001".parse::<Endpoint>().unwrap().is_wildcard());
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_is_wrong_in_it() {
        for (text, reason) in [
            ("prefill-0", "the port is missing"),
            (":7001", "the host is missing"),
            ("::1:7001", "an IPv6 address needs brackets"),
            ("[::1]", "the port is missing"),
            ("[::1:7001", "the bracket is not closed"),
            ("[host]:7001", "not an IPv6 address"),
            ("http://host:80", "a URL's scheme does not belong here"),
            ("host:65536", "the port is not a number from 0 to 65535"),
            ("host:-1", "the port is not a number from 0 to 65535"),
        ] {
            match text.parse::<Endpoint>() {
                Err(Error::Address { reason: found, .. }) => assert_eq!(found, reason, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}
