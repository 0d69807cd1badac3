//! Which ports of two hosts work together.
//!
//! A [`Pairing`] knows what tables tell of every two ports. Where they tell nothing it has
//! questions, at most one for each two route groups and none that no longer matters; whoever
//! drives it answers them ([`Answers::settle`](super::Answers::settle) with a
//! [`Probe`](super::Probe)), then takes the pairs.

use std::fmt;

use super::assign::assign;
use super::endpoint::{Endpoint, Fabric, Mtu, PortName};
use super::group::{self, GroupLabel};
use super::probe::Answer;
use super::reach::{self, Doubt, Obstacle, Reach};

/// Two ports that work together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The port here.
    pub local: PortName,
    /// The port there.
    pub remote: PortName,
    /// The smaller of both packet sizes. Not known where one of them is not: on InfiniBand, until
    /// both ends have asked their devices.
    pub mtu: Option<Mtu>,
}

/// Two hosts on the way to their pairs.
#[derive(Clone, Debug)]
pub struct Pairing {
    local: Vec<Endpoint>,
    remote: Vec<Endpoint>,
    local_groups: Vec<Vec<usize>>,
    remote_groups: Vec<Vec<usize>>,
    /// By position here, then there.
    reach: Vec<Vec<Reach>>,
    probes: usize,
}

/// Two route groups, by their positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuestionId {
    local: usize,
    remote: usize,
}

/// Two ports that stand for their groups and of which nobody knows.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// To be handed back with the answer.
    pub id: QuestionId,
    /// The port here.
    pub local: &'a Endpoint,
    /// The port there.
    pub remote: &'a Endpoint,
    /// Why tables do not tell.
    pub doubt: &'a Doubt,
}

/// Why two hosts cannot be paired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairingError {
    /// A host has no port that is used.
    #[error("{} has no usable RDMA device: its `kvctl topology` says why", if *.local { "this host" } else { "the peer" })]
    NoDevice {
        /// Whether it is this one.
        local: bool,
    },
    /// A host has more ports than any honest one.
    #[error("the peer offers {found} RDMA ports, at most {limit} are looked at")]
    TooManyPorts {
        /// How many it has.
        found: usize,
        /// How many are looked at.
        limit: usize,
    },
    /// No port here reaches one there.
    #[error(
        "no RDMA device here and there share a route group\n{}",
        no_common_group(local, remote, obstacles)
    )]
    NoCommonGroup {
        /// The ports here.
        local: Vec<Endpoint>,
        /// The ports there.
        remote: Vec<Endpoint>,
        /// Why not, once for each two groups, with a port of each.
        obstacles: Vec<Refused>,
    },
}

/// Two ports that stand for their groups, and why they do not work together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The port here.
    pub local: PortName,
    /// The port there.
    pub remote: PortName,
    /// Why not.
    pub reason: RefusedReason,
}

/// Why two ports do not work together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedReason {
    /// They cannot.
    #[error(transparent)]
    Unreachable(Obstacle),
    /// Nobody tried.
    #[error("{0} (not probed)")]
    Undecided(Doubt),
}

impl Pairing {
    /// How many ports of a host are looked at. The largest machines have some twenty.
    pub const PORTS: usize = 128;

    /// How many probes are made for one peer: rails that match by position need one each, and
    /// what many probes do not find is not there.
    pub const PROBES: usize = 64;

    /// Looks at two hosts.
    ///
    /// # Errors
    /// [`PairingError::NoDevice`] or [`PairingError::TooManyPorts`].
    pub fn new(local: Vec<Endpoint>, remote: Vec<Endpoint>) -> Result<Self, PairingError> {
        for (side, is_local) in [(&local, true), (&remote, false)] {
            if side.is_empty() {
                return Err(PairingError::NoDevice { local: is_local });
            }
            if side.len() > Self::PORTS {
                let (found, limit) = (side.len(), Self::PORTS);
                return Err(PairingError::TooManyPorts { found, limit });
            }
        }
        let row =
            |here: &Endpoint| remote.iter().map(|there| reach::between(here, there)).collect();
        Ok(Self {
            reach: local.iter().map(row).collect(),
            local_groups: group::positions(&local.iter().collect::<Vec<_>>()),
            remote_groups: group::positions(&remote.iter().collect::<Vec<_>>()),
            local,
            remote,
            probes: 0,
        })
    }

    /// What must be tried next; `None` when nothing must, or too much was.
    ///
    /// Groups that are in the same position are tried first, since rails are mostly cabled alike;
    /// two groups that both have a partner already are not.
    #[must_use]
    pub fn next_question(&self) -> Option<Question<'_>> {
        if self.probes >= Self::PROBES {
            return None;
        }
        let meetings = self.meetings().filter(|meeting| {
            let local_settled = self.group_has_partner(&self.local_groups, meeting.local, true);
            let remote_settled = self.group_has_partner(&self.remote_groups, meeting.remote, false);
            !(local_settled && remote_settled)
        });
        let open = meetings.filter_map(|id| Some((id, self.open_pair(id)?)));
        let (id, (here, there)) =
            open.min_by_key(|(id, _)| (id.local.abs_diff(id.remote), id.local))?;
        let Reach::Undecided(doubt) = &self.reach[here][there] else { return None };
        Some(Question { id, local: &self.local[here], remote: &self.remote[there], doubt })
    }

    /// Takes an answer. It holds for all ports of the two groups of which tables do not tell.
    pub fn answer(&mut self, question: QuestionId, answer: Answer) {
        self.probes += 1;
        for (here, there) in self.pairs_of(question) {
            let reach = &mut self.reach[here][there];
            if matches!(reach, Reach::Undecided(_)) {
                *reach = match answer {
                    Answer::Acknowledged => Reach::Reachable,
                    answer => Reach::Unreachable(Obstacle::Probed { answer }),
                };
            }
        }
    }

    /// The pairs, as far as is known now: what is undecided is left out. Everyone who reaches
    /// somebody has a partner.
    ///
    /// # Errors
    /// [`PairingError::NoCommonGroup`] where there is none, with both hosts' tables.
    pub fn pairs(&self) -> Result<Vec<Pair>, PairingError> {
        let reaches = |here: usize, there: usize| self.reach[here][there] == Reach::Reachable;
        let pairs = assign(self.local.len(), self.remote.len(), reaches);
        if pairs.is_empty() {
            let obstacles = self.refused();
            let (local, remote) = (self.local.clone(), self.remote.clone());
            return Err(PairingError::NoCommonGroup { local, remote, obstacles });
        }
        let pair = |(here, there): (usize, usize)| {
            let (local, remote) = (&self.local[here], &self.remote[there]);
            let mtu = local.mtu.zip(remote.mtu).map(|(local, remote)| local.min(remote));
            Pair { local: local.name.clone(), remote: remote.name.clone(), mtu }
        };
        Ok(pairs.into_iter().map(pair).collect())
    }

    /// Why groups do not work together: one entry for each two that do not.
    #[must_use]
    pub fn refused(&self) -> Vec<Refused> {
        let refused = self.meetings().filter_map(|meeting| {
            let pairs = self.pairs_of(meeting);
            if pairs.iter().any(|(here, there)| self.reach[*here][*there] == Reach::Reachable) {
                return None;
            }
            let undecided = |(here, there): &&(usize, usize)| {
                matches!(self.reach[*here][*there], Reach::Undecided(_))
            };
            let (here, there) = *pairs.iter().find(undecided).or(pairs.first())?;
            let reason = match &self.reach[here][there] {
                Reach::Reachable => return None,
                Reach::Unreachable(obstacle) => RefusedReason::Unreachable(obstacle.clone()),
                Reach::Undecided(_) if self.probes >= Self::PROBES => {
                    RefusedReason::Unreachable(Obstacle::NotProbed { limit: Self::PROBES })
                }
                Reach::Undecided(doubt) => RefusedReason::Undecided(doubt.clone()),
            };
            let (local, remote) = (self.local[here].name.clone(), self.remote[there].name.clone());
            Some(Refused { local, remote, reason })
        });
        refused.collect()
    }

    fn meetings(&self) -> impl Iterator<Item = QuestionId> {
        let remotes = self.remote_groups.len();
        (0..self.local_groups.len())
            .flat_map(move |local| (0..remotes).map(move |remote| QuestionId { local, remote }))
    }

    fn pairs_of(&self, meeting: QuestionId) -> Vec<(usize, usize)> {
        let (Some(local), Some(remote)) =
            (self.local_groups.get(meeting.local), self.remote_groups.get(meeting.remote))
        else {
            return vec![];
        };
        local.iter().flat_map(|here| remote.iter().map(|there| (*here, *there))).collect()
    }

    /// Two ports of two groups of which nobody knows, where none of their ports is known to work.
    fn open_pair(&self, meeting: QuestionId) -> Option<(usize, usize)> {
        let pairs = self.pairs_of(meeting);
        let state = |(here, there): &(usize, usize)| &self.reach[*here][*there];
        if pairs.iter().any(|pair| *state(pair) == Reach::Reachable) {
            return None;
        }
        pairs.into_iter().find(|pair| matches!(state(pair), Reach::Undecided(_)))
    }

    fn group_has_partner(&self, groups: &[Vec<usize>], group: usize, local: bool) -> bool {
        let reaches = |at: usize| match local {
            true => self.reach[at].contains(&Reach::Reachable),
            false => self.reach.iter().any(|row| row[at] == Reach::Reachable),
        };
        groups[group].iter().any(|at| reaches(*at))
    }
}

impl Question<'_> {
    /// The labels of the two groups: what an answer is remembered by.
    #[must_use]
    pub fn groups(&self) -> (GroupLabel, GroupLabel) {
        (GroupLabel::of(self.local), GroupLabel::of(self.remote))
    }
}

/// How many reasons an error lists: on hosts of many networks they are all of a kind.
const LISTED_REASONS: usize = 16;

fn no_common_group(local: &[Endpoint], remote: &[Endpoint], obstacles: &[Refused]) -> String {
    let mut lines = Vec::new();
    for (side, endpoints) in [("here", local), ("there", remote)] {
        lines.push(format!("  {side}:"));
        lines.extend(endpoints.iter().map(|endpoint| format!("    {}", Row(endpoint))));
    }
    lines.push("  why not:".to_owned());
    for refused in obstacles.iter().take(LISTED_REASONS) {
        let Refused { local, remote, reason } = refused;
        lines.push(format!("    {local} - {remote}: {reason}"));
    }
    if obstacles.len() > LISTED_REASONS {
        lines.push(format!("    and {} more", obstacles.len() - LISTED_REASONS));
    }
    lines.join("\n")
}

/// A port as a row of a host's table.
struct Row<'a>(&'a Endpoint);

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Endpoint { name, gid, fabric, pkey, .. } = self.0;
        write!(f, "{name:<14} GID {gid}, group {}", GroupLabel::of(self.0))?;
        if let Some(pkey) = pkey {
            write!(f, ", partition key {pkey}")?;
        }
        if let Fabric::Ethernet(reach) = fabric {
            for network in &reach.routed {
                write!(f, ", route to {network}")?;
            }
            if reach.default_route {
                write!(f, ", default route")?;
            }
        }
        Ok(())
    }
}
