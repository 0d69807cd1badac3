//! A batch of puts: for which objects room is asked, what is written where, how each ends.
//!
//! ```text
//!            room                bytes                 some copy is there
//!  asked for ----> reserved ---------------> written ------------------> ended
//!      |  \                                     \ none is
//!      |   \ no master: once, after a wait       `------------------> revoked
//!      `-> already there
//! ```
//!
//! What is reserved is ended or given back, whatever happens; what the master never hears of is over
//! with its reservation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvferry_proto::Incarnation;
use kvferry_proto::pool::{Outcome, Placed, PutStartAnswer, SegmentId, Version};

use super::answered;
use super::load::{Load, Part, Place, Wanted, loads};
use crate::error::Error;

/// How long a batch waits for the master to know this client, and what there is, once. Whoever puts
/// holds memory of its own meanwhile. Room is waited for by the master, likewise once a batch.
pub(crate) const READY_WAIT: Duration = Duration::from_millis(150);

/// What became of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The object is in the pool.
    New {
        /// How many replicas of it.
        replicas: usize,
        /// Whether all owners have it in their inventories: only then does it outlive the master.
        is_recorded: bool,
    },
    /// There was an object under this key. It was left as it is.
    Existed,
    /// Somebody else is writing an object under this key. Whether it gets there is not known.
    BeingWritten,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Ask for room for these.
    Start(Vec<usize>),
    /// Write these, at the same time.
    Write(Vec<Load>),
    /// Tell the master: of those that are written, and of those that are not going to be.
    Settle { ended: Vec<Ending>, revoked: Vec<Revoking> },
    /// Wait for the master to be ready.
    Wait(Duration),
    /// All have ended.
    Over,
}

/// An object that is written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) item: usize,
    pub(crate) version: Version,
    /// Segments that it was not written to.
    pub(crate) lost: Vec<SegmentId>,
    /// Whose segments it was written to.
    pub(crate) owners: Vec<Incarnation>,
}

/// An object that is given up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Revoking {
    pub(crate) item: usize,
    pub(crate) version: Version,
    pub(crate) is_fenced: bool,
}

/// A load that was not written.
#[derive(Clone, Debug)]
pub(crate) struct NotWritten {
    pub(crate) error: Error,
    /// No byte of it can arrive any more.
    pub(crate) is_fenced: bool,
    /// No byte of it has arrived.
    pub(crate) is_untouched: bool,
}

#[derive(Debug)]
pub(crate) struct Batch {
    items: Vec<Item>,
    has_waited: bool,
}

#[derive(Debug)]
struct Item {
    length: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Room is to be asked for.
    New,
    /// The master could not tell yet.
    Unready,
    Reserved {
        version: Version,
        until: Instant,
        copies: Vec<Copy>,
        alone: bool,
    },
    Over(Result<Stored, Error>),
}

#[derive(Debug)]
struct Copy {
    place: Place,
    state: CopyState,
}

#[derive(Debug)]
enum CopyState {
    Due,
    Written,
    Lost(NotWritten),
}

impl Batch {
    /// A batch of objects of these lengths, or with what is wrong with them.
    pub(crate) fn new(lengths: impl IntoIterator<Item = Result<u64, Error>>) -> Self {
        let item = |length| match length {
            Ok(length) => Item { length, state: State::New },
            Err(error) => Item { length: 0, state: State::Over(Err(error)) },
        };
        Self { items: lengths.into_iter().map(item).collect(), has_waited: false }
    }

    /// What to do next. Each step is to be answered before the next is asked for.
    pub(crate) fn step(&self) -> Step {
        let new = self.indices(|state| matches!(state, State::New));
        if !new.is_empty() {
            return Step::Start(new);
        }
        let due = self.due();
        if !due.is_empty() {
            return Step::Write(loads(due));
        }
        let (ended, revoked) = self.settling();
        if !ended.is_empty() || !revoked.is_empty() {
            return Step::Settle { ended, revoked };
        }
        if self.items.iter().any(|item| matches!(item.state, State::Unready)) {
            return Step::Wait(READY_WAIT);
        }
        Step::Over
    }

    fn indices(&self, which: impl Fn(&State) -> bool) -> Vec<usize> {
        let items = self.items.iter().enumerate();
        items.filter(|(_, item)| which(&item.state)).map(|(index, _)| index).collect()
    }

    fn due(&self) -> Vec<Wanted> {
        let mut due = Vec::new();
        for (index, item) in self.items.iter().enumerate() {
            let State::Reserved { until, copies, alone, .. } = &item.state else { continue };
            for (replica, copy) in copies.iter().enumerate() {
                if matches!(copy.state, CopyState::Due) {
                    let place = copy.place.clone();
                    let part = Part { item: index, replica, place, length: item.length };
                    due.push(Wanted { part, until: *until, alone: *alone });
                }
            }
        }
        due
    }

    fn settling(&self) -> (Vec<Ending>, Vec<Revoking>) {
        let (mut ended, mut revoked) = (Vec::new(), Vec::new());
        for (item, Item { state, .. }) in self.items.iter().enumerate() {
            let State::Reserved { version, copies, .. } = state else { continue };
            let version = *version;
            let lost: Vec<&Copy> =
                copies.iter().filter(|copy| matches!(copy.state, CopyState::Lost(_))).collect();
            if lost.len() == copies.len() {
                let is_fenced = copies.iter().all(|copy| match &copy.state {
                    CopyState::Lost(lost) => lost.is_fenced,
                    CopyState::Due | CopyState::Written => false,
                });
                revoked.push(Revoking { item, version, is_fenced });
            } else {
                let lost = lost.iter().map(|copy| copy.place.segment.lent.segment).collect();
                let written = copies.iter().filter(|copy| matches!(copy.state, CopyState::Written));
                let owners = written.map(|copy| copy.place.owner()).collect();
                ended.push(Ending { item, version, lost, owners });
            }
        }
        (ended, revoked)
    }

    /// What the master answered to [`Step::Start`], which was sent then.
    pub(crate) fn started(
        &mut self,
        items: &[usize],
        sent: Instant,
        answer: Result<PutStartAnswer, Error>,
    ) {
        let fail = |index: usize, error| self.items[index].state = State::Over(Err(error));
        let Some(answer) = answered(answer, items, fail) else { return };
        let segments: Vec<Arc<Placed>> = answer.segments.into_iter().map(Arc::new).collect();
        let until = sent + answer.reservation;
        for (index, reserved) in items.iter().zip(answer.reserved) {
            let state = match reserved {
                Ok(reserved) => State::Reserved {
                    version: reserved.version,
                    until,
                    copies: Place::all(&reserved.replicas, &segments)
                        .into_iter()
                        .map(|place| Copy { place, state: CopyState::Due })
                        .collect(),
                    alone: false,
                },
                Err(Outcome::Exists) => State::Over(Ok(Stored::Existed)),
                Err(Outcome::BeingWritten) => State::Over(Ok(Stored::BeingWritten)),
                Err(outcome) if may_pass(outcome) && !self.has_waited => State::Unready,
                Err(outcome) => State::Over(Err(Error::Outcome(outcome))),
            };
            self.items[*index].state = state;
        }
    }

    /// The wait is over: those for which it was not ready are asked for again, once.
    pub(crate) fn waited(&mut self) {
        self.has_waited = true;
        for item in &mut self.items {
            if matches!(item.state, State::Unready) {
                item.state = State::New;
            }
        }
    }

    /// How a load of [`Step::Write`] ended.
    pub(crate) fn written(&mut self, load: &Load, outcome: &Result<(), NotWritten>) {
        let again = match outcome {
            // What is wrong with one must not fail the others: each goes on its own.
            Err(lost) => lost.is_untouched && load.parts.len() > 1,
            Ok(()) => false,
        };
        for part in &load.parts {
            let State::Reserved { copies, alone, .. } = &mut self.items[part.item].state else {
                continue;
            };
            *alone |= again;
            if let Some(copy) = copies.get_mut(part.replica)
                && !again
            {
                copy.state = match outcome {
                    Ok(()) => CopyState::Written,
                    Err(lost) => CopyState::Lost(lost.clone()),
                };
            }
        }
    }

    /// How an object of [`Step::Settle`] ended: what the master said of it, and whether its owners
    /// have it in their inventories.
    pub(crate) fn ended(&mut self, ending: &Ending, answer: Result<(Outcome, bool), Error>) {
        let item = &mut self.items[ending.item];
        let State::Reserved { copies, .. } = &mut item.state else { return };
        let replicas = copies.len() - ending.lost.len();
        item.state = match answer {
            Ok((Outcome::Ok, is_recorded)) => {
                State::Over(Ok(Stored::New { replicas, is_recorded }))
            }
            Ok((outcome, _)) => State::Over(Err(Error::Outcome(outcome))),
            // Whether the master took it is not known: it is given up. Nothing is on its way.
            Err(error) => {
                for copy in copies.iter_mut() {
                    if matches!(copy.state, CopyState::Written) {
                        let (is_fenced, is_untouched) = (true, false);
                        let error = error.clone();
                        copy.state = CopyState::Lost(NotWritten { error, is_fenced, is_untouched });
                    }
                }
                return;
            }
        };
    }

    /// An object of [`Step::Settle`] was given up, or could not be: then its reservation ends by
    /// itself.
    pub(crate) fn revoked(&mut self, revoking: &Revoking) {
        let item = &mut self.items[revoking.item];
        let State::Reserved { copies, .. } = &mut item.state else { return };
        let cause = copies.drain(..).find_map(|copy| match copy.state {
            CopyState::Lost(lost) => Some(lost.error),
            CopyState::Due | CopyState::Written => None,
        });
        // An answer without replicas was refused when it came.
        item.state = State::Over(Err(cause.unwrap_or(Error::TakenBack)));
    }

    /// What is reserved now: to be given back when the batch is given up.
    pub(crate) fn reserved(&self) -> Vec<Revoking> {
        let items = self.items.iter().enumerate();
        items
            .filter_map(|(item, Item { state, .. })| match state {
                State::Reserved { version, copies, .. } => {
                    // What was under way may still arrive.
                    let is_fenced = copies.iter().all(|copy| match &copy.state {
                        CopyState::Due => false,
                        CopyState::Written => true,
                        CopyState::Lost(lost) => lost.is_fenced,
                    });
                    Some(Revoking { item, version: *version, is_fenced })
                }
                _ => None,
            })
            .collect()
    }

    /// How each ended, in order.
    pub(crate) fn into_results(self) -> Vec<Result<Stored, Error>> {
        let result = |item: Item| match item.state {
            State::Over(result) => result,
            State::New | State::Unready | State::Reserved { .. } => Err(Error::TakenBack),
        };
        self.items.into_iter().map(result).collect()
    }
}

/// Whether the master may well be ready a moment later.
fn may_pass(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Recovering | Outcome::NotJoined)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use kvferry_engine::Endpoint;
    use kvferry_proto::pool::{Replica, Reserved};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::load::tests::segment;
    use super::*;

    /// Where things go wrong, in the order in which they are asked about.
    struct Fate(Vec<u8>, usize);

    impl Fate {
        fn draw(&mut self, of: u8) -> u8 {
            self.1 += 1;
            self.0.get(self.1 - 1).map_or(0, |drawn| drawn % of)
        }
    }

    fn unreachable() -> Error {
        Error::Master { master: Endpoint::new("master", 1), reason: "gone".into() }
    }

    fn answer(fate: &mut Fate, count: usize, next: &mut u64) -> PutStartAnswer {
        let segments: Vec<Placed> = (1..4).map(|owner| (*segment(owner, "")).clone()).collect();
        let reserved = (0..count).map(|_| match fate.draw(8) {
            0 => Err(Outcome::Exists),
            1 => Err(Outcome::BeingWritten),
            2 => Err(Outcome::NoSpace),
            3 => Err(Outcome::NotJoined),
            _ => {
                *next += 1;
                let replicas = 1 + usize::from(fate.draw(3));
                let replicas = (0..replicas).map(|segment| Replica { segment, offset: 0 });
                Ok(Reserved { version: Version(*next), replicas: replicas.collect() })
            }
        });
        PutStartAnswer {
            reserved: reserved.collect(),
            segments,
            reservation: Duration::from_secs(30),
        }
    }

    fn lost(fate: &mut Fate) -> Option<NotWritten> {
        let (is_fenced, is_untouched) = match fate.draw(5) {
            0 | 1 => return None,
            2 => (true, true),
            3 => (true, false),
            _ => (false, false),
        };
        Some(NotWritten { error: Error::LeaseOver, is_fenced, is_untouched })
    }

    proptest! {
        #[test]
        fn every_put_ends_once_and_nothing_stays_reserved(
            lengths in vec(0_u64..100, 0..12),
            fates in vec(any::<u8>(), 0..200),
        ) {
            let mut fate = Fate(fates, 0);
            let mut batch = Batch::new(lengths.iter().map(|length| match length {
                0 => Err(Error::Empty),
                length => Ok(*length),
            }));
            let (mut open, mut next, mut waits) = (HashSet::new(), 0, 0);
            let mut found = HashSet::new();
            for steps in 0.. {
                prop_assert!(steps < 100, "it does not end");
                match batch.step() {
                    Step::Start(items) => {
                        let answer = match fate.draw(9) {
                            1 => Err(unreachable()),
                            _ => Ok(answer(&mut fate, items.len(), &mut next)),
                        };
                        for reserved in answer.iter().flat_map(|answer| &answer.reserved) {
                            open.extend(reserved.iter().map(|reserved| reserved.version));
                        }
                        batch.started(&items, Instant::now(), answer);
                    }
                    Step::Write(loads) => {
                        for load in loads {
                            batch.written(&load, &lost(&mut fate).map_or(Ok(()), Err));
                        }
                    }
                    Step::Settle { ended, revoked } => {
                        for ending in &ended {
                            let answer = match fate.draw(6) {
                                1 => Err(unreachable()),
                                2 => Ok((Outcome::NotReserved, true)),
                                _ => Ok((Outcome::Ok, true)),
                            };
                            if answer.is_ok() {
                                prop_assert!(open.remove(&ending.version));
                            }
                            if matches!(answer, Ok((Outcome::Ok, _))) {
                                prop_assert!(found.insert(ending.item));
                            }
                            batch.ended(ending, answer);
                        }
                        for revoking in &revoked {
                            prop_assert!(open.remove(&revoking.version));
                            batch.revoked(revoking);
                        }
                    }
                    Step::Wait(time) => {
                        waits += 1;
                        prop_assert!(waits == 1 && time <= Duration::from_millis(200));
                        batch.waited();
                    }
                    Step::Over => break,
                }
                let reserved: HashSet<_> =
                    batch.reserved().iter().map(|revoking| revoking.version).collect();
                prop_assert_eq!(&reserved, &open);
            }
            prop_assert!(open.is_empty());
            let results = batch.into_results();
            prop_assert_eq!(results.len(), lengths.len());
            for (item, result) in results.iter().enumerate() {
                let is_new = matches!(result, Ok(Stored::New { replicas: 1.., .. }));
                prop_assert_eq!(is_new, found.contains(&item));
                prop_assert!(lengths[item] > 0 || matches!(result, Err(Error::Empty)));
                prop_assert!(!matches!(result, Err(Error::TakenBack)));
            }
        }
    }
}
