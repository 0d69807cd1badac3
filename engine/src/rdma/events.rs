//! What devices tell of their own accord: ports that go down and come back, addresses that change.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::device::Device;
use crate::core::Core;

/// The waits before lanes are tried on a port that works again: one end of a link may learn later than the
/// other that it is up.
const AGAIN: [Duration; 4] =
    [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

/// Listens to the devices of an engine for as long as its runtime lives. Where several engines use one,
/// whichever is first takes what it tells, and all learn of ports that work again.
pub(crate) fn attend(core: &Arc<Core>, devices: &[Arc<Device>]) {
    for device in devices {
        match device.events().and_then(readiness_of) {
            Ok(events) => {
                tokio::spawn(listen(Arc::downgrade(device), events));
            }
            Err(error) => {
                let device = device.name();
                tracing::warn!(%device, %error, "nothing is heard of an RDMA device");
            }
        }
        tokio::spawn(follow(Arc::downgrade(core), device.revived()));
    }
}

async fn listen(device: Weak<Device>, events: AsyncFd<OwnedFd>) {
    while let Ok(mut ready) = events.readable().await {
        // Before it is looked: what comes meanwhile makes it ready again.
        ready.clear_ready();
        let Some(device) = device.upgrade() else { return };
        device.take_events();
    }
}

/// Has lanes tried again as soon as a port works again, and spread over all ports.
async fn follow(core: Weak<Core>, mut revived: watch::Receiver<u64>) {
    while revived.changed().await.is_ok() {
        for wait in AGAIN {
            tokio::time::sleep(wait).await;
            let Some(core) = core.upgrade() else { return };
            for peer in core.all_peers() {
                peer.try_best();
            }
        }
    }
}

/// What tells when a descriptor is readable.
#[expect(
    deprecated,
    reason = "what replaces it is unsafe, and asks of its caller that the descriptor stays open: an \
              `OwnedFd` does, for as long as it is owned"
)]
pub(crate) fn readiness_of(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}
