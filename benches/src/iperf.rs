//! iperf3, the judge of the floor: what this machine's loopback carries from a hot buffer.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};

/// GB/s (1e9) with one and with two streams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Iperf {
    pub(crate) one_stream_gbps: f64,
    pub(crate) two_streams_gbps: f64,
}

impl Iperf {
    pub(crate) fn best_gbps(self) -> f64 {
        self.one_stream_gbps.max(self.two_streams_gbps)
    }

    /// Runs it for about two seconds; `None` where it is not installed.
    fn measure() -> anyhow::Result<Option<Self>> {
        let Some(one_stream_gbps) = streams(1)? else { return Ok(None) };
        let Some(two_streams_gbps) = streams(2)? else { return Ok(None) };
        Ok(Some(Self { one_stream_gbps, two_streams_gbps }))
    }
}

/// What there is to say about a floor's worth.
#[derive(Debug)]
pub(crate) enum Judge {
    NotAsked,
    /// The floor is between two hosts, of which iperf3 here knows nothing.
    Elsewhere,
    Missing,
    Failed(anyhow::Error),
    Said(Iperf),
}

impl Judge {
    /// Asks iperf3 about this host's loopback.
    pub(crate) fn ask() -> Self {
        match Iperf::measure() {
            Ok(Some(iperf)) => Self::Said(iperf),
            Ok(None) => Self::Missing,
            Err(error) => Self::Failed(error),
        }
    }

    pub(crate) fn best_gbps(&self) -> Option<f64> {
        match self {
            Self::Said(iperf) => Some(iperf.best_gbps()),
            _ => None,
        }
    }
}

/// A server that ends with this handle.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It leaves by itself after one client; an error means that it has.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn streams(count: u32) -> anyhow::Result<Option<f64>> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port().to_string();
    let server = Command::new("iperf3")
        .args(["-s", "-1", "-B", "127.0.0.1", "-p", &port])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _server = match server {
        Ok(child) => Server(child),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context("starting iperf3's server"),
    };
    // It says nowhere that a program could see when it listens; a refused client tries again.
    let mut last = None;
    for _ in 0..40 {
        thread::sleep(Duration::from_millis(50));
        let client = Command::new("iperf3")
            .args(["-c", "127.0.0.1", "-p", &port, "-t", "1", "-l", "1M", "-J"])
            .args(["-P", &count.to_string()])
            .stdin(Stdio::null())
            .output()
            .context("starting iperf3")?;
        if client.status.success() {
            return received_gbps(&client.stdout).map(Some);
        }
        last = Some(client);
    }
    bail!("iperf3 found no server of its own: {}", last.as_ref().map(said).unwrap_or_default())
}

fn said(client: &Output) -> String {
    let answer: Option<serde_json::Value> = serde_json::from_slice(&client.stdout).ok();
    let error = answer.as_ref().and_then(|answer| answer.get("error")?.as_str());
    error.unwrap_or("no reason was given").to_owned()
}

fn received_gbps(output: &[u8]) -> anyhow::Result<f64> {
    let answer: serde_json::Value =
        serde_json::from_slice(output).context("iperf3 printed no JSON")?;
    let bits = answer.pointer("/end/sum_received/bits_per_second").and_then(|rate| rate.as_f64());
    Ok(bits.context("iperf3 printed no rate")? / 8e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receivers_rate_is_what_counts() {
        let output = br#"{"end":{"sum_sent":{"bits_per_second":9e9},
                                 "sum_received":{"bits_per_second":8e9}}}"#;
        assert_eq!(received_gbps(output).unwrap(), 1.0);
        assert!(received_gbps(b"{}").unwrap_err().to_string().contains("no rate"));
        assert!(received_gbps(b"iperf3: error").is_err());
    }
}
