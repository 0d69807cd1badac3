//! Joining the master, mounting what is lent, following what changes in it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use kvferry_proto::pool::{BATCH, Follow, Join, MountPart, Outcome, What};
use kvferry_proto::rpc::pool as rpc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::lend::{Segment, SegmentState};
use super::shared::Shared;
use crate::error::Error;

/// Keeps the client in the pool for as long as it is polled, until it leaves.
pub(crate) async fn session(shared: Arc<Shared>) {
    while !shared.has_left.load(Ordering::Acquire) {
        let error = match join(&shared).await {
            Ok(()) => tokio::select! {
                error = serve(&shared) => error,
                () = shared.join_again.notified() => {
                    tracing::info!("the master has to be joined again");
                    continue;
                }
            },
            Err(error) => error,
        };
        let wait = shared.membership.lock().on_failed();
        tracing::info!(%error, ?wait, "the pool's master is out of reach");
        sleep(wait).await;
    }
}

async fn join(shared: &Shared) -> Result<(), Error> {
    let client = shared.engine.incarnation();
    let host = shared.reader.host.clone();
    let epoch = shared.membership.lock().epoch();
    let sent = Instant::now();
    let answer = shared.master.join(&Join { client, host, epoch }).await?;
    tracing::info!(
        master = %answer.master,
        at = %shared.master.endpoint(),
        lease = ?answer.lease,
        recovering = answer.is_recovering,
        "joined the pool"
    );
    shared.membership.lock().on_joined(sent, answer);
    shared.joined.notify_waiters();
    Ok(())
}

/// Follows what changes, and mounts what is to be mounted, until something fails.
async fn serve(shared: &Arc<Shared>) -> Error {
    let client = shared.engine.incarnation();
    // What was told before and is not known to be in the inventory is told again.
    let (said, mut changes) = match shared.master.follow(Follow { client, applied: 0 }).await {
        Ok(stream) => stream,
        Err(error) => return error,
    };
    // Whatever master this is, it has to hear of all of them.
    let mut due = shared.segments();
    let mut mounting = JoinSet::new();
    loop {
        for segment in due.drain(..) {
            if segment.is_mountable() {
                segment.set(SegmentState::Mounting);
                mounting.spawn(mount(shared.clone(), segment));
            }
        }
        tokio::select! {
            message = changes.message() => {
                let number = match shared.master.changes(message) {
                    Ok(changes) => apply(shared, changes),
                    Err(error) => return error,
                };
                let applied = rpc::FollowRequest::from(Follow { client, applied: number });
                if said.send(applied).await.is_err() {
                    return Error::TakenBack;
                }
            }
            () = shared.mount.notified() => {
                let all = shared.segments().into_iter();
                due = all.filter(|segment| segment.is_new()).collect();
            }
            Some(mounted) = mounting.join_next() => match mounted {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return error,
                Err(error) => return Error::system("mounting a segment", error),
            },
        }
    }
}

fn apply(shared: &Shared, changes: kvferry_proto::pool::Changes) -> u64 {
    let mut inventory = shared.inventory.lock();
    for change in changes.changes {
        let segment = change.segment;
        if let What::Keep(held) = &change.what {
            shared.membership.lock().on_version(held.version);
        }
        if !inventory.apply(change) {
            tracing::warn!(%segment, "the master says of a segment what cannot be");
        }
    }
    changes.number
}

/// Tells the master of a segment and of all that is in it.
async fn mount(shared: Arc<Shared>, segment: Arc<Segment>) -> Result<(), Error> {
    let Some(joined) = shared.membership.lock().joined(Instant::now()) else {
        return Err(Error::Outcome(Outcome::NotJoined));
    };
    let (lent, is_fenced) = match segment.prepare(shared.engine.registry(), joined.master) {
        Ok(prepared) => prepared,
        Err(error) => {
            segment.set(SegmentState::NotMounted(error));
            // Without its memory it is of no use to any master.
            return Ok(());
        }
    };
    let held = shared.inventory.lock().held(segment.id);
    let mut parts = Vec::with_capacity(held.len() / BATCH + 1);
    let client = shared.engine.incarnation();
    parts.push(MountPart::First { client, lent, is_fenced, held: Vec::new() });
    parts.extend(held.chunks(BATCH).map(|held| MountPart::More(held.to_vec())));
    let (adopted, refused) = match shared.master.mount(parts).await {
        Ok(answer) => answer,
        Err(error) => {
            segment.set(SegmentState::NotMounted(error.clone()));
            return Err(error);
        }
    };
    segment.mounted();
    tracing::info!(
        segment = %segment.id,
        name = segment.name,
        bytes = segment.length,
        adopted,
        refused,
        "segment mounted"
    );
    Ok(())
}
