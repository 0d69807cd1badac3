//! From two lists of spans to requests.

use std::sync::Arc;

use super::registered::{Registered, start_of};
use crate::memory::SpanList;
use crate::rdma::verbs::{MemoryRegion, RemoteAddress};

/// The most bytes of a request. Requests are carried out one after another, so this is also what
/// others of the queue pair wait for.
const REQUEST_BYTES: u32 = 256 << 10;

/// A span of a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSpan {
    /// Where it lies.
    pub at: RemoteAddress,
    /// Its length in bytes.
    pub bytes: u32,
}

/// Why something cannot be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfetchable {
    /// Memory of this process is not registered with the adapter (any more).
    #[error("memory of this process is not registered with the adapter")]
    NotRegistered,
}

/// Spans of a peer's memory that are to be brought to spans of this process's, in order, and how far
/// that was asked for. Both lists have as many bytes.
#[derive(Debug)]
pub struct Fetch {
    there: Vec<RemoteSpan>,
    here: Vec<(u64, u32)>,
    at_there: Position,
    at_here: Position,
    left: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Position {
    next: usize,
    within: u32,
}

impl Position {
    fn advance(&mut self, bytes: u32, of: u32) {
        self.within += bytes;
        if self.within == of {
            (self.next, self.within) = (self.next + 1, 0);
        }
    }
}

/// One request: a range of the peer's memory, to so many local spans one after another.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) from: RemoteAddress,
    pub(super) spans: usize,
    pub(super) bytes: u64,
}

/// A span of a part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Its position among the parts of its chain.
    pub(super) part: usize,
    pub(super) offset: u64,
    pub(super) bytes: u32,
}

/// The local spans of a chain of requests: one list for all of them, so that none is allocated for each.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    pub(super) parts: Vec<Arc<MemoryRegion>>,
    pub(super) pieces: Vec<Piece>,
}

impl Pieces {
    /// The position of the part that an address lies in. Most lie where the last did.
    fn part_of(&mut self, registered: &Registered, address: u64) -> Result<usize, Unfetchable> {
        let covers = |part: &Arc<MemoryRegion>| {
            address.checked_sub(start_of(part)).is_some_and(|inside| inside < part.bytes())
        };
        if !self.parts.last().is_some_and(covers) {
            let part = registered.find(address).ok_or(Unfetchable::NotRegistered)?;
            self.parts.push(part);
        }
        Ok(self.parts.len() - 1)
    }
}

impl Fetch {
    /// Nothing of it is asked for yet. `None` where the lists have different numbers of bytes.
    #[must_use]
    pub fn new(there: Vec<RemoteSpan>, here: &SpanList) -> Option<Self> {
        let bytes: u64 = there.iter().map(|span| u64::from(span.bytes)).sum();
        let here_bytes = here.bytes();
        let here = here.ranges().collect();
        let (at_there, at_here) = (Position::default(), Position::default());
        (bytes == here_bytes).then_some(Self { there, here, at_there, at_here, left: bytes })
    }

    /// How many bytes were not asked for yet.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The next request, of at most so many local spans, which are added to the others of its chain: as much
    /// as lies in one range there.
    pub(super) fn next(
        &mut self,
        registered: &Registered,
        most_spans: usize,
        into: &mut Pieces,
    ) -> Result<Option<Cut>, Unfetchable> {
        let Some(first) = self.there.get(self.at_there.next) else { return Ok(None) };
        let from = RemoteAddress {
            address: first.at.address + u64::from(self.at_there.within),
            key: first.at.key,
        };
        let (mut spans, mut bytes) = (0, 0_u32);
        while spans < most_spans && bytes < REQUEST_BYTES {
            let (Some(there), Some((address, length))) =
                (self.there.get(self.at_there.next), self.here.get(self.at_here.next).copied())
            else {
                break;
            };
            let goes_on = there.at.key == from.key
                && there.at.address + u64::from(self.at_there.within)
                    == from.address + u64::from(bytes);
            if !goes_on {
                break;
            }
            let address = address + u64::from(self.at_here.within);
            let at = into.part_of(registered, address)?;
            let part = &into.parts[at];
            let inside = address - start_of(part);
            let in_part = u32::try_from(part.bytes() - inside).unwrap_or(u32::MAX);
            let piece = (there.bytes - self.at_there.within)
                .min(length - self.at_here.within)
                .min(in_part)
                .min(REQUEST_BYTES - bytes);
            let offset = part.offset() + inside;
            into.pieces.push(Piece { part: at, offset, bytes: piece });
            spans += 1;
            self.at_there.advance(piece, there.bytes);
            self.at_here.advance(piece, length);
            bytes += piece;
        }
        self.left -= u64::from(bytes);
        Ok(Some(Cut { from, spans, bytes: bytes.into() }))
    }
}
