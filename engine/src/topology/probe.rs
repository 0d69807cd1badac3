//! Finding out where tables cannot tell.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use kvferry_proto::Incarnation;

use super::endpoint::Endpoint;
use super::group::GroupLabel;
use super::pairing::Pairing;

/// How long a probe may take: what answers later is no path for transfers either.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// What a probe reads from the peer.
pub const PROBE_BYTES: usize = 8;

/// Tries whether two ports reach each other.
///
/// An honest probe brings a queue pair to RTS on both ends and has one READ of [`PROBE_BYTES`]
/// bytes acknowledged within [`PROBE_TIMEOUT`]. Less proves too little: on InfiniBand the
/// transition to RTR succeeds without a packet sent, whatever the other end is; on RoCE it proves
/// that an address was resolved, and not that the answer finds its way back.
pub trait Probe {
    /// Tries it, once.
    fn probe(&mut self, local: &Endpoint, remote: &Endpoint) -> Answer;
}

/// What came of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The READ was acknowledged: they reach each other.
    Acknowledged,
    /// The READ was not acknowledged in time.
    Silent,
    /// A queue pair could not be brought to RTS here.
    QueuePair {
        /// The error of the system call.
        errno: i32,
    },
    /// The peer could not bring up its end.
    PeerRefused,
}

/// What probes have found, for as long as the peer is the same.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    known: BTreeMap<Incarnation, BTreeMap<(GroupLabel, GroupLabel), Answer>>,
}

impl Answers {
    /// What a probe between two groups has found.
    #[must_use]
    pub fn get(
        &self,
        peer: Incarnation,
        local: &GroupLabel,
        remote: &GroupLabel,
    ) -> Option<Answer> {
        self.known.get(&peer)?.get(&(local.clone(), remote.clone())).copied()
    }

    /// Remembers what a probe has found.
    pub fn remember(
        &mut self,
        peer: Incarnation,
        local: GroupLabel,
        remote: GroupLabel,
        answer: Answer,
    ) {
        self.known.entry(peer).or_default().insert((local, remote), answer);
    }

    /// Forgets a peer that is gone. Whoever answers at its address is somebody else.
    pub fn forget(&mut self, peer: Incarnation) {
        self.known.remove(&peer);
    }

    /// Answers what a pairing asks: from memory, else with a probe, whose answer is remembered.
    pub fn settle(&mut self, pairing: &mut Pairing, peer: Incarnation, probe: &mut dyn Probe) {
        while let Some(question) = pairing.next_question() {
            let (local, remote) = question.groups();
            let answer = self.get(peer, &local, &remote).unwrap_or_else(|| {
                let answer = probe.probe(question.local, question.remote);
                self.remember(peer, local, remote, answer);
                answer
            });
            let asked = question.id;
            pairing.answer(asked, answer);
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acknowledged => f.write_str("acknowledged"),
            Self::Silent => {
                let milliseconds = PROBE_TIMEOUT.as_millis();
                write!(f, "a READ of {PROBE_BYTES} bytes was not acknowledged in {milliseconds} ms")
            }
            Self::QueuePair { errno } => {
                let error = std::io::Error::from_raw_os_error(*errno);
                write!(f, "the queue pair could not be brought to RTS: {error}")
            }
            Self::PeerRefused => f.write_str("the peer could not bring its queue pair to RTS"),
        }
    }
}
