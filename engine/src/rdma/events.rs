//! What devices tell of their own accord: ports that go down and come back, addresses that change; and
//! devices that have failed, which are opened anew.

use std::future;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::Instant;

use super::adapters::Adapters;
use super::device::Device;
use crate::core::Core;
use crate::time;

/// The waits before lanes are tried on a port that works again: one end of a link may learn later than the
/// other that it is up.
const AGAIN: [Duration; 4] =
    [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

/// The wait before a device that has failed is opened anew; it doubles.
const REOPEN_FIRST: Duration = Duration::from_millis(500);

/// The longest such wait. A device that was open for this long has recovered.
const REOPEN_MOST: Duration = Duration::from_secs(60);

/// Listens to the devices of an engine, and has them opened anew where they fail, for as long as its
/// runtime lives. Where several engines use one, whichever is first takes what it tells, and all learn of
/// ports that work again.
pub(crate) fn attend(core: &Arc<Core>, adapters: &Arc<Adapters>) {
    for adapter in 0..adapters.count() {
        tokio::spawn(keep(Arc::downgrade(core), Arc::downgrade(adapters), adapter));
    }
    tokio::spawn(follow(Arc::downgrade(core), adapters.revived()));
}

/// Listens to the device of an adapter, and to that which takes its place when it has failed.
async fn keep(core: Weak<Core>, adapters: Weak<Adapters>, adapter: usize) {
    let mut failures = 0;
    loop {
        let Some(device) = adapters.upgrade().map(|adapters| adapters.device(adapter)) else {
            return;
        };
        if let Ok(device) = device {
            let opened = Instant::now();
            listen(&adapters, device).await;
            if opened.elapsed() >= REOPEN_MOST {
                failures = 0;
            }
        }
        let device = match adapters.upgrade() {
            Some(adapters) => {
                adapters.close_failed(adapter);
                adapters.name(adapter).clone()
            }
            None => return,
        };
        tokio::time::sleep(reopen_after(failures)).await;
        failures += 1;
        let Some(registry) = core.upgrade().map(|core| core.registry.clone()) else { return };
        let of = adapters.clone();
        // To lock pages takes long, and others wait for this thread.
        let reopening =
            tokio::task::spawn_blocking(move || Adapters::reopen(&of, adapter, &registry));
        match reopening.await {
            Ok(Ok(())) => tracing::info!(%device, "an RDMA device was opened anew"),
            Ok(Err(error)) => {
                let again_in = reopen_after(failures);
                tracing::info!(%device, %error, ?again_in, "an RDMA device cannot be used yet");
            }
            Err(error) => {
                tracing::error!(%device, %error, "an RDMA device was not opened anew");
            }
        }
    }
}

/// The wait before a device is opened anew that has failed so often in a row before.
fn reopen_after(failures: u32) -> Duration {
    time::backoff(REOPEN_FIRST, REOPEN_MOST, failures)
}

/// Takes what a device tells, until it is not used any more.
async fn listen(adapters: &Weak<Adapters>, open: Arc<Device>) {
    let mut news = open.news();
    let events = match open.events().and_then(readiness_of) {
        Ok(events) => Some(events),
        Err(error) => {
            tracing::warn!(device = %open.name(), %error, "nothing is heard of an RDMA device");
            None
        }
    };
    // It is closed while this waits.
    let device = Arc::downgrade(&open);
    drop(open);
    let mut revivals = news.borrow().revivals;
    loop {
        let seen = *news.borrow_and_update();
        if seen.is_over {
            return;
        }
        if seen.revivals != revivals {
            revivals = seen.revivals;
            let Some(adapters) = adapters.upgrade() else { return };
            adapters.note_revived();
        }
        tokio::select! {
            () = is_ready(events.as_ref()) => {
                let Some(device) = device.upgrade() else { return };
                device.take_events();
            }
            changed = news.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

/// Returns when there may be something to be heard; never where nothing is.
async fn is_ready(events: Option<&AsyncFd<OwnedFd>>) {
    let Some(events) = events else { return future::pending().await };
    match events.readable().await {
        // Before it is looked: what comes meanwhile makes it ready again.
        Ok(mut ready) => ready.clear_ready(),
        Err(_) => future::pending().await,
    }
}

/// Has lanes tried again as soon as a port or an adapter works again, and spread over all ports.
async fn follow(core: Weak<Core>, mut revived: watch::Receiver<u64>) {
    while revived.changed().await.is_ok() {
        let mut waits = AGAIN.iter();
        while let Some(wait) = waits.next() {
            tokio::select! {
                () = tokio::time::sleep(*wait) => {}
                changed = revived.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    // From the start, for this one.
                    waits = AGAIN.iter();
                    continue;
                }
            }
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
