//! Which calls to the master go together, and what becomes of their answers.

use std::time::Duration;

use kvferry_proto::Incarnation;
use kvferry_proto::pool::{
    Exists, ExistsAnswer, Locate, LocateAnswer, Outcome, Placed, PutEnd, PutEndAnswer, PutStart,
    PutStartAnswer, Replica, Reserved, Tenant,
};

use super::gather::Gathered;

/// Takes the first so many.
fn first<T>(list: &mut Vec<T>, count: usize) -> Vec<T> {
    let rest = list.split_off(count.min(list.len()));
    std::mem::replace(list, rest)
}

/// Has replicas refer to a list of the segments that they are in, and makes that.
fn mentioned<'a>(
    segments: &[Placed],
    replicas: impl Iterator<Item = &'a mut Replica>,
) -> Vec<Placed> {
    let (mut numbers, mut found) = (Vec::new(), Vec::new());
    for replica in replicas {
        // The answer was checked: its indices lead somewhere.
        let Some(segment) = segments.get(replica.segment) else { continue };
        let known = numbers.iter().position(|number| *number == replica.segment);
        replica.segment = known.unwrap_or_else(|| {
            numbers.push(replica.segment);
            found.push(segment.clone());
            found.len() - 1
        });
    }
    found
}

impl Gathered for Exists {
    type Kind = (Tenant, bool);
    type Answer = ExistsAnswer;

    fn kind(&self) -> Self::Kind {
        (self.tenant.clone(), self.lease)
    }

    fn count(&self) -> usize {
        self.keys.len()
    }

    fn append(&mut self, other: Self) {
        self.keys.extend(other.keys);
    }

    fn take(answer: &mut ExistsAnswer, count: usize) -> ExistsAnswer {
        ExistsAnswer { found: first(&mut answer.found, count), lease: answer.lease }
    }
}

impl Gathered for Locate {
    type Kind = Tenant;
    type Answer = LocateAnswer;

    fn kind(&self) -> Tenant {
        self.tenant.clone()
    }

    fn count(&self) -> usize {
        self.keys.len()
    }

    fn append(&mut self, other: Self) {
        self.keys.extend(other.keys);
    }

    fn take(answer: &mut LocateAnswer, count: usize) -> LocateAnswer {
        let mut objects = first(&mut answer.objects, count);
        let replicas = objects.iter_mut().flatten().flat_map(|object| &mut object.replicas);
        let segments = mentioned(&answer.segments, replicas);
        LocateAnswer { objects, segments, lease: answer.lease }
    }
}

/// Only with [`PutStart::at_once`]: one that waits for room would have the others wait.
impl Gathered for PutStart {
    type Kind = (Tenant, usize, Vec<String>, bool, Duration);
    type Answer = PutStartAnswer;

    fn kind(&self) -> Self::Kind {
        let preferred = self.preferred.clone();
        (self.tenant.clone(), self.replicas, preferred, self.is_pinned, self.soft_pin)
    }

    fn count(&self) -> usize {
        self.puts.len()
    }

    fn append(&mut self, other: Self) {
        self.puts.extend(other.puts);
    }

    fn take(answer: &mut PutStartAnswer, count: usize) -> PutStartAnswer {
        let mut reserved = first(&mut answer.reserved, count);
        let replicas = reserved.iter_mut().flatten().flat_map(|reserved| &mut reserved.replicas);
        let segments = mentioned(&answer.segments, replicas);
        PutStartAnswer { reserved, segments, reservation: answer.reservation }
    }
}

/// Those of a request for which there was no room.
pub(crate) fn short(answer: &PutStartAnswer) -> Vec<usize> {
    let reserved = answer.reserved.iter().enumerate();
    let is_short = |reserved: &Result<Reserved, Outcome>| {
        reserved.as_ref().is_err_and(|outcome| outcome.is_backpressure())
    };
    reserved.filter_map(|(index, reserved)| is_short(reserved).then_some(index)).collect()
}

/// Some were asked for again: what became of them takes the place of what was answered before.
pub(crate) fn fill_in(answer: &mut PutStartAnswer, again: &[usize], filled: PutStartAnswer) {
    let shift = answer.segments.len();
    for (index, mut reserved) in again.iter().zip(filled.reserved) {
        for replica in reserved.iter_mut().flat_map(|reserved| &mut reserved.replicas) {
            replica.segment += shift;
        }
        answer.reserved[*index] = reserved;
    }
    answer.segments.extend(filled.segments);
    answer.reservation = answer.reservation.min(filled.reservation);
}

/// Objects that are written, with the owners that are to record them: one that does not answer holds
/// up nobody's but its own.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) end: PutEnd,
    /// In order.
    pub(crate) owners: Vec<Incarnation>,
}

impl Gathered for Recording {
    type Kind = (Tenant, Vec<Incarnation>);
    type Answer = PutEndAnswer;

    fn kind(&self) -> Self::Kind {
        (self.end.tenant.clone(), self.owners.clone())
    }

    fn count(&self) -> usize {
        self.end.puts.len()
    }

    fn append(&mut self, other: Self) {
        self.end.puts.extend(other.end.puts);
    }

    fn take(answer: &mut PutEndAnswer, count: usize) -> PutEndAnswer {
        let outcomes = first(&mut answer.outcomes, count);
        PutEndAnswer { outcomes, is_recorded: answer.is_recorded }
    }
}

#[cfg(test)]
mod tests {
    use kvferry_proto::pool::{Located, Version};

    use super::*;
    use crate::decide::load::tests::segment;

    #[test]
    fn a_part_of_an_answer_names_its_own_segments_and_no_others() {
        let segments: Vec<Placed> = (1..5).map(|owner| (*segment(owner, "")).clone()).collect();
        let located = |version, at: &[usize]| {
            let replicas = at.iter().map(|at| Replica { segment: *at, offset: 64 }).collect();
            Ok(Located { length: 1, version: Version(version), checksum: None, replicas })
        };
        let mut answer = LocateAnswer {
            objects: vec![
                located(1, &[3, 1]),
                Err(Outcome::NotFound),
                located(2, &[1]),
                located(3, &[0, 3]),
            ],
            segments,
            lease: Duration::from_secs(1),
        };
        let whole = answer.clone();
        let mut owners = Vec::new();
        for count in [2, 2] {
            let part = Locate::take(&mut answer, count);
            assert_eq!((part.objects.len(), part.lease), (count, whole.lease));
            for object in &part.objects {
                let object = object.as_ref().map(|object| {
                    let replicas = object.replicas.iter();
                    replicas.map(|replica| part.segments[replica.segment].owner.0).collect()
                });
                owners.push(object.unwrap_or_else(|_| Vec::new()));
            }
            assert_eq!(part.segments.len(), if owners.len() == 2 { 2 } else { 3 });
        }
        assert_eq!(owners, [vec![4, 2], vec![], vec![2], vec![1, 4]]);
    }

    #[test]
    fn what_was_asked_for_again_takes_its_place_and_what_was_reserved_stays() {
        let segments = |owners: &[u64]| -> Vec<Placed> {
            owners.iter().map(|owner| (*segment(*owner, "")).clone()).collect()
        };
        let reserved = |version, at: &[usize]| {
            let replicas = at.iter().map(|at| Replica { segment: *at, offset: 0 }).collect();
            Ok(Reserved { version: Version(version), replicas })
        };
        let (long, short_) = (Duration::from_secs(30), Duration::from_secs(20));
        let mut answer = PutStartAnswer {
            reserved: vec![
                Err(Outcome::NoSpace),
                reserved(1, &[0]),
                Err(Outcome::Exists),
                Err(Outcome::Full),
            ],
            segments: segments(&[1]),
            reservation: long,
        };
        assert_eq!(short(&answer), [0, 3]);
        let filled = PutStartAnswer {
            reserved: vec![reserved(2, &[1, 0]), Err(Outcome::NoSpace)],
            segments: segments(&[2, 3]),
            reservation: short_,
        };
        fill_in(&mut answer, &[0, 3], filled);
        let owners: Vec<Result<Vec<u64>, Outcome>> = answer
            .reserved
            .iter()
            .map(|reserved| {
                let reserved = reserved.as_ref().map_err(|outcome| *outcome)?;
                let owner = |replica: &Replica| answer.segments[replica.segment].owner.0;
                Ok(reserved.replicas.iter().map(owner).collect())
            })
            .collect();
        let expected = [Ok(vec![3, 2]), Ok(vec![1]), Err(Outcome::Exists), Err(Outcome::NoSpace)];
        assert_eq!(owners, expected);
        assert_eq!(answer.reservation, short_);
    }
}
