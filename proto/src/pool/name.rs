//! Names: of objects, of whom they belong to, of where they are, of which one it is.

use std::fmt;

use prost::bytes::Bytes;

use super::{KEY_BYTES, NAME_BYTES, bounded};
use crate::message::MessageError;

/// The name of an object: text of 1 to [`KEY_BYTES`] bytes. Cloning it copies no bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Bytes);

impl Key {
    /// A key of these bytes.
    ///
    /// # Errors
    /// [`MessageError`] where there are none, too many, or they are not UTF-8.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, MessageError> {
        let message = "key";
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Err(MessageError::Missing { message, field: "text" });
        }
        bounded(message, "bytes", bytes.len(), KEY_BYTES)?;
        if let Err(error) = str::from_utf8(&bytes) {
            return Err(MessageError::Malformed { message, reason: error.to_string() });
        }
        Ok(Self(bytes))
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // It was looked at when the key was made.
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl TryFrom<&str> for Key {
    type Error = MessageError;

    fn try_from(text: &str) -> Result<Self, MessageError> {
        Self::new(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<Key> for Bytes {
    fn from(key: Key) -> Self {
        key.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Whom objects belong to. Tenants never see each other's keys. Without a name it is `default`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant(String);

impl Tenant {
    /// The tenant of callers that name none.
    pub const DEFAULT: &'static str = "default";

    /// The tenant of this name, of [`NAME_BYTES`] bytes at the most; `""` is [`Self::DEFAULT`].
    ///
    /// # Errors
    /// [`MessageError::TooMany`] where it is longer.
    pub fn new(name: impl Into<String>) -> Result<Self, MessageError> {
        let name = name.into();
        bounded("tenant", "bytes", name.len(), NAME_BYTES)?;
        Ok(if name.is_empty() { Self::default() } else { Self(name) })
    }

    /// Its name: never empty.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self(Self::DEFAULT.to_owned())
    }
}

impl From<Tenant> for String {
    fn from(tenant: Tenant) -> Self {
        tenant.0
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A segment: a random number that its owner draws once, and keeps for as long as it lends it. Zero
/// is never drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub u64);

impl SegmentId {
    pub(super) fn new(message: &'static str, id: u64) -> Result<Self, MessageError> {
        if id == 0 {
            return Err(MessageError::Missing { message, field: "segment" });
        }
        Ok(Self(id))
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Which put an object came from: the epoch of the master that reserved its room, and a count. Never
/// used twice, and of one key the higher is the newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(pub u64);

impl Version {
    /// How many bits the count has.
    const COUNT_BITS: u32 = 40;

    /// The highest epoch.
    pub const MOST_EPOCH: u32 = (1 << (u64::BITS - Self::COUNT_BITS)) - 1;

    /// The first version of an epoch; later ones count up from it.
    #[must_use]
    pub fn first(epoch: u32) -> Self {
        Self(u64::from(epoch.min(Self::MOST_EPOCH)) << Self::COUNT_BITS | 1)
    }

    /// The epoch of the master that gave it out.
    #[must_use]
    pub fn epoch(self) -> u32 {
        u32::try_from(self.0 >> Self::COUNT_BITS).unwrap_or(Self::MOST_EPOCH)
    }

    pub(super) fn new(message: &'static str, version: u64) -> Result<Self, MessageError> {
        if version == 0 {
            return Err(MessageError::Missing { message, field: "version" });
        }
        Ok(Self(version))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}", self.epoch(), self.0 & ((1 << Self::COUNT_BITS) - 1))
    }
}
