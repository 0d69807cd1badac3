//! Connections: as many as may be, each for a bounded time, and none for those who only hold them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::control::accept::ACCEPT_PAUSE;

/// How long a connection may stay. A request that is under way then may still be answered.
const AGE: Duration = Duration::from_secs(60);

/// How long after that.
const LAST_ANSWER: Duration = Duration::from_secs(10);

/// The most bytes of a request's head.
const HEAD_BYTES: usize = 16 << 10;

/// A connection that is open.
#[derive(Debug, Default)]
pub(super) struct Slot {
    is_busy: AtomicBool,
    close: Notify,
}

/// While this lives, it is this server that the connection waits for.
#[derive(Debug)]
pub(super) struct Busy<'a>(&'a Slot);

impl Slot {
    pub(super) fn busy(&self) -> Busy<'_> {
        self.is_busy.store(true, Ordering::Relaxed);
        Busy(self)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.is_busy.store(false, Ordering::Relaxed);
    }
}

/// Open connections, oldest first.
#[derive(Debug)]
struct Open {
    most: usize,
    slots: Mutex<BTreeMap<u64, Arc<Slot>>>,
}

impl Open {
    /// Makes room for one more: where there is none, the oldest whose other end is awaited has to
    /// go. `None` where this server is working for all of them.
    fn add(&self, number: u64) -> Option<Arc<Slot>> {
        let mut slots = self.slots.lock();
        if slots.len() >= self.most {
            let idle = slots.iter().find(|(_, slot)| !slot.is_busy.load(Ordering::Relaxed));
            let oldest = *idle?.0;
            if let Some(slot) = slots.remove(&oldest) {
                slot.close.notify_one();
            }
        }
        let slot = Arc::new(Slot::default());
        slots.insert(number, slot.clone());
        Some(slot)
    }
}

/// Serves for as long as it is polled; dropped, it leaves no connection behind.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    most: usize,
    read_timeout: Duration,
) {
    let open = Arc::new(Open { most, slots: Mutex::default() });
    let mut tasks = JoinSet::new();
    for number in 0.. {
        let stream = loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => break stream,
                    Err(error) => {
                        tracing::warn!(%error, "no connection can be accepted");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = tasks.join_next() => {}
            }
        };
        let Some(slot) = open.add(number) else {
            tracing::debug!("every connection is at work: a new one is closed");
            continue;
        };
        let (open, router) = (open.clone(), router.clone());
        tasks.spawn(async move {
            converse(stream, router, &slot, read_timeout).await;
            open.slots.lock().remove(&number);
        });
    }
}

async fn converse(stream: TcpStream, router: Router, slot: &Arc<Slot>, read_timeout: Duration) {
    // Small messages both ways: one that cannot be told so is slower, no more.
    let _ = stream.set_nodelay(true);
    let router = router.layer(axum::Extension(slot.clone()));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(read_timeout)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        // What a client breaks is its own affair.
        _ = &mut connection => return,
        () = slot.close.notified() => return,
        () = sleep(AGE) => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        _ = &mut connection => {}
        () = slot.close.notified() => {}
        () = sleep(LAST_ANSWER) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_that_is_waited_for_makes_room_and_those_at_work_never_do() {
        let open = Open { most: 2, slots: Mutex::default() };
        let first = open.add(1).unwrap();
        let second = open.add(2).unwrap();
        let at_work = first.busy();
        let third = open.add(3).unwrap();
        let left: Vec<_> = open.slots.lock().keys().copied().collect();
        assert_eq!(left, [1, 3]);
        let _also = third.busy();
        assert!(open.add(4).is_none());
        drop(at_work);
        assert!(open.add(5).is_some());
        drop((second, first));
    }
}
