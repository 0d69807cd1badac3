//! Which segments an object goes to.

use std::time::Duration;

use super::moment::Moment;

/// How a host that has just come is approached: with a share that grows over this time, lest all
/// puts of all clients go to the emptiest one at once.
const SLOW_START: Duration = Duration::from_secs(30);

/// What share it begins with, of [`WHOLE`].
const FIRST_SHARE: u64 = WHOLE / 10;

const WHOLE: u64 = 1000;

/// How segments are chosen among those that nobody prefers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// All alike.
    #[default]
    Random,
    /// In proportion to how much of each is free.
    FreeRatio,
    /// Those on the client's own host first, then all alike.
    Local,
}

/// What is known of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// How much of it is free, in bytes.
    pub free: u64,
    /// How long it is, in bytes.
    pub length: u64,
    /// Since when it has been there.
    pub mounted: Moment,
    /// It is on the client's own host.
    pub is_local: bool,
    /// Which of the names that the client prefers it has: the lower the better.
    pub preference: Option<usize>,
}

/// The candidates of one batch, ready to be chosen from.
#[derive(Debug)]
pub struct Choice {
    /// To be tried first, in this order.
    first: Vec<usize>,
    /// The others, each with the sum of the weights up to and with its own.
    rest: Vec<(u64, usize)>,
    random: fastrand::Rng,
}

impl Choice {
    /// Weighs candidates. What is drawn depends on the seed alone.
    #[must_use]
    pub fn new(now: Moment, strategy: Strategy, candidates: &[Candidate], seed: u64) -> Self {
        let mut first: Vec<usize> = Vec::new();
        let mut rest = Vec::new();
        let mut sum = 0;
        for (index, candidate) in candidates.iter().enumerate() {
            let is_local = strategy == Strategy::Local && candidate.is_local;
            if candidate.preference.is_some() || is_local {
                first.push(index);
                continue;
            }
            sum += weight(now, strategy, candidate);
            rest.push((sum, index));
        }
        first.sort_by_key(|index| (candidates[*index].preference.unwrap_or(usize::MAX), *index));
        Self { first, rest, random: fastrand::Rng::with_seed(seed) }
    }

    /// Picks up to `wanted` different candidates for which `take` has something to give, and returns
    /// what it gave. Every candidate is asked before fewer are returned.
    pub fn pick<T>(&mut self, wanted: usize, mut take: impl FnMut(usize) -> Option<T>) -> Vec<T> {
        let mut taken = Vec::with_capacity(wanted.min(self.first.len() + self.rest.len()));
        for index in &self.first {
            if taken.len() == wanted {
                return taken;
            }
            taken.extend(take(*index));
        }
        let mut asked: Vec<usize> = Vec::new();
        let total = self.rest.last().map_or(0, |(sum, _)| *sum);
        // Drawn by weight while that finds new ones, and then all that were not asked, in turn.
        for _ in 0..wanted * 2 + 2 {
            if taken.len() == wanted || total == 0 {
                break;
            }
            let drawn = self.random.u64(0..total);
            let at = self.rest.partition_point(|(sum, _)| *sum <= drawn);
            let Some((_, index)) = self.rest.get(at) else { break };
            if !asked.contains(index) {
                asked.push(*index);
                taken.extend(take(*index));
            }
        }
        let start = if self.rest.is_empty() { 0 } else { self.random.usize(0..self.rest.len()) };
        for (_, index) in self.rest[start..].iter().chain(&self.rest[..start]) {
            if taken.len() == wanted {
                break;
            }
            if !asked.contains(index) {
                taken.extend(take(*index));
            }
        }
        taken
    }
}

fn weight(now: Moment, strategy: Strategy, candidate: &Candidate) -> u64 {
    let ratio = match strategy {
        Strategy::FreeRatio => share(candidate.free, candidate.length).max(1),
        Strategy::Random | Strategy::Local => WHOLE,
    };
    let age = now.since(candidate.mounted).min(SLOW_START);
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let ramp = FIRST_SHARE + share(millis(age), millis(SLOW_START)) * 9 / 10;
    ratio * ramp
}

/// A part of a whole, of [`WHOLE`].
fn share(part: u64, whole: u64) -> u64 {
    let share = u128::from(part) * u128::from(WHOLE) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(WHOLE).min(WHOLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Moment = Moment(1_000_000);

    fn candidate(free: u64) -> Candidate {
        Candidate { free, length: 1000, mounted: Moment(0), is_local: false, preference: None }
    }

    /// How often each of the candidates is picked for one object in 10,000.
    fn shares(now: Moment, strategy: Strategy, candidates: &[Candidate]) -> Vec<usize> {
        let mut choice = Choice::new(now, strategy, candidates, 7);
        let mut counts = vec![0; candidates.len()];
        for _ in 0..10_000 {
            for index in choice.pick(1, Some) {
                counts[index] += 1;
            }
        }
        counts
    }

    #[test]
    fn at_random_all_are_alike_and_by_free_ratio_the_emptier_have_more() {
        let candidates = [candidate(100), candidate(900)];
        let even = shares(OLD, Strategy::Random, &candidates);
        assert!(even.iter().all(|count| (4_000..6_000).contains(count)), "{even:?}");
        let weighed = shares(OLD, Strategy::FreeRatio, &candidates);
        assert!((500..1_500).contains(&weighed[0]), "{weighed:?}");
    }

    #[test]
    fn a_new_empty_host_is_not_stormed() {
        let new = Candidate { mounted: OLD, ..candidate(1000) };
        let full = candidate(200);
        let candidates = [full, full, full, new];
        let at_once = shares(OLD, Strategy::FreeRatio, &candidates);
        assert!(at_once[3] < 2_500, "{at_once:?}");
        let later = shares(OLD.after(SLOW_START), Strategy::FreeRatio, &candidates);
        assert!(later[3] > 5_000, "{later:?}");
    }

    #[test]
    fn preferred_segments_come_first_and_then_those_of_the_same_host() {
        let local = Candidate { is_local: true, ..candidate(10) };
        let second = Candidate { preference: Some(1), ..candidate(10) };
        let first = Candidate { preference: Some(0), ..candidate(10) };
        let candidates = [candidate(1000), local, second, first];
        let mut choice = Choice::new(OLD, Strategy::Local, &candidates, 1);
        assert_eq!(choice.pick(4, Some), [3, 2, 1, 0]);
        let mut choice = Choice::new(OLD, Strategy::Random, &candidates, 1);
        assert_eq!(choice.pick(2, Some), [3, 2]);
    }

    #[test]
    fn whoever_has_room_is_found_among_many_that_have_none_and_nobody_is_taken_twice() {
        let candidates = vec![candidate(0); 200];
        for seed in 0..20 {
            let mut choice = Choice::new(OLD, Strategy::FreeRatio, &candidates, seed);
            let has_room = |index| [17, 99, 180].contains(&index).then_some(index);
            let mut found = choice.pick(5, has_room);
            found.sort_unstable();
            assert_eq!(found, [17, 99, 180]);
        }
    }

    #[test]
    fn the_same_seed_picks_the_same() {
        let candidates = vec![candidate(500); 50];
        let pick = |seed| {
            let mut choice = Choice::new(OLD, Strategy::Random, &candidates, seed);
            (0..20).flat_map(|_| choice.pick(2, Some)).collect::<Vec<_>>()
        };
        assert_eq!(pick(3), pick(3));
        assert_ne!(pick(3), pick(4));
    }
}
