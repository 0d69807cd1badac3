//! What the owner of segments has still to be told of them.

use std::collections::VecDeque;

use kvferry_proto::pool::{BATCH, Change, Changes};

/// Changes of one owner's segments that are not known to be in its inventory.
#[derive(Debug, Default)]
pub(super) struct Feed {
    /// The number of the last change that is.
    applied: u64,
    /// Those after it, in order.
    waiting: VecDeque<Change>,
}

impl Feed {
    /// The number of the change.
    pub(super) fn push(&mut self, change: Change) -> u64 {
        self.waiting.push_back(change);
        self.last()
    }

    /// The number of the last change.
    pub(super) fn last(&self) -> u64 {
        self.applied + self.waiting.len() as u64
    }

    pub(super) fn applied(&self) -> u64 {
        self.applied
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The owner has applied all up to this one. False where there is no such change.
    pub(super) fn apply(&mut self, number: u64) -> bool {
        if number > self.last() {
            return false;
        }
        let Ok(done) = usize::try_from(number.saturating_sub(self.applied)) else { return false };
        self.waiting.drain(..done);
        self.applied = self.applied.max(number);
        true
    }

    /// The next changes after that one, as many as go into one message. `None` where there are none.
    pub(super) fn after(&self, number: u64) -> Option<Changes> {
        let skip = usize::try_from(number.saturating_sub(self.applied)).ok()?;
        let changes: Vec<Change> = self.waiting.iter().skip(skip).take(BATCH).cloned().collect();
        let first = self.applied.max(number);
        (!changes.is_empty()).then(|| Changes { number: first + changes.len() as u64, changes })
    }
}

#[cfg(test)]
mod tests {
    use kvferry_proto::pool::{SegmentId, Version, What};

    use super::*;

    fn gone(version: u64) -> Change {
        Change { segment: SegmentId(1), what: What::Drop(Version(version)) }
    }

    #[test]
    fn changes_are_told_in_order_and_kept_until_they_are_applied() {
        let mut feed = Feed::default();
        assert_eq!(feed.after(0), None);
        assert_eq!([feed.push(gone(1)), feed.push(gone(2)), feed.push(gone(3))], [1, 2, 3]);
        let after =
            |feed: &Feed, number| feed.after(number).map(|told| (told.number, told.changes));
        assert_eq!(after(&feed, 1), Some((3, vec![gone(2), gone(3)])));
        assert!(feed.apply(2));
        // What was told and not applied is told again.
        assert_eq!(after(&feed, 0), Some((3, vec![gone(3)])));
        assert_eq!(after(&feed, 3), None);
        assert!(!feed.apply(4));
        assert!(feed.apply(1) && feed.applied() == 2 && feed.waiting() == 1);
        assert_eq!(feed.push(gone(4)), 4);
    }

    #[test]
    fn a_message_has_a_bounded_number_of_changes() {
        let mut feed = Feed::default();
        for version in 1..=BATCH as u64 + 1 {
            feed.push(gone(version));
        }
        let first = feed.after(0).unwrap();
        assert_eq!((first.number, first.changes.len()), (BATCH as u64, BATCH));
        assert_eq!(feed.after(first.number).unwrap().changes, [gone(BATCH as u64 + 1)]);
    }
}
