//! The transfers of a session that have not ended, found by number without a search.

use std::collections::VecDeque;

use kvferry_proto::TransferId;
use kvferry_proto::frame::limits;

use crate::transfer::TransferState;

#[derive(Debug)]
pub(super) struct Entry<T> {
    pub(super) transfer: TransferState,
    pub(super) token: T,
    /// It stands in one of the queues of transfers with slices to be posted.
    pub(super) queued: bool,
}

/// A window over the sequence of transfers, from the oldest that has not ended.
#[derive(Debug)]
pub(super) struct Transfers<T> {
    first: u64,
    entries: VecDeque<Option<Entry<T>>>,
    open: usize,
}

impl<T> Transfers<T> {
    pub(super) fn new() -> Self {
        // 0 is below every transfer, so a floor of 0 forgets nothing.
        Self { first: 1, entries: VecDeque::new(), open: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.open
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// Whether the next number would be too far from the oldest.
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() as u64 >= limits::TRANSFER_SPREAD - 1
    }

    /// The oldest that has not ended, or the next one.
    pub(super) fn floor(&self) -> TransferId {
        TransferId(self.first)
    }

    pub(super) fn insert(&mut self, entry: Entry<T>) -> TransferId {
        self.entries.push_back(Some(entry));
        self.open += 1;
        TransferId(self.first + self.entries.len() as u64 - 1)
    }

    fn index(&self, id: TransferId) -> Option<usize> {
        usize::try_from(id.0.checked_sub(self.first)?).ok()
    }

    pub(super) fn get(&self, id: TransferId) -> Option<&Entry<T>> {
        self.entries.get(self.index(id)?)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: TransferId) -> Option<&mut Entry<T>> {
        let index = self.index(id)?;
        self.entries.get_mut(index)?.as_mut()
    }

    pub(super) fn remove(&mut self, id: TransferId) -> Option<Entry<T>> {
        let index = self.index(id)?;
        let entry = self.entries.get_mut(index)?.take()?;
        self.open -= 1;
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.first += 1;
        }
        Some(entry)
    }

    pub(super) fn ids(&self) -> Vec<TransferId> {
        let numbered = (self.first..).zip(&self.entries);
        numbered.filter(|(_, entry)| entry.is_some()).map(|(id, _)| TransferId(id)).collect()
    }
}
