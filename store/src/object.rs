//! What is put and got, and how.

use std::time::Duration;

use kvferry_engine::Span;
use kvferry_proto::pool::{Key, NAME_BYTES, REPLICAS};

use crate::error::Error;

/// An object to be put: the bytes of all spans, one behind the other.
#[derive(Clone, Debug)]
pub struct Put {
    /// Under which key.
    pub key: Key,
    /// Where its bytes are, in regions of this engine's registry. They have to stay as they are
    /// until the put has ended.
    pub spans: Vec<Span>,
    /// Evicted together with others of this name; `None` where it is on its own.
    pub group: Option<String>,
}

impl Put {
    /// An object on its own.
    pub fn new(key: Key, spans: impl Into<Vec<Span>>) -> Self {
        Self { key, spans: spans.into(), group: None }
    }

    /// How many bytes it has.
    ///
    /// # Errors
    /// What keeps it from being put.
    pub(crate) fn check(&self) -> Result<u64, Error> {
        let found = self.group.as_ref().map_or(0, String::len);
        if found > NAME_BYTES {
            return Err(Error::NameTooLong { found, limit: NAME_BYTES });
        }
        match length(&self.spans) {
            0 => Err(Error::Empty),
            bytes => Ok(bytes),
        }
    }

    /// Has it evicted together with others of this name.
    #[must_use]
    pub fn group(mut self, name: impl Into<String>) -> Self {
        self.group = Some(name.into()).filter(|name| !name.is_empty());
        self
    }
}

/// An object to be got.
#[derive(Clone, Debug)]
pub struct Get {
    /// Under which key.
    pub key: Key,
    /// Where its bytes are to go, one behind the other, in regions of this engine's registry: as
    /// many bytes as it has, or more, whose rest is left as it is. When the get fails, what is in
    /// them is undefined.
    pub spans: Vec<Span>,
}

impl Get {
    /// A key, and where its bytes are to go.
    pub fn new(key: Key, spans: impl Into<Vec<Span>>) -> Self {
        Self { key, spans: spans.into() }
    }
}

/// How objects are put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutOptions {
    /// How many segments each goes to, 1 to 16. Where there are fewer, to as many as there are.
    pub replicas: usize,
    /// Names of segments to be used before others, as far as they have room; 16 at the most.
    pub preferred: Vec<String>,
    /// Never evicted.
    pub is_pinned: bool,
    /// Evicted after others, for so long; zero for not at all.
    pub soft_pin: Duration,
    /// Has each carry a CRC-32C, against which [`GetOptions::verify`] checks it. It costs a pass
    /// over the bytes.
    pub checksum: bool,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self {
            replicas: 1,
            preferred: Vec::new(),
            is_pinned: false,
            soft_pin: Duration::ZERO,
            checksum: false,
        }
    }
}

impl PutOptions {
    /// # Errors
    /// What the master would refuse.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let count = |what, found| match found {
            0..=REPLICAS => Ok(()),
            _ => Err(Error::TooMany { what, found, limit: REPLICAS }),
        };
        count("replicas", self.replicas)?;
        count("preferred segments", self.preferred.len())?;
        match self.preferred.iter().map(String::len).max() {
            Some(found) if found > NAME_BYTES => {
                Err(Error::NameTooLong { found, limit: NAME_BYTES })
            }
            _ => Ok(()),
        }
    }
}

/// How objects are got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetOptions {
    /// Compares the bytes with the checksum that they were put with; those that were put without
    /// one pass. It costs a pass over the bytes.
    pub verify: bool,
}

/// An object that was removed: it is not found any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Whether all owners have it out of their inventories, those of its batch included. One that
    /// has not been reached brings the object back where the master dies before it was.
    pub is_recorded: bool,
}

/// How many bytes spans have together.
pub(crate) fn length(spans: &[Span]) -> u64 {
    spans.iter().map(Span::length).fold(0, u64::saturating_add)
}
