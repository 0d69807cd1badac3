//! Entries at numbers that do not change, in pieces that never move: growing copies nothing.

/// How many entries a piece has.
const PIECE: usize = 64;

/// The most entries of a slab.
pub(super) const MOST: usize = u32::MAX as usize;

/// Entries by number.
#[derive(Debug)]
pub(super) struct Slab<T> {
    pieces: Vec<Vec<Option<T>>>,
    unused: Vec<u32>,
    filled: usize,
    used: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { pieces: Vec::new(), unused: Vec::new(), filled: 0, used: 0 }
    }
}

impl<T> Slab<T> {
    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// One more than the highest number that was ever used.
    pub(super) fn end(&self) -> u32 {
        u32::try_from(self.filled).unwrap_or(u32::MAX)
    }

    /// The number of the new entry. There are fewer than [`MOST`]: whoever inserts sees to that.
    pub(super) fn insert(&mut self, entry: T) -> u32 {
        self.used += 1;
        if let Some(number) = self.unused.pop() {
            self.pieces[number as usize / PIECE][number as usize % PIECE] = Some(entry);
            return number;
        }
        if self.filled.is_multiple_of(PIECE) {
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        let number = self.end();
        self.pieces[self.filled / PIECE].push(Some(entry));
        self.filled += 1;
        number
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let removed =
            self.pieces.get_mut(number as usize / PIECE)?.get_mut(number as usize % PIECE)?.take();
        if removed.is_some() {
            self.used -= 1;
            self.unused.push(number);
        }
        removed
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.pieces.get(number as usize / PIECE)?.get(number as usize % PIECE)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.pieces.get_mut(number as usize / PIECE)?.get_mut(number as usize % PIECE)?.as_mut()
    }
}
