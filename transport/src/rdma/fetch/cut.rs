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

/// One request: a range of the peer's memory, to local spans one after another.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) from: RemoteAddress,
    pub(super) into: Vec<Piece>,
    pub(super) bytes: u64,
}

/// A span of a part.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) part: Arc<MemoryRegion>,
    pub(super) offset: u64,
    pub(super) bytes: u32,
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

    /// The next request, of at most so many local spans: as much as lies in one range there.
    pub(super) fn next(
        &mut self,
        registered: &Registered,
        most_spans: usize,
    ) -> Result<Option<Cut>, Unfetchable> {
        let Some(first) = self.there.get(self.at_there.next) else { return Ok(None) };
        let from = RemoteAddress {
            address: first.at.address + u64::from(self.at_there.within),
            key: first.at.key,
        };
        let (mut into, mut bytes) = (Vec::new(), 0_u32);
        while into.len() < most_spans && bytes < REQUEST_BYTES {
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
            let part = registered.find(address).ok_or(Unfetchable::NotRegistered)?;
            let inside = address - start_of(&part);
            let in_part = u32::try_from(part.bytes() - inside).unwrap_or(u32::MAX);
            let piece = (there.bytes - self.at_there.within)
                .min(length - self.at_here.within)
                .min(in_part)
                .min(REQUEST_BYTES - bytes);
            into.push(Piece { offset: part.offset() + inside, part, bytes: piece });
            self.at_there.advance(piece, there.bytes);
            self.at_here.advance(piece, length);
            bytes += piece;
        }
        self.left -= u64::from(bytes);
        Ok(Some(Cut { from, into, bytes: bytes.into() }))
    }
}
