//! When to join the master, and whether it still counts this client in.

use std::time::{Duration, Instant};

use kvferry_proto::Incarnation;
use kvferry_proto::pool::{BeatAnswer, JoinAnswer, Version};

/// The first wait after an attempt to join that failed; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(50);

/// The longest wait after an attempt that failed: a master that has started again is found so soon.
const MOST_WAIT: Duration = Duration::from_secs(1);

/// How a client stands with its master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Joined {
    pub(crate) master: Incarnation,
    /// When the master forgets it, unless it is heard.
    pub(crate) until: Instant,
    /// How long it may be silent.
    pub(crate) lease: Duration,
    pub(crate) beat_every: Duration,
    pub(crate) heartbeat_port: u16,
    pub(crate) is_recovering: bool,
}

/// What follows from how the master was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It counts this client in.
    Fine,
    /// It has to be joined, and told of all segments: it is new, has forgotten this client, or has
    /// not been heard for half of a lease.
    JoinAgain,
}

#[derive(Debug, Default)]
pub(crate) struct Membership {
    joined: Option<Joined>,
    /// The highest epoch of any master that is known of.
    epoch: u32,
    failures: u32,
}

impl Membership {
    /// What to say of masters before.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// A master gave out that version. Another client may have raised its epoch after this one has
    /// joined: whoever knows a version says so to the next master, which gives it to nothing else.
    pub(crate) fn on_version(&mut self, version: Version) {
        self.epoch = self.epoch.max(version.epoch());
    }

    /// How it stands, while the lease runs.
    pub(crate) fn joined(&self, now: Instant) -> Option<Joined> {
        self.joined.filter(|joined| now < joined.until)
    }

    /// The master answered a request to join that was sent then.
    pub(crate) fn on_joined(&mut self, sent: Instant, answer: JoinAnswer) {
        self.failures = 0;
        self.epoch = self.epoch.max(answer.epoch);
        self.joined = Some(Joined {
            master: answer.master,
            until: sent + answer.lease,
            lease: answer.lease,
            beat_every: answer.beat_every,
            heartbeat_port: answer.heartbeat_port,
            is_recovering: answer.is_recovering,
        });
    }

    /// A request to join failed, or what follows it did. How long to wait before the next.
    pub(crate) fn on_failed(&mut self) -> Duration {
        let wait = FIRST_WAIT.saturating_mul(1 << self.failures.min(16)).min(MOST_WAIT);
        self.failures = self.failures.saturating_add(1);
        wait
    }

    /// The master answered a sign of life that was sent then.
    pub(crate) fn on_beat(&mut self, sent: Instant, answer: BeatAnswer) -> Verdict {
        let Some(joined) = &mut self.joined else { return Verdict::JoinAgain };
        let known = answer.lease.filter(|_| answer.master == joined.master);
        let Some(lease) = known else {
            self.joined = None;
            return Verdict::JoinAgain;
        };
        joined.until = joined.until.max(sent + lease);
        joined.is_recovering = answer.is_recovering;
        Verdict::Fine
    }

    /// A sign of life was not answered.
    pub(crate) fn on_silence(&self, now: Instant) -> Verdict {
        match &self.joined {
            // It may have started again, with its signs of life heard at another port.
            Some(joined) if now + joined.lease / 2 < joined.until => Verdict::Fine,
            _ => Verdict::JoinAgain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    fn answer(master: u64, epoch: u32) -> JoinAnswer {
        JoinAnswer {
            master: Incarnation(master),
            epoch,
            lease: LEASE,
            beat_every: Duration::from_secs(1),
            heartbeat_port: 9,
            is_recovering: false,
        }
    }

    fn beat(master: u64, lease: Option<Duration>) -> BeatAnswer {
        BeatAnswer { master: Incarnation(master), lease, is_recovering: false }
    }

    #[test]
    fn a_lease_runs_from_when_the_request_was_sent_and_beats_prolong_it() {
        let mut membership = Membership::default();
        let start = Instant::now();
        membership.on_joined(start, answer(1, 1));
        assert!(membership.joined(start + LEASE).is_none());
        let later = start + LEASE / 2;
        assert_eq!(membership.on_beat(later, beat(1, Some(LEASE))), Verdict::Fine);
        assert!(membership.joined(start + LEASE).is_some());
        // One that was sent before and is answered later takes nothing back.
        assert_eq!(membership.on_beat(start, beat(1, Some(LEASE))), Verdict::Fine);
        assert!(membership.joined(start + LEASE).is_some());
        assert!(membership.joined(later + LEASE).is_none());
    }

    #[test]
    fn a_master_that_is_new_or_has_forgotten_the_client_is_joined_again() {
        for forgotten in [beat(2, Some(LEASE)), beat(1, None)] {
            let mut membership = Membership::default();
            let now = Instant::now();
            membership.on_joined(now, answer(1, 7));
            assert_eq!(membership.on_beat(now, forgotten), Verdict::JoinAgain);
            assert!(membership.joined(now).is_none());
            // Of the epochs that it was told the highest counts.
            membership.on_joined(now, answer(1, 3));
            assert_eq!(membership.epoch(), 7);
            // So does that of a version, where nobody told of it.
            membership.on_version(Version::first(8));
            membership.on_version(Version::first(2));
            assert_eq!(membership.epoch(), 8);
        }
    }

    #[test]
    fn silence_for_half_of_a_lease_has_the_client_join_again_and_not_before() {
        let mut membership = Membership::default();
        let now = Instant::now();
        assert_eq!(membership.on_silence(now), Verdict::JoinAgain);
        membership.on_joined(now, answer(1, 1));
        let tick = Duration::from_millis(1);
        assert_eq!(membership.on_silence(now + LEASE / 2 - tick), Verdict::Fine);
        assert_eq!(membership.on_silence(now + LEASE / 2 + tick), Verdict::JoinAgain);
    }

    #[test]
    fn attempts_to_join_get_rarer_up_to_a_bound_and_start_anew_after_success() {
        let mut membership = Membership::default();
        let waits: Vec<_> = (0..40).map(|_| membership.on_failed()).collect();
        assert!(waits.is_sorted());
        assert_eq!((waits[0], waits[39]), (FIRST_WAIT, MOST_WAIT));
        membership.on_joined(Instant::now(), answer(1, 1));
        assert_eq!(membership.on_failed(), FIRST_WAIT);
    }
}
