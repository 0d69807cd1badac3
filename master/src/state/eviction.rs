//! Which objects go when room is needed: those that were not used for longest, nearly.
//!
//! A list in the order of use would have to be changed by every read. Instead a sample of objects
//! says how long ago is long enough, and whatever was last used before then goes. Of a few thousand
//! objects or fewer the sample is all of them, and the order is exact.

use super::moment::Coarse;
use super::object::Hold;

/// How many objects of each shard are looked at to find out what is old.
pub(super) const SAMPLE: u32 = 16;

/// An object that was looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampled {
    pub(super) hold: Hold,
    pub(super) used: Coarse,
    pub(super) bytes: u64,
}

/// What may go: objects on which there is this hold, last used then or earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Threshold {
    pub(super) hold: Hold,
    pub(super) used: Coarse,
}

/// What has to go so that about `wanted` bytes come free, the least missed first. `looked` of
/// `objects` were looked at, and those of them that may go are the sample.
pub(super) fn thresholds(
    mut sample: Vec<Sampled>,
    looked: usize,
    objects: usize,
    wanted: u64,
) -> Vec<Threshold> {
    sample.sort_unstable_by_key(|sampled| (sampled.hold, sampled.used));
    // As many bytes of the sample as there are wanted of all.
    let part = u128::from(wanted) * looked as u128;
    let part = part.div_ceil(objects.max(1) as u128);
    let mut sum: u128 = 0;
    let mut thresholds: Vec<Threshold> = Vec::new();
    for Sampled { hold, used, bytes } in sample {
        if sum >= part {
            break;
        }
        sum += u128::from(bytes);
        match thresholds.last_mut() {
            Some(last) if last.hold == hold => last.used = used,
            _ => thresholds.push(Threshold { hold, used }),
        }
    }
    thresholds
}

#[cfg(test)]
mod tests {
    use super::super::moment::Moment;
    use super::*;

    fn sampled(hold: Hold, second: u64) -> Sampled {
        Sampled { hold, used: Coarse::of(Moment(second * 1000)), bytes: 10 }
    }

    fn threshold(hold: Hold, second: u64) -> Threshold {
        Threshold { hold, used: Coarse::of(Moment(second * 1000)) }
    }

    #[test]
    fn the_oldest_go_and_what_is_held_goes_after_what_is_not() {
        let sample = vec![
            sampled(Hold::SoftPin, 1),
            sampled(Hold::None, 9),
            sampled(Hold::None, 3),
            sampled(Hold::Noticed, 2),
        ];
        let of = |wanted| thresholds(sample.clone(), 5, 5, wanted);
        assert_eq!(of(10), [threshold(Hold::None, 3)]);
        assert_eq!(of(20), [threshold(Hold::None, 9)]);
        let both = [threshold(Hold::None, 9), threshold(Hold::SoftPin, 1)];
        assert_eq!(of(21), both);
        assert_eq!(of(1_000), [both[0], both[1], threshold(Hold::Noticed, 2)]);
    }

    #[test]
    fn a_sample_stands_for_all() {
        let sample: Vec<_> = (0..100).map(|second| sampled(Hold::None, second)).collect();
        // A tenth of 1,000 objects of 10 bytes: the tenth of the sample that is oldest.
        assert_eq!(thresholds(sample, 100, 1_000, 1_000), [threshold(Hold::None, 9)]);
    }
}
