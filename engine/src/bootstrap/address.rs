//! Addresses as bootstrap servers and workers are named by.

use std::net::{IpAddr, Ipv4Addr};

use crate::error::Error;
use crate::net::Endpoint;

/// How long the host of an address may be, in bytes: a DNS name has 253 at the most, an IPv6
/// address with its zone fewer.
pub(super) const HOST_BYTES: usize = 255;

/// How much of a wrong address an error shows, in characters.
const SHOWN_CHARS: usize = 120;

/// The address of a bootstrap server: `HOST:PORT`, `[IPV6]:PORT` with or without a zone, or any of
/// them behind `http://`.
///
/// # Errors
/// [`Error::Address`] for anything else, port 0 and wildcards.
pub fn server_address(text: &str) -> Result<Endpoint, Error> {
    let error = |reason| Error::Address { address: shown(text), reason };
    let rest = match text.split_once("://") {
        None => text,
        Some(("http", rest)) => rest.strip_suffix('/').unwrap_or(rest),
        Some(("https", _)) => return Err(error("a bootstrap server speaks http, not https")),
        Some(_) => return Err(error("a bootstrap server's scheme is http")),
    };
    let endpoint = parse(rest).map_err(error)?;
    check_reachable(&endpoint).map_err(error)?;
    Ok(endpoint)
}

/// A host and a port, checked in form.
pub(super) fn parse(text: &str) -> Result<Endpoint, &'static str> {
    if text.len() > HOST_BYTES + "[]:65535".len() {
        return Err("it is longer than any address");
    }
    if text.contains('/') {
        return Err("a path does not belong to an address");
    }
    let endpoint: Endpoint = text.parse().map_err(|error| match error {
        Error::Address { reason, .. } => reason,
        _ => "not an address",
    })?;
    // `parse` of a number takes a sign.
    let digits = text.rsplit(':').next().unwrap_or_default();
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("the port is not a number from 0 to 65535");
    }
    check_host(endpoint.host())?;
    Ok(endpoint)
}

/// Whether somebody can be reached there at all.
pub(super) fn check_reachable(endpoint: &Endpoint) -> Result<(), &'static str> {
    if endpoint.port() == 0 {
        return Err("port 0 is none: give the port that was got");
    }
    check_host(endpoint.host())?;
    let Some(address) = ip(endpoint.host()) else { return Ok(()) };
    if address.is_unspecified() {
        return Err("a wildcard names nobody: give an address that others can reach");
    }
    if address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return Err("nobody can be connected to at a multicast or broadcast address");
    }
    Ok(())
}

/// The IP address that a host is, without its zone.
fn ip(host: &str) -> Option<IpAddr> {
    let plain = host.split('%').next().unwrap_or(host);
    plain.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// A name that a resolver can be asked for, or an address.
fn check_host(host: &str) -> Result<(), &'static str> {
    if host.len() > HOST_BYTES {
        return Err("its host is longer than any name");
    }
    let (plain, zone) = match host.split_once('%') {
        None => (host, None),
        Some((plain, zone)) => (plain, Some(zone)),
    };
    if let Some(zone) = zone {
        // Linux: an interface's name has at most 15 bytes, none of them a blank or a slash.
        let is_zone = !zone.is_empty()
            && zone.len() <= 15
            && zone.bytes().all(|byte| byte.is_ascii_graphic() && !b"%/[]".contains(&byte));
        return match plain.parse::<std::net::Ipv6Addr>() {
            Ok(_) if is_zone => Ok(()),
            Ok(_) => Err("the zone behind % is no interface"),
            Err(_) => Err("only an IPv6 address has a zone"),
        };
    }
    if ip(host).is_some() {
        return Ok(());
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if host.is_empty() || !host.bytes().all(is_name) {
        return Err("the host is neither a name nor an IP address");
    }
    // Resolvers take `0`, `127.1` and `0x7f000001` for IPv4 addresses of old spellings; a name's
    // last label is never a number (RFC 3696, section 2).
    let last = host.strip_suffix('.').unwrap_or(host).rsplit('.').next().unwrap_or_default();
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
        || hex.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if is_number {
        return Err("an IPv4 address has four decimal numbers");
    }
    Ok(())
}

/// What an error shows of a text that may be anything.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        None => text.into(),
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::WorkerAddress;

    fn reason(error: &Error) -> &'static str {
        match error {
            Error::Address { reason, .. } => reason,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_server_is_found_by_name_and_both_families_with_and_without_the_scheme() {
        for (text, host, port) in [
            ("prefill-0:8998", "prefill-0", 8998),
            ("http://prefill-0.svc.cluster.local:8998", "prefill-0.svc.cluster.local", 8998),
            ("http://10.0.0.1:1/", "10.0.0.1", 1),
            ("[::1]:65535", "::1", 65535),
            ("http://[fe80::1%eth0]:8998", "fe80::1%eth0", 8998),
            ("[fe80::1%3]:8998", "fe80::1%3", 8998),
        ] {
            assert_eq!(server_address(text).unwrap(), Endpoint::new(host, port), "{text}");
        }
    }

    #[test]
    fn what_names_no_server_is_refused_with_what_is_wrong_in_it() {
        for (text, expected) in [
            ("", "the port is missing"),
            ("host", "the port is missing"),
            ("host:0", "port 0 is none: give the port that was got"),
            ("http://host:65536", "the port is not a number from 0 to 65535"),
            ("host:+80", "the port is not a number from 0 to 65535"),
            ("host: 80", "the port is not a number from 0 to 65535"),
            ("https://host:443", "a bootstrap server speaks http, not https"),
            ("tcp://host:80", "a bootstrap server's scheme is http"),
            ("http://host:80/query", "a path does not belong to an address"),
            ("http://user@host:80", "the host is neither a name nor an IP address"),
            ("ho st:80", "the host is neither a name nor an IP address"),
            ("ho\nst:80", "the host is neither a name nor an IP address"),
            ("::1:80", "an IPv6 address needs brackets"),
            ("[::1]", "the port is missing"),
            ("[::]:8998", "a wildcard names nobody: give an address that others can reach"),
            (
                "[::ffff:0.0.0.0]:1",
                "a wildcard names nobody: give an address that others can reach",
            ),
            ("0:80", "an IPv4 address has four decimal numbers"),
            ("127.1:80", "an IPv4 address has four decimal numbers"),
            ("0x0:80", "an IPv4 address has four decimal numbers"),
            ("[fe80::1%]:80", "the zone behind % is no interface"),
            ("[fe80::1%a b]:80", "the zone behind % is no interface"),
            ("10.0.0.1%eth0:80", "only an IPv6 address has a zone"),
        ] {
            assert_eq!(reason(&server_address(text).unwrap_err()), expected, "{text:?}");
        }
        let long = format!("{}:80", "h".repeat(10_000));
        let error = server_address(&long).unwrap_err();
        assert_eq!(reason(&error), "it is longer than any address");
        assert!(error.to_string().len() < 300, "an error shows the start of a long address");
    }

    #[test]
    fn a_worker_has_an_address_that_others_can_connect_to() {
        for text in
            ["tcp://10.0.0.1:5555", "tcp://[::1]:5555", "tcp://[fe80::1%eth0]:1", "tcp://w:1"]
        {
            assert_eq!(text.parse::<WorkerAddress>().unwrap().to_string(), text);
        }
        for (text, expected) in [
            ("10.0.0.1:5555", "a worker's address is tcp://HOST:PORT"),
            ("http://10.0.0.1:5555", "a worker's address is tcp://HOST:PORT"),
            (
                "tcp://0.0.0.0:5555",
                "a wildcard names nobody: give an address that others can reach",
            ),
            ("tcp://[::]:5555", "a wildcard names nobody: give an address that others can reach"),
            (
                "tcp://[::%eth0]:55",
                "a wildcard names nobody: give an address that others can reach",
            ),
            ("tcp://10.0.0.1:0", "port 0 is none: give the port that was got"),
            ("tcp://10.0.0.1:65536", "the port is not a number from 0 to 65535"),
            ("tcp://fe80::1:5555", "an IPv6 address needs brackets"),
            ("tcp://224.0.0.1:1", "nobody can be connected to at a multicast or broadcast address"),
            (
                "tcp://255.255.255.255:1",
                "nobody can be connected to at a multicast or broadcast address",
            ),
            ("tcp://*:5555", "the host is neither a name nor an IP address"),
        ] {
            assert_eq!(reason(&text.parse::<WorkerAddress>().unwrap_err()), expected, "{text}");
        }
        assert!(WorkerAddress::new(Endpoint::new("::", 1)).is_err());
        assert!(WorkerAddress::new(Endpoint::new("a b", 1)).is_err());
        assert!(WorkerAddress::new(Endpoint::new("::1", 0)).is_err());
    }
}
