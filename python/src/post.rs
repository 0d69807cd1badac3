//! A transfer that follows what its peer shares.
//!
//! Interfaces that name memory by address expect that memory which is registered, given back and
//! registered again can be used as soon as its owner says so, by whatever way. The copy of the peer's
//! table may be a moment behind that. So where the table does not know an address, or the owner
//! refuses what is not granted any more, the table catches up, and the transfer is submitted once
//! more. That happens by itself, on the engine's control thread, whether anybody polls or not.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use kvferry_engine::metrics::Direction;
use kvferry_engine::{
    Ended, Error, Incarnation, LocalSpans, Peer, Remote, RemoteGrant, RemoteSpans, Request, Status,
    Tasks, Transfer, TransferError,
};
use parking_lot::{Condvar, Mutex};

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Push,
    Pull,
}

/// Ranges of this process and of the peer's, pair by pair.
#[derive(Debug)]
pub(crate) struct Pairs {
    pub(crate) local: Vec<(u64, u64)>,
    pub(crate) remote: Vec<(u64, u64)>,
}

/// What is to be transferred.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) peer: Peer,
    pub(crate) way: Way,
    pub(crate) pairs: Arc<Pairs>,
    /// Whose addresses they are; `None` for whoever is there.
    pub(crate) owner: Option<Incarnation>,
    /// Under what the peer's side is touched; `None` for what it shares with everybody.
    pub(crate) grant: Option<Arc<RemoteGrant>>,
    pub(crate) notification: Option<Arc<[u8]>>,
    pub(crate) deadline: Option<Duration>,
}

impl Order {
    fn request(&self) -> Request {
        let local = LocalSpans::addresses(self.pairs.local.iter().copied());
        let mut remote = RemoteSpans::addresses(self.pairs.remote.iter().copied());
        if let Some(owner) = self.owner {
            remote = remote.owned_by(owner);
        }
        if let Some(grant) = &self.grant {
            remote = remote.under(grant);
        }
        let mut request = match self.way {
            Way::Push => self.peer.write(local, remote),
            Way::Pull => self.peer.read(remote, local),
        };
        if let Some(notification) = &self.notification {
            request = request.notify(notification);
        }
        if let Some(deadline) = self.deadline {
            request = request.deadline(deadline);
        }
        request
    }

    /// It is over. What never began nobody else has counted.
    fn over(&self, ended: Ended) -> Stage {
        let is_unbegun = ended.as_ref().is_err_and(|error| error.transfer.is_none());
        if is_unbegun && !self.pairs.local.is_empty() {
            self.peer.count_unbegun(match self.way {
                Way::Push => Direction::Sent,
                Way::Pull => Direction::Received,
            });
        }
        Stage::Over(ended)
    }

    fn fail(&self, cause: Error) -> Ended {
        let peer = self.peer.endpoint().clone();
        Err(TransferError { transfer: None, peer, cause, remote: Remote::Untouched })
    }
}

/// Whether it may be no more than the copy of the peer's table that was behind.
fn is_behind(cause: &Error) -> bool {
    match cause {
        Error::NotShared { .. } | Error::NotGranted { .. } => true,
        Error::Refused { status, .. } => {
            matches!(status, Status::GrantGone | Status::RegionGone | Status::OutOfBounds)
        }
        _ => false,
    }
}

/// Whether it could not be submitted for want of a connection that was never made.
fn is_unconnected(error: &TransferError) -> bool {
    error.transfer.is_none() && matches!(error.cause, Error::Unreachable { .. })
}

enum Stage {
    /// Submitted; whether for the last time.
    Moving {
        transfer: Arc<Transfer>,
        last: bool,
    },
    /// The table catches up.
    Following,
    Over(Ended),
}

/// A transfer under way. Dropping it neither ends nor cancels it.
pub(crate) struct Post {
    order: Order,
    tasks: Tasks,
    stage: Mutex<Stage>,
    changed: Condvar,
}

impl Post {
    pub(crate) fn submit(order: Order, tasks: Tasks) -> Arc<Self> {
        let post = Arc::new(Self {
            stage: Mutex::new(Stage::Following),
            order,
            tasks,
            changed: Condvar::new(),
        });
        match post.order.request().submit() {
            Ok(transfer) => post.watch(transfer),
            Err(error) if is_behind(&error.cause) || is_unconnected(&error) => post.follow(),
            Err(error) => post.set(post.order.over(Err(error))),
        }
        post
    }

    /// The transfer was submitted for the first time. Its end, when it is none, is seen to by whoever
    /// brings it about.
    fn watch(self: &Arc<Self>, mut transfer: Transfer) {
        let waker = Waker::from(Arc::new(Followed(self.clone())));
        // What it says is looked at below, when the stage is set for it.
        let _ = Pin::new(&mut transfer).poll(&mut Context::from_waker(&waker));
        self.set(Stage::Moving { transfer: Arc::new(transfer), last: false });
        self.settle();
    }

    fn set(&self, stage: Stage) {
        *self.stage.lock() = stage;
        self.changed.notify_all();
    }

    /// Looks whether the first attempt has ended, and follows where that is not the end.
    fn settle(self: &Arc<Self>) {
        let mut stage = self.stage.lock();
        let Stage::Moving { transfer, last: false } = &*stage else { return };
        match transfer.poll() {
            None => {}
            Some(Err(error)) if is_behind(&error.cause) => {
                *stage = Stage::Following;
                drop(stage);
                self.follow();
            }
            Some(ended) => {
                *stage = Stage::Over(ended);
                drop(stage);
                self.changed.notify_all();
            }
        }
    }

    fn follow(self: &Arc<Self>) {
        let following = Following(self.clone());
        self.tasks.spawn(async move {
            let post = &following.0;
            if let Err(cause) = post.order.peer.ready().await {
                return post.end_following(post.order.fail(cause));
            }
            let mut stage = post.stage.lock();
            // Unless it was cancelled meanwhile.
            if let Stage::Following = *stage {
                *stage = match post.order.request().submit() {
                    Ok(transfer) => Stage::Moving { transfer: Arc::new(transfer), last: true },
                    Err(error) => post.order.over(Err(error)),
                };
                drop(stage);
                post.changed.notify_all();
            }
        });
    }

    fn end_following(&self, ended: Ended) {
        let mut stage = self.stage.lock();
        if let Stage::Following = *stage {
            *stage = self.order.over(ended);
            drop(stage);
            self.changed.notify_all();
        }
    }

    /// How it ended; `None` while it has not.
    pub(crate) fn poll(self: &Arc<Self>) -> Option<Ended> {
        self.settle();
        match &*self.stage.lock() {
            Stage::Moving { transfer, last: true } => transfer.poll(),
            Stage::Moving { .. } | Stage::Following => None,
            Stage::Over(ended) => Some(ended.clone()),
        }
    }

    /// Blocks until it has ended, or for `patience`.
    pub(crate) fn wait(self: &Arc<Self>, patience: Duration) -> Option<Ended> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(ended) = self.poll() {
                return Some(ended);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let mut stage = self.stage.lock();
            match &*stage {
                Stage::Moving { transfer, .. } => {
                    let transfer = transfer.clone();
                    drop(stage);
                    let _ = transfer.wait_for(left);
                }
                Stage::Following => {
                    self.changed.wait_until(&mut stage, deadline);
                }
                Stage::Over(_) => {}
            }
        }
    }

    /// Asks for it to end, as [`Transfer::cancel`].
    pub(crate) fn cancel(&self) {
        let moving = match &*self.stage.lock() {
            Stage::Moving { transfer, .. } => Some(transfer.clone()),
            Stage::Following | Stage::Over(_) => None,
        };
        match moving {
            Some(transfer) => transfer.cancel(),
            None => self.end_following(self.order.fail(Error::Cancelled)),
        }
    }
}

/// Looks after the first attempt when it has ended.
struct Followed(Arc<Post>);

impl Wake for Followed {
    fn wake(self: Arc<Self>) {
        self.0.settle();
    }
}

/// The task that catches up. It may be dropped instead, with its engine.
struct Following(Arc<Post>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.end_following(self.0.order.fail(Error::Shutdown));
    }
}
