//! Whose lease runs: clients are live, then suspect, then expired, then forgotten.
//!
//! A master that was itself held up has heard nobody meanwhile, and that is nobody's fault: the time
//! by which it looks late is added to every lease.

use std::collections::HashMap;
use std::time::Duration;

use kvferry_proto::Incarnation;

use super::moment::Moment;

/// How long is waited for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    /// Without a sign of life for so long, a client is suspect.
    pub suspect: Duration,
    /// For so long, its lease is over.
    pub expire: Duration,
    /// For so long, nothing is remembered of it.
    pub forget: Duration,
    /// How often [`Leases::look`] is called.
    pub look_every: Duration,
}

impl LeaseTimes {
    /// A look that comes so long after the one before is late: the master was held up.
    pub(super) fn look_late(&self) -> Duration {
        self.look_every * 2
    }
}

/// What became of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Became {
    /// It was suspect or expired, and is heard again.
    Live,
    /// It was not heard lately.
    Suspect,
    /// Its lease is over.
    Expired,
    /// It has to join again.
    Forgotten,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Live,
    Suspect,
    Expired,
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    heard: Moment,
    standing: Standing,
}

/// Clients, and when each was heard.
#[derive(Debug)]
pub struct Leases {
    times: LeaseTimes,
    holders: HashMap<Incarnation, Holder>,
    looked: Moment,
    /// For how long looks were late, all of them together.
    held_up: Duration,
}

impl Leases {
    /// Nobody holds a lease.
    #[must_use]
    pub fn new(times: LeaseTimes) -> Self {
        Self { times, holders: HashMap::new(), looked: Moment::default(), held_up: Duration::ZERO }
    }

    /// A client joins, or joins again. Whether it is new.
    pub fn grant(&mut self, now: Moment, client: Incarnation) -> (bool, Option<Became>) {
        match self.renew(now, client) {
            Some(became) => (false, became),
            None => {
                let holder = Holder { heard: now, standing: Standing::Live };
                self.holders.insert(client, holder);
                (true, None)
            }
        }
    }

    /// A client gives a sign of life. `None` where it is not known, else what it became by that.
    pub fn renew(&mut self, now: Moment, client: Incarnation) -> Option<Option<Became>> {
        let holder = self.holders.get_mut(&client)?;
        // Signs are heard in the order in which they were given, moments may be taken in another.
        holder.heard = holder.heard.max(now);
        let was = std::mem::replace(&mut holder.standing, Standing::Live);
        Some((was != Standing::Live).then_some(Became::Live))
    }

    /// Whether a client's lease runs.
    #[must_use]
    pub fn is_live(&self, client: Incarnation) -> bool {
        self.holders.get(&client).is_some_and(|holder| holder.standing != Standing::Expired)
    }

    /// A client leaves. False where it was not known.
    pub fn release(&mut self, client: Incarnation) -> bool {
        self.holders.remove(&client).is_some()
    }

    /// Clients whose leases run, and those that are remembered.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let live = self.holders.values().filter(|holder| holder.standing != Standing::Expired);
        (live.count(), self.holders.len())
    }

    /// For how long the master was held up since its start, as far as [`Self::look`] has seen.
    #[must_use]
    pub fn held_up(&self) -> Duration {
        self.held_up
    }

    /// Looks who was not heard for too long. To be called every [`LeaseTimes::look_every`].
    pub fn look(&mut self, now: Moment) -> Vec<(Incarnation, Became)> {
        let gap = now.since(self.looked);
        self.looked = self.looked.max(now);
        let is_late = gap > self.times.look_late();
        let late = if is_late { gap - self.times.look_every } else { Duration::ZERO };
        self.held_up += late;
        let mut changes = Vec::new();
        for (client, holder) in &mut self.holders {
            if !late.is_zero() {
                holder.heard = holder.heard.after(late).min(now);
            }
            let silent = now.since(holder.heard);
            let standing = match () {
                () if silent >= self.times.expire => Standing::Expired,
                () if silent >= self.times.suspect => Standing::Suspect,
                () => continue,
            };
            // One step at a time: nobody expires who was not suspect first.
            let (next, became) = match (holder.standing, standing) {
                (Standing::Live, _) => (Standing::Suspect, Became::Suspect),
                (Standing::Suspect, Standing::Expired) => (Standing::Expired, Became::Expired),
                (Standing::Expired, _) if silent >= self.times.forget => {
                    (Standing::Expired, Became::Forgotten)
                }
                _ => continue,
            };
            holder.standing = next;
            changes.push((*client, became));
        }
        changes.sort_unstable_by_key(|(client, _)| *client);
        for (client, became) in &changes {
            if *became == Became::Forgotten {
                self.holders.remove(client);
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leases() -> Leases {
        Leases::new(LeaseTimes {
            suspect: Duration::from_millis(500),
            expire: Duration::from_millis(1000),
            forget: Duration::from_millis(3000),
            look_every: Duration::from_millis(100),
        })
    }

    /// Looks every 100 ms until then.
    fn until(leases: &mut Leases, from: u64, to: u64) -> Vec<(u64, Became)> {
        let looks = (from..=to).step_by(100);
        looks
            .flat_map(|now| leases.look(Moment(now)).into_iter().map(move |change| (now, change.1)))
            .collect()
    }

    #[test]
    fn a_silent_client_is_suspect_then_expired_then_forgotten() {
        let mut leases = leases();
        assert_eq!(leases.grant(Moment(0), Incarnation(1)), (true, None));
        let became = until(&mut leases, 0, 4000);
        let expected = [(500, Became::Suspect), (1000, Became::Expired), (3000, Became::Forgotten)];
        assert_eq!(became, expected);
        assert_eq!(leases.renew(Moment(4000), Incarnation(1)), None);
    }

    #[test]
    fn a_sign_of_life_makes_a_suspect_and_an_expired_client_live_again() {
        let mut leases = leases();
        let client = Incarnation(1);
        leases.grant(Moment(0), client);
        until(&mut leases, 0, 600);
        assert_eq!(leases.renew(Moment(600), client), Some(Some(Became::Live)));
        assert_eq!(leases.renew(Moment(700), client), Some(None));
        until(&mut leases, 700, 1800);
        assert!(!leases.is_live(client));
        assert_eq!(leases.grant(Moment(1800), client), (false, Some(Became::Live)));
        assert!(leases.is_live(client));
    }

    #[test]
    fn nobody_expires_because_the_master_was_held_up() {
        let mut leases = leases();
        for client in 1..=100 {
            leases.grant(Moment(0), Incarnation(client));
        }
        until(&mut leases, 0, 300);
        // For a minute it was not asked, and no sign could be heard.
        assert_eq!(leases.look(Moment(60_000)), []);
        // The one that is really gone goes in its time.
        let mut became = Vec::new();
        for now in (60_100..=60_600).step_by(100) {
            for client in 1..=99 {
                assert_eq!(leases.renew(Moment(now), Incarnation(client)), Some(None));
            }
            became.extend(until(&mut leases, now, now));
        }
        assert_eq!(became, [(60_100, Became::Suspect), (60_600, Became::Expired)]);
    }
}
