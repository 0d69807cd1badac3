//! Ports that the kernel may give to somebody else before a service listens on them.

use std::ops::RangeInclusive;

use super::Host;
use super::finding::{Finding, Findings};

const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
const BOOTSTRAP: &str = "VLLM_MOONCAKE_BOOTSTRAP_PORT";
const BOOTSTRAP_DEFAULT: u16 = 8998;

pub(super) fn check(host: &Host<'_>, asked: &[u16]) -> Vec<Finding> {
    let mut found = Findings::of("ports");
    let mut ports: Vec<(u16, &str)> = asked.iter().map(|port| (*port, "--port")).collect();
    match host.environment.get(BOOTSTRAP).as_deref().map(str::trim) {
        None | Some("") => ports.push((BOOTSTRAP_DEFAULT, "bootstrap server")),
        Some(text) => match text.parse() {
            Ok(port) if port > 0 => ports.push((port, BOOTSTRAP)),
            _ => found.failure(
                format!("{BOOTSTRAP}={text:?} is not a port"),
                "a number from 1 to 65535, below the ephemeral range",
            ),
        },
    }
    let ephemeral = match host.root.parsed(RANGE, "two ports", ephemeral_range) {
        Ok(range) => range,
        Err(absence) => {
            found.unchecked(absence.to_string());
            return found.take();
        }
    };
    let reserved = host.root.parsed(RESERVED, "a list of ports", reserved_ranges);
    let reserved = reserved.unwrap_or_default();
    let (first, last) = (ephemeral.start(), ephemeral.end());
    for (port, whose) in ports {
        if !ephemeral.contains(&port) {
            found.ok(format!("{port} ({whose}) is outside the ephemeral range {first}-{last}"));
        } else if reserved.iter().any(|range| range.contains(&port)) {
            found.ok(format!("{port} ({whose}) is in the ephemeral range, and reserved"));
        } else {
            found.warning(
                format!(
                    "{port} ({whose}) is in the ephemeral range {first}-{last}: any outgoing \
                     connection may have it before the service starts"
                ),
                format!(
                    "a port below {first}, or sysctl -w net.ipv4.ip_local_reserved_ports={port} \
                     (added to what is reserved)"
                ),
            );
        }
    }
    found.take()
}

fn ephemeral_range(text: &str) -> Option<RangeInclusive<u16>> {
    let mut numbers = text.split_whitespace().map(str::parse);
    let (first, last) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (first <= last).then_some(first..=last)
}

/// `8080,9000-9010`; empty where nothing is reserved.
fn reserved_ranges(text: &str) -> Option<Vec<RangeInclusive<u16>>> {
    let ranges = text.split(',').map(str::trim).filter(|range| !range.is_empty());
    let parse = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    ranges.map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_kernel_writes_them() {
        assert_eq!(ephemeral_range("32768\t60999"), Some(32_768..=60_999));
        assert_eq!(ephemeral_range("60999\t32768"), None);
        assert_eq!(ephemeral_range("32768"), None);
        assert_eq!(reserved_ranges(""), Some(vec![]));
        assert_eq!(reserved_ranges("8080,9000-9010"), Some(vec![8080..=8080, 9000..=9010]));
        assert_eq!(reserved_ranges("8080,x"), None);
    }
}
