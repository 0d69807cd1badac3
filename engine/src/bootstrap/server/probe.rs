//! Whether an address accepts connections.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::bootstrap::table::Verdict;
use crate::net::Endpoint;

/// How long a look-up may take, and a connection to come about. In-tree callers wait 5 s for an answer to their
/// registration (the default of httpx), which may depend on several.
const CONNECT: Duration = Duration::from_secs(1);

/// How many addresses of one name are tried.
const ADDRESSES: usize = 4;

/// Finds the addresses of an endpoint. A look-up cannot be called off: `turn` is held until it ends,
/// however long it is waited for.
async fn look_up(endpoint: &Endpoint, turn: OwnedSemaphorePermit) -> io::Result<Vec<SocketAddr>> {
    let (host, port) = (endpoint.host().to_owned(), endpoint.port());
    let found = tokio::spawn(async move {
        let _turn = turn;
        Ok(lookup_host((host, port)).await?.take(ADDRESSES).collect())
    });
    found.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Connects, and hangs up. `turn` is held for as long as anything of it is under way.
pub(super) async fn accepts(endpoint: &Endpoint, turn: OwnedSemaphorePermit) -> Verdict {
    let addresses = match timeout(CONNECT, look_up(endpoint, turn)).await {
        Ok(Ok(addresses)) => addresses,
        Ok(Err(error)) => return judge(&error),
        // The resolver is slow: that says nothing of the worker.
        Err(_) => return Verdict::Unknown,
    };
    let mut verdict = Verdict::Gone;
    for address in addresses {
        match timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(_)) => return Verdict::Accepts,
            Ok(Err(error)) if judge(&error) == Verdict::Unknown => verdict = Verdict::Unknown,
            // Refused; or the host is off, or cut off.
            Ok(Err(_)) | Err(_) => {}
        }
    }
    verdict
}

/// What an error says of the other end. Whatever this host may be to blame for says nothing: when
/// its network or its resolver fails, nobody has died.
fn judge(error: &io::Error) -> Verdict {
    match error.kind() {
        ErrorKind::ConnectionRefused
        | ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::HostUnreachable
        | ErrorKind::TimedOut => Verdict::Gone,
        _ if is_unknown_name(error) => Verdict::Gone,
        _ => Verdict::Unknown,
    }
}

/// Whether a resolver has answered that there is no such name. The standard library passes on no
/// more than the resolver's words (glibc's and musl's here); its other errors are its own failures.
fn is_unknown_name(error: &io::Error) -> bool {
    let text = error.to_string();
    error.raw_os_error().is_none()
        && ["Name or service not known", "No address associated", "Name does not resolve"]
            .iter()
            .any(|words| text.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_other_end_is_to_blame_for_says_that_it_is_gone() {
        let os = io::Error::from_raw_os_error;
        for gone in [111, 113, 110, 104] {
            assert_eq!(judge(&os(gone)), Verdict::Gone, "{}", os(gone));
        }
        // No descriptors, no memory, no network, no permission, no ports.
        for ours in [24, 23, 12, 105, 101, 1, 13, 99, 22] {
            assert_eq!(judge(&os(ours)), Verdict::Unknown, "{}", os(ours));
        }
        let lookup = |words: &str| {
            io::Error::other(format!("failed to lookup address information: {words}"))
        };
        assert_eq!(judge(&lookup("Name or service not known")), Verdict::Gone);
        assert_eq!(judge(&lookup("Temporary failure in name resolution")), Verdict::Unknown);
    }
}
