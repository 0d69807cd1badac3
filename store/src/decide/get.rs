//! A batch of gets: which objects are looked for, which copy is read, whether what was read counts.
//!
//! ```text
//!               a lease            a copy, whole, and in time
//!  looked for ----------> located ---------------------------> got
//!      ^                   |   ^ \
//!      |    all have failed|   `--' the next copy
//!      `-------------------' or the lease is over: as often as it may
//! ```
//!
//! Bytes count only if they had arrived while the lease still ran: what arrives later may be
//! another object's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvferry_proto::Incarnation;
use kvferry_proto::pool::{LocateAnswer, Outcome, Placed};

use super::answered;
use super::choice::Reader;
use super::load::{Load, Part, Place, Wanted, loads};
use crate::error::Error;

/// How often an object is looked for: what is found may be gone or out of reach by the time that it
/// is read.
const LOCATES: u32 = 3;

/// How often a master that is still being told what there is, is asked again.
const RECOVERY_WAITS: u32 = 5;

/// How long between.
const RECOVERY_WAIT: Duration = Duration::from_millis(100);

/// How long a copy may take where there is another, and the time of its bytes: a lender that is
/// stopped holds nobody up for the whole of a lease.
const ATTEMPT: Duration = Duration::from_secs(2);
const ATTEMPT_BYTES_PER_MS: u64 = (64 << 20) / 1000;

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Ask where these are.
    Locate(Vec<usize>),
    /// Read these, at the same time.
    Read(Vec<Load>),
    /// Wait for the master.
    Wait(Duration),
    /// All have ended.
    Over,
}

#[derive(Debug)]
pub(crate) struct Batch {
    items: Vec<Item>,
    waits: u32,
}

#[derive(Debug)]
struct Item {
    /// How many bytes there is room for.
    room: u64,
    locates: u32,
    /// In transfers of its own from now on.
    alone: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// To be looked for.
    New,
    /// The master cannot tell yet.
    Unknown,
    Located(Located),
    Over(Result<u64, Error>),
}

#[derive(Debug)]
struct Located {
    length: u64,
    checksum: Option<u32>,
    places: Vec<Place>,
    /// Which are to be tried, the next one last.
    left: Vec<usize>,
    until: Instant,
}

impl Batch {
    /// A batch of objects for which there is room of so many bytes.
    pub(crate) fn new(rooms: impl IntoIterator<Item = u64>) -> Self {
        let item = |room| Item { room, locates: 0, alone: false, state: State::New };
        Self { items: rooms.into_iter().map(item).collect(), waits: 0 }
    }

    /// What to do next. Each step is to be answered before the next is asked for.
    pub(crate) fn step(&self, now: Instant) -> Step {
        let new = self.indices(|state| matches!(state, State::New));
        if !new.is_empty() {
            return Step::Locate(new);
        }
        let mut wanted = Vec::new();
        for (index, item) in self.items.iter().enumerate() {
            let State::Located(located) = &item.state else { continue };
            let Some(replica) = located.left.last().copied() else { continue };
            let place = located.places[replica].clone();
            let part = Part { item: index, replica, place, length: located.length };
            let is_last = located.left.len() == 1;
            let allowed = ATTEMPT + Duration::from_millis(located.length / ATTEMPT_BYTES_PER_MS);
            let until = if is_last { located.until } else { located.until.min(now + allowed) };
            wanted.push(Wanted { part, until, alone: item.alone });
        }
        if !wanted.is_empty() {
            return Step::Read(loads(wanted));
        }
        if self.items.iter().any(|item| matches!(item.state, State::Unknown)) {
            return Step::Wait(RECOVERY_WAIT);
        }
        Step::Over
    }

    fn indices(&self, which: impl Fn(&State) -> bool) -> Vec<usize> {
        let items = self.items.iter().enumerate();
        items.filter(|(_, item)| which(&item.state)).map(|(index, _)| index).collect()
    }

    /// What the master answered to [`Step::Locate`], which was sent then. `is_suspect` says which
    /// owners did not answer lately, `turn` decides among equals.
    pub(crate) fn located(
        &mut self,
        items: &[usize],
        sent: Instant,
        answer: Result<LocateAnswer, Error>,
        reader: &Reader,
        is_suspect: impl Fn(Incarnation) -> bool,
        turn: usize,
    ) {
        let fail = |index: usize, error| self.items[index].state = State::Over(Err(error));
        let Some(answer) = answered(answer, items, fail) else { return };
        let segments: Vec<Arc<Placed>> = answer.segments.into_iter().map(Arc::new).collect();
        let until = sent + answer.lease;
        for (index, object) in items.iter().zip(answer.objects) {
            let item = &mut self.items[*index];
            item.locates += 1;
            item.state = match object {
                Ok(object) if object.length > item.room => {
                    let (length, room) = (object.length, item.room);
                    State::Over(Err(Error::TooSmall { length, room }))
                }
                Ok(object) => {
                    let places = Place::all(&object.replicas, &segments);
                    let turn = turn.wrapping_add(*index);
                    let mut left = reader.order(&places, &is_suspect, turn);
                    left.reverse();
                    State::Located(Located {
                        length: object.length,
                        checksum: object.checksum,
                        places,
                        left,
                        until,
                    })
                }
                Err(Outcome::Recovering) if self.waits < RECOVERY_WAITS => {
                    // It does not count: nothing was found.
                    item.locates -= 1;
                    State::Unknown
                }
                Err(outcome) => State::Over(Err(Error::Outcome(outcome))),
            };
        }
    }

    /// The wait is over.
    pub(crate) fn waited(&mut self) {
        self.waits += 1;
        for item in &mut self.items {
            if matches!(item.state, State::Unknown) {
                item.state = State::New;
            }
        }
    }

    /// What the bytes of a part should come to, where its writer said.
    pub(crate) fn checksum(&self, part: &Part) -> Option<u32> {
        match &self.items[part.item].state {
            State::Located(located) => located.checksum,
            _ => None,
        }
    }

    /// How a load of [`Step::Read`] ended, and when: for each of its parts whether its bytes are
    /// those that were put, as far as that was looked at.
    pub(crate) fn read(&mut self, load: &Load, now: Instant, outcome: &Result<Vec<bool>, Error>) {
        for (index, part) in load.parts.iter().enumerate() {
            let failed = match outcome {
                Ok(intact) if intact.get(index).copied().unwrap_or(true) => None,
                Ok(_) => Some(Error::Checksum {
                    segment: part.place.segment.lent.segment,
                    owner: part.place.owner(),
                }),
                Err(error) => Some(error.clone()),
            };
            let item = &mut self.items[part.item];
            item.alone |= outcome.is_err();
            item.ended(now, failed);
        }
    }

    /// How each ended, in order: how many bytes were got.
    pub(crate) fn into_results(self) -> Vec<Result<u64, Error>> {
        let result = |item: Item| match item.state {
            State::Over(result) => result,
            State::New | State::Unknown | State::Located(_) => Err(Error::TakenBack),
        };
        self.items.into_iter().map(result).collect()
    }
}

impl Item {
    /// An attempt ended.
    fn ended(&mut self, now: Instant, failed: Option<Error>) {
        let State::Located(located) = &mut self.state else { return };
        let is_over = now >= located.until;
        let error = match failed {
            None if !is_over => {
                self.state = State::Over(Ok(located.length));
                return;
            }
            None => Error::LeaseOver,
            Some(error) => {
                located.left.pop();
                if !is_over && !located.left.is_empty() {
                    return;
                }
                error
            }
        };
        let may_look_again = self.locates < LOCATES;
        self.state = if may_look_again { State::New } else { State::Over(Err(error)) };
    }
}

#[cfg(test)]
mod tests {
    use kvferry_proto::pool::{Located as Found, Replica, Version};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::load::tests::segment;
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    fn reader() -> Reader {
        Reader { client: Incarnation(1), host: "a".into() }
    }

    fn found(length: u64, replicas: usize) -> LocateAnswer {
        let segments = (1..4).map(|owner| (*segment(owner, "a")).clone()).collect();
        let replicas = (0..replicas).map(|segment| Replica { segment, offset: 0 }).collect();
        let (version, checksum) = (Version(1), None);
        let object = Found { length, version, checksum, replicas };
        LocateAnswer { objects: vec![Ok(object)], segments, lease: LEASE }
    }

    fn located(batch: &mut Batch, sent: Instant, answer: LocateAnswer) {
        batch.located(&[0], sent, Ok(answer), &reader(), |_| false, 0);
    }

    fn only_load(step: Step) -> Load {
        match step {
            Step::Read(mut loads) if loads.len() == 1 => loads.remove(0),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_next_copy_is_read_when_one_fails_and_a_stopped_owner_costs_a_part_of_the_lease() {
        let start = Instant::now();
        let mut batch = Batch::new([100]);
        located(&mut batch, start, found(100, 2));
        let first = only_load(batch.step(start));
        assert!(first.until <= start + Duration::from_secs(3), "{:?}", first.until - start);
        batch.read(&first, start, &Err(Error::LeaseOver));
        let second = only_load(batch.step(start));
        assert_ne!(first.parts[0].replica, second.parts[0].replica);
        // There is no other: it may take what is left.
        assert_eq!(second.until, start + LEASE);
        batch.read(&second, start, &Ok(vec![true]));
        assert_eq!(batch.step(start), Step::Over);
        assert_eq!(*batch.into_results()[0].as_ref().unwrap(), 100);
    }

    #[test]
    fn bytes_that_arrive_with_the_end_of_the_lease_are_asked_for_again() {
        let start = Instant::now();
        let mut batch = Batch::new([100]);
        located(&mut batch, start, found(100, 1));
        let load = only_load(batch.step(start));
        batch.read(&load, start + LEASE, &Ok(vec![true]));
        assert_eq!(batch.step(start + LEASE), Step::Locate(vec![0]));
        let again = start + LEASE;
        located(&mut batch, again, found(100, 1));
        let load = only_load(batch.step(again));
        batch.read(&load, again + LEASE - Duration::from_millis(1), &Ok(vec![true]));
        assert!(batch.into_results()[0].is_ok());
    }

    proptest! {
        #[test]
        fn every_get_ends_and_counts_only_what_was_whole_and_in_time(
            fates in vec((0_u8..8, 0_u64..15_000), 0..60),
            replicas in 1_usize..4,
        ) {
            let start = Instant::now();
            let (mut now, mut until) = (start, start);
            let mut batch = Batch::new([100]);
            let mut fates = fates.into_iter();
            let mut should_be = false;
            for steps in 0.. {
                prop_assert!(steps < 60, "it does not end");
                let (fate, ms) = fates.next().unwrap_or_default();
                match batch.step(now) {
                    Step::Locate(items) => {
                        prop_assert_eq!(&items, &[0]);
                        until = now + LEASE;
                        let mut answer = found(100, replicas);
                        match fate {
                            0 => answer.objects = vec![Err(Outcome::NotFound)],
                            1 => answer.objects = vec![Err(Outcome::Recovering)],
                            2 => answer = found(101, 1),
                            _ => {}
                        }
                        located(&mut batch, now, answer);
                    }
                    Step::Read(loads) => {
                        let load = &loads[0];
                        prop_assert!(loads.len() == 1 && load.until <= until);
                        now += Duration::from_millis(ms);
                        let outcome = match fate {
                            0..3 => Err(Error::LeaseOver),
                            3 => Ok(vec![false]),
                            _ => Ok(vec![true]),
                        };
                        should_be = fate > 3 && now < until;
                        batch.read(load, now, &outcome);
                    }
                    Step::Wait(time) => {
                        now += time;
                        batch.waited();
                    }
                    Step::Over => break,
                }
            }
            let result = batch.into_results().remove(0);
            prop_assert_eq!(result.is_ok(), should_be, "{:?}", result);
            prop_assert!(!matches!(result, Err(Error::TakenBack)));
        }
    }
}
