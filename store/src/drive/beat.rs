//! Signs of life, on a thread and a connection of their own: no load on the store keeps them from
//! being given.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvferry_proto::pool::Beat;
use tokio::time::{sleep, timeout};

use super::master::Master;
use super::shared::Shared;
use crate::decide::membership::{Joined, Verdict};

/// The least time between two signs of life, and the longest that an answer to one is waited for.
const LEAST: Duration = Duration::from_millis(10);
const ANSWER: Duration = Duration::from_secs(2);

/// Gives signs of life for as long as it is polled.
pub(crate) async fn beats(shared: Arc<Shared>) {
    loop {
        let changed = shared.joined.notified();
        let joined = shared.membership.lock().joined(Instant::now());
        match joined {
            // Until it has joined there is nothing to say.
            None => {
                let _ = timeout(ANSWER, changed).await;
            }
            Some(joined) => beat_for(&shared, joined).await,
        }
    }
}

/// Gives signs of life to one master until it has to be joined again.
async fn beat_for(shared: &Shared, joined: Joined) {
    let endpoint = shared.master.endpoint();
    let mut heartbeats = match Master::heartbeats(endpoint, joined.heartbeat_port) {
        Ok(heartbeats) => heartbeats,
        Err(error) => {
            tracing::error!(%error, "no signs of life can be given");
            sleep(ANSWER).await;
            return;
        }
    };
    let beat = Beat { client: shared.engine.incarnation(), master: joined.master };
    let limit = (joined.lease / 4).clamp(LEAST, ANSWER);
    loop {
        sleep(joined.beat_every.max(LEAST)).await;
        let sent = Instant::now();
        let answer = heartbeats.beat(beat, limit).await;
        let now = Instant::now();
        let verdict = {
            let mut membership = shared.membership.lock();
            // Somebody has joined meanwhile: what was asked is about another membership.
            if membership.joined(now).is_some_and(|current| {
                (current.master, current.heartbeat_port) != (joined.master, joined.heartbeat_port)
            }) {
                return;
            }
            match &answer {
                Ok(answer) => membership.on_beat(sent, *answer),
                Err(_) => membership.on_silence(now),
            }
        };
        if let Err(error) = answer {
            tracing::debug!(%error, "a sign of life was not answered");
        }
        if verdict == Verdict::JoinAgain {
            // Made before, so that nothing is missed.
            let joined = shared.joined.notified();
            shared.join_again.notify_one();
            let _ = timeout(ANSWER, joined).await;
            return;
        }
    }
}
