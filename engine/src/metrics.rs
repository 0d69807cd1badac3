//! What an engine counts of its work: names, labels and texts are here, so that whoever shows them shows
//! the same, and every series is there from the start, at zero.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::EngineStatus;
use crate::transfer::Op;
use crate::transports::Transport;

/// Whether a value only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It does.
    Counter,
    /// It may fall again.
    Gauge,
}

/// Values of one name, told apart by labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name, without the `_total` that Prometheus gives counters.
    pub name: &'static str,
    /// Whether its values only grow.
    pub kind: Kind,
    /// What it says.
    pub help: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
}

/// Transfers that have ended.
pub static TRANSFERS: Family = Family {
    name: "kvferry_transfers",
    kind: Kind::Counter,
    help: "Transfers of blocks that have ended, by direction, transport and outcome.",
    labels: &["direction", "transport", "outcome"],
};

/// Bytes of those that are done.
pub static BYTES: Family = Family {
    name: "kvferry_transferred_bytes",
    kind: Kind::Counter,
    help: "Bytes of blocks that were transferred, by direction and transport.",
    labels: &["direction", "transport"],
};

/// Lanes that are open.
pub static LANES: Family = Family {
    name: "kvferry_lanes",
    kind: Kind::Gauge,
    help: "Connections to peers that are open, by who opened them.",
    labels: &["opened_by"],
};

/// Peers that are reached by TCP though something better is allowed.
pub static FALLBACKS: Family = Family {
    name: "kvferry_fallbacks",
    kind: Kind::Counter,
    help: "Peers that were found to be reached by TCP, where something better is allowed.",
    labels: &[],
};

/// All there are.
pub static FAMILIES: [&Family; 4] = [&TRANSFERS, &BYTES, &LANES, &FALLBACKS];

/// A value, and what it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// What it is of.
    pub family: &'static Family,
    /// The values of the family's labels.
    pub labels: Vec<&'static str>,
    /// How many.
    pub value: u64,
}

/// Which way blocks went, seen from this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// To a peer.
    Sent,
    /// From a peer.
    Received,
}

impl Direction {
    const ALL: [Self; 2] = [Self::Sent, Self::Received];

    /// Its name in labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Received => "received",
        }
    }
}

impl From<Op> for Direction {
    fn from(op: Op) -> Self {
        match op {
            Op::Write => Self::Sent,
            Op::Read => Self::Received,
        }
    }
}

/// What has carried a transfer: a bit for each transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carriers(pub(crate) u8);

impl Carriers {
    const MOST: u8 = 8;

    pub(crate) fn of(transport: Transport) -> Self {
        match transport {
            Transport::Tcp => Self(1),
            Transport::Local => Self(2),
            Transport::Rdma => Self(4),
        }
    }

    fn index(self) -> usize {
        usize::from(self.0 % Self::MOST)
    }

    pub(crate) fn name(self) -> &'static str {
        let [local, rdma, tcp] = Transport::ALL;
        match Transport::ALL.map(|one| self.0 & Self::of(one).0 != 0) {
            [true, false, false] => local.name(),
            [false, true, false] => rdma.name(),
            [false, false, true] => tcp.name(),
            [true, true, false] => "local and rdma",
            [true, false, true] => "local and tcp",
            [false, true, true] => "rdma and tcp",
            [true, true, true] => "local, rdma and tcp",
            [false, false, false] => "none",
        }
    }
}

/// Transfers of one direction by what carried them.
#[derive(Debug, Default)]
struct Way {
    done: [AtomicU64; Carriers::MOST as usize],
    failed: [AtomicU64; Carriers::MOST as usize],
    bytes: [AtomicU64; Carriers::MOST as usize],
}

/// What was counted.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    sent: Way,
    received: Way,
    fallbacks: AtomicU64,
}

impl Counts {
    fn way(&self, direction: Direction) -> &Way {
        match direction {
            Direction::Sent => &self.sent,
            Direction::Received => &self.received,
        }
    }

    /// A transfer has ended; with how many bytes, unless it failed.
    pub(crate) fn ended(&self, direction: Direction, carriers: Carriers, done: Option<u64>) {
        let (way, index) = (self.way(direction), carriers.index());
        match done {
            Some(bytes) => {
                way.done[index].fetch_add(1, Ordering::Relaxed);
                way.bytes[index].fetch_add(bytes, Ordering::Relaxed);
            }
            None => {
                way.failed[index].fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// A peer is reached by TCP from now on, though something better is allowed.
    pub(crate) fn fell_back(&self) {
        self.fallbacks.fetch_add(1, Ordering::Relaxed);
    }

    fn samples(&self, status: Option<&EngineStatus>) -> Vec<Sample> {
        let mut samples = Vec::new();
        let mut add = |family, labels: &[&'static str], value: u64| {
            samples.push(Sample { family, labels: labels.to_vec(), value });
        };
        for direction in Direction::ALL {
            let way = self.way(direction);
            for carriers in (0..Carriers::MOST).map(Carriers) {
                let (carrier, is_plain) = (carriers.name(), carriers.0.is_power_of_two());
                let [done, failed, bytes] = [&way.done, &way.failed, &way.bytes]
                    .map(|counts| counts[carriers.index()].load(Ordering::Relaxed));
                // What several carried, or nothing did and is done, is the exception.
                if is_plain || done > 0 {
                    add(&TRANSFERS, &[direction.name(), carrier, "done"], done);
                    add(&BYTES, &[direction.name(), carrier], bytes);
                }
                if is_plain || carriers.0 == 0 || failed > 0 {
                    add(&TRANSFERS, &[direction.name(), carrier, "failed"], failed);
                }
            }
        }
        let held = |of: fn(&EngineStatus) -> usize| status.map_or(0, |status| of(status) as u64);
        add(&LANES, &["us"], held(|status| status.lanes_opened));
        add(&LANES, &["peer"], held(|status| status.lanes_accepted));
        add(&FALLBACKS, &[], self.fallbacks.load(Ordering::Relaxed));
        samples
    }

    pub(crate) fn now(&self, status: &EngineStatus) -> Vec<Sample> {
        self.samples(Some(status))
    }
}

/// Every series that an engine has from the start, at zero.
#[must_use]
pub fn at_zero() -> Vec<Sample> {
    Counts::default().samples(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(counts: &Counts, family: &Family, labels: &[&str]) -> Option<u64> {
        let is_it = |one: &&Sample| one.family == family && one.labels == labels;
        counts.samples(None).iter().find(is_it).map(|one| one.value)
    }

    #[test]
    fn every_series_is_there_from_the_start_with_a_value_for_each_label() {
        let samples = at_zero();
        for family in FAMILIES {
            assert!(samples.iter().any(|one| one.family == family), "{}", family.name);
        }
        for sample in &samples {
            assert_eq!(sample.labels.len(), sample.family.labels.len(), "{sample:?}");
            assert_eq!(sample.value, 0);
        }
        let transfers = samples.iter().filter(|one| one.family == &TRANSFERS);
        assert_eq!(transfers.count(), 2 * (3 * 2 + 1));
    }

    #[test]
    fn transfers_are_told_apart_by_all_that_is_known_of_them() {
        let counts = Counts::default();
        let tcp = Carriers::of(Transport::Tcp);
        counts.ended(Direction::Sent, tcp, Some(4096));
        counts.ended(Direction::Sent, tcp, Some(1));
        counts.ended(Direction::Received, tcp, None);
        counts.ended(Direction::Received, Carriers::default(), None);
        counts.ended(Direction::Sent, Carriers(3), Some(7));
        let of = |labels: &[&str]| value(&counts, &TRANSFERS, labels);
        assert_eq!(of(&["sent", "tcp", "done"]), Some(2));
        assert_eq!(of(&["received", "tcp", "failed"]), Some(1));
        assert_eq!(of(&["received", "none", "failed"]), Some(1));
        assert_eq!(of(&["sent", "local and tcp", "done"]), Some(1));
        assert_eq!(of(&["sent", "local", "done"]), Some(0));
        assert_eq!(of(&["received", "none", "done"]), None);
        assert_eq!(value(&counts, &BYTES, &["sent", "tcp"]), Some(4097));
    }
}
