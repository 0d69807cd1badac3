//! Notifications that wait for the program.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvferry_proto::{Incarnation, TransferId};
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::time;

/// How many bytes of notifications may wait.
const MOST_BYTES: usize = 64 << 20;

/// A notification that a peer sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The engine that sent it.
    pub from: Incarnation,
    /// The transfer that it belongs to, by that engine's count.
    pub transfer: TransferId,
    /// What it says.
    pub bytes: Arc<[u8]>,
}

/// How much there is of something.
#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    count: usize,
    bytes: usize,
}

/// What waits, and how much of it is whose.
#[derive(Debug)]
struct Waiting {
    limit: usize,
    queue: VecDeque<Notification>,
    bytes: usize,
    shares: HashMap<Incarnation, Amount>,
}

impl Waiting {
    fn new(limit: usize) -> Self {
        Self { limit, queue: VecDeque::new(), bytes: 0, shares: HashMap::new() }
    }

    /// Each may have as much waiting as it leaves free, and one at any rate: so one alone takes half
    /// of the room, two a third each, and there is room for another however many do so (the dynamic
    /// threshold of Choudhury and Hahne, 1998).
    fn has_room(&self, from: Incarnation, bytes: usize) -> bool {
        let share = self.shares.get(&from).copied().unwrap_or_default();
        let free = Amount {
            count: self.limit.saturating_sub(self.queue.len()),
            bytes: MOST_BYTES.saturating_sub(self.bytes),
        };
        let fits = free.count > 0 && bytes <= free.bytes;
        let is_fair = share.count < free.count && share.bytes + bytes <= free.bytes;
        fits && (share.count == 0 || is_fair)
    }

    fn push(&mut self, notification: Notification) -> bool {
        let bytes = notification.bytes.len();
        if !self.has_room(notification.from, bytes) {
            return false;
        }
        let share = self.shares.entry(notification.from).or_default();
        share.count += 1;
        share.bytes += bytes;
        self.bytes += bytes;
        self.queue.push_back(notification);
        true
    }

    fn pop(&mut self) -> Option<Notification> {
        let notification = self.queue.pop_front()?;
        let (from, bytes) = (notification.from, notification.bytes.len());
        self.bytes -= bytes;
        if let Some(share) = self.shares.get_mut(&from) {
            share.count -= 1;
            share.bytes -= bytes;
            if share.count == 0 {
                self.shares.remove(&from);
            }
        }
        Some(notification)
    }
}

pub(crate) struct Inbox {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    arrived_async: Notify,
}

impl Inbox {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            waiting: Mutex::new(Waiting::new(limit)),
            arrived: Condvar::new(),
            arrived_async: Notify::new(),
        }
    }

    /// False when there is no room for it. [`Inbox::announce`] has to follow.
    pub(crate) fn insert(&self, notification: Notification) -> bool {
        self.waiting.lock().push(notification)
    }

    /// Wakes whoever waits.
    pub(crate) fn announce(&self) {
        self.arrived.notify_one();
        self.arrived_async.notify_one();
    }

    #[cfg(feature = "simulation")]
    pub(crate) fn waiting(&self) -> Vec<Notification> {
        self.waiting.lock().queue.iter().cloned().collect()
    }

    pub(crate) fn pop(&self) -> Option<Notification> {
        self.waiting.lock().pop()
    }

    pub(crate) async fn next(&self) -> Notification {
        loop {
            let arrived = self.arrived_async.notified();
            if let Some(notification) = self.pop() {
                // A wake-up may have been meant for another waiter.
                if !self.waiting.lock().queue.is_empty() {
                    self.arrived_async.notify_one();
                }
                return notification;
            }
            arrived.await;
        }
    }

    pub(crate) fn wait(&self, patience: Duration) -> Option<Notification> {
        let deadline = time::after(Instant::now(), patience);
        let mut waiting = self.waiting.lock();
        while waiting.queue.is_empty() {
            if self.arrived.wait_until(&mut waiting, deadline).timed_out() {
                break;
            }
        }
        waiting.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(peer: u64, bytes: usize) -> Notification {
        let bytes = vec![0; bytes].into();
        Notification { from: Incarnation(peer), transfer: TransferId(1), bytes }
    }

    fn fill(waiting: &mut Waiting, peer: u64, bytes: usize) -> usize {
        (0..).take_while(|_| waiting.push(from(peer, bytes))).count()
    }

    #[test]
    fn whoever_sends_as_much_as_it_can_leaves_room_for_the_others() {
        let mut waiting = Waiting::new(1000);
        assert_eq!(fill(&mut waiting, 1, 1), 500);
        assert_eq!(fill(&mut waiting, 2, 1), 250);
        // The first may have more again once the program has taken something.
        for _ in 0..500 {
            assert_eq!(waiting.pop().unwrap().from, Incarnation(1));
        }
        assert_eq!(fill(&mut waiting, 1, 1), 375);
        for peer in 3..200 {
            assert!(waiting.push(from(peer, 1)), "peer {peer}");
        }
        assert!(waiting.queue.len() < 1000);
    }

    #[test]
    fn bytes_are_bounded_and_shared_like_numbers() {
        let mut waiting = Waiting::new(1 << 20);
        let most = 64 << 10;
        assert_eq!(fill(&mut waiting, 1, most), MOST_BYTES / most / 2);
        assert_eq!(fill(&mut waiting, 2, most), MOST_BYTES / most / 4);
        assert!(waiting.push(from(3, most)));
        while waiting.pop().is_some() {}
        assert!(waiting.bytes == 0 && waiting.shares.is_empty());
    }

    #[test]
    fn the_smallest_inbox_takes_one() {
        let mut waiting = Waiting::new(1);
        assert!(waiting.push(from(1, 10)));
        assert!(!waiting.push(from(1, 10)));
        assert!(!waiting.push(from(2, 10)));
        waiting.pop().unwrap();
        assert!(waiting.push(from(2, 10)));
    }
}
